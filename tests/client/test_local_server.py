from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat

import pytest

from kedge import errors, paths
from kedge.client import local_server
from kedge.client.client import Client
from kedge.client.local_server import find_or_start, find_running, open_workspace
from kedge.server.log import LOG_BYTES_MAX
from tests.client.fixtures import server_pids
from tests.client.process import Home


def wait_ended(pid: int) -> None:
    """Block until this child has ended, without reaping it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def test_server_is_started_once_and_reused(in_home: Home) -> None:
    assert await find_running() is None
    host = await find_or_start()
    assert host == paths.default_host()
    assert await find_running()
    async with Client(host) as client:
        pid = (await client.version()).pid
    assert await find_or_start() == host
    assert server_pids(in_home) == [pid]
    assert os.getsid(pid) == pid, "it must outlive our terminal"
    for private in (paths.runtime_dir(), paths.data_dir()):
        assert stat.S_IMODE(private.stat().st_mode) & 0o077 == 0 or private == in_home.data


async def test_new_data_directory_is_private(in_home: Home) -> None:
    in_home.data.rmdir()
    await find_or_start()
    assert stat.S_IMODE(in_home.data.stat().st_mode) == 0o700
    assert stat.S_IMODE(paths.server_log().stat().st_mode) == 0o600


async def test_eight_concurrent_commands_start_one_server(in_home: Home) -> None:
    """E9."""
    commands = [in_home.start_kedge("run", f"hello {number}") for number in range(8)]
    finished = [(*command.communicate(timeout=40), command.returncode) for command in commands]
    assert [code for _, _, code in finished] == [0] * 8, finished
    assert sorted(out for out, _, _ in finished) == [f"You said: hello {number}\n" for number in range(8)]
    assert len(server_pids(in_home)) == 1
    assert paths.server_log().read_text().count("listening on") == 1


async def test_concurrent_clients_in_one_process_start_one_server(in_home: Home) -> None:
    hosts = await asyncio.gather(*(find_or_start() for _ in range(8)))
    assert set(hosts) == {paths.default_host()}
    assert len(server_pids(in_home)) == 1


async def test_stale_socket_is_replaced(in_home: Home) -> None:
    """E10."""
    paths.runtime_dir().mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(paths.socket_file()))
    await find_or_start()
    pid = server_pids(in_home)[0]
    os.kill(pid, signal.SIGKILL)
    wait_ended(pid)
    assert paths.socket_file().exists()
    await find_or_start()
    assert await find_running()


async def test_failed_server_start_reports_the_reason(in_home: Home) -> None:
    in_home.config.write_text("model = [broken")
    with pytest.raises(
        errors.Unreachable, match=r"did not start \(exit code 1\): kedge: .*config\.toml is not valid TOML"
    ):
        await find_or_start()


async def test_wait_for_a_silent_server_is_bounded(in_home: Home) -> None:
    with pytest.raises(errors.Unreachable, match=r"does not answer\. See .*server\.log"):
        await find_or_start(start_s_max=0.01)


async def test_killed_starter_leaves_no_lock(in_home: Home) -> None:
    paths.runtime_dir().mkdir(mode=0o700)
    with local_server._start_lock() as is_ours:
        assert is_ours
        with local_server._start_lock() as other:
            assert not other
        with pytest.raises(errors.Unreachable, match="Another process is starting"):
            await find_or_start(start_s_max=0.1)
    await find_or_start()


async def test_directory_of_another_user_is_refused(in_home: Home) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make one")
    paths.runtime_dir().mkdir(mode=0o700)
    os.chown(paths.runtime_dir(), 12345, 12345)
    with pytest.raises(errors.Unreachable, match="not a directory that you own"):
        await find_or_start()


async def test_open_runtime_directory_is_made_private(in_home: Home) -> None:
    paths.runtime_dir().mkdir()
    paths.runtime_dir().chmod(0o777)
    await find_or_start()
    assert stat.S_IMODE(paths.runtime_dir().stat().st_mode) == 0o700


async def test_server_trims_its_large_log(in_home: Home) -> None:
    paths.server_log().write_bytes(b"".join(b"%d\n" % number for number in range(1_000_000)))
    await find_or_start()
    assert paths.server_log().stat().st_size < LOG_BYTES_MAX
    assert b"\n999999\n" in paths.server_log().read_bytes()


async def test_server_imports_nothing_from_the_current_directory(in_home: Home) -> None:
    for name in ("kedge.py", "msgspec.py", "uvicorn.py"):
        (in_home.workspace / name).write_text("raise SystemExit('this is somebody else\\'s file')\n")
    await find_or_start()
    assert await find_running()


async def test_server_that_just_stopped_is_replaced(in_home: Home) -> None:
    async with Client() as client:
        first = await open_workspace(client, str(in_home.workspace), may_start=True)
        await client.control("shutdown", force=True)
        second = await open_workspace(client, str(in_home.workspace), may_start=True)
        assert first.id == second.id
        pid = (await client.version()).pid
        await client.control("shutdown", force=True)
        wait_ended(pid)
        with pytest.raises(errors.Unreachable):
            await open_workspace(client, str(in_home.workspace), may_start=False)
