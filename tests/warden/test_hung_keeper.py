"""A keeper that does not answer is killed with its processes, and replaced; a paused one is not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from kedge.warden import keeper_client
from kedge.warden import warden as warden_module
from kedge.warden.base import ProcessFailed, WardenFailed
from kedge.warden.proc_fs import children
from kedge.warden.warden import Warden
from tests.hanging_mount import hanging_mount
from tests.polling import until
from tests.warden.hanging import hung
from tests.warden.support import PYTHON, is_alive, marked, new_mark, read_all, spec

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second of silence is enough, instead of five."""
    monkeypatch.setattr(keeper_client, "PING_S", 0.1)


@pytest.mark.usefixtures("quick_pings")
@pytest.mark.found(
    "fault 12",
    "a keeper that hung hung every start without a limit, and the processes of cancelled Runs stayed alive; a keeper "
    "that answers no ping is killed with its processes and replaced, and a command that it had not begun starts there",
)
async def test_hung_keeper_is_replaced(warden: Warden) -> None:
    mark = new_mark()
    running = await warden.run(spec("sleep", "1000", mark=mark))
    first_pid = warden.keeper_pid
    with hung(first_pid):
        ending = asyncio.create_task(running.end(0))
        other = await warden.run(spec("echo", "two"))
        assert await read_all(other) == b"two\n"
        assert (await other.wait()).code == 0
        assert await ending == ()
    assert marked(mark) == []
    assert not is_alive(first_pid)
    assert warden.keeper_pid != first_pid
    assert await other.end(0) == ()


@pytest.mark.usefixtures("quick_pings")
async def test_command_of_hung_keeper_fails_and_is_not_repeated(warden: Warden) -> None:
    mark = new_mark()
    running = await warden.run(spec("sleep", "1000", mark=mark))
    with hung(warden.keeper_pid), pytest.raises(WardenFailed, match="processes were killed"):
        async with asyncio.timeout(20):
            await running.wait()
    assert await running.end(0) == ()
    assert marked(mark) == []


async def test_accepted_command_is_not_started_again(warden: Warden, tmp_path: Path) -> None:
    with hanging_mount(tmp_path / "mount") as mount:
        mount.hang()
        starting = asyncio.create_task(warden.run(spec("touch", "begun", cwd=str(mount.path))))
        await until(lambda: bool(children(warden.keeper_pid)))
        os.kill(warden.keeper_pid, signal.SIGKILL)
        mount.answer()
        with pytest.raises(WardenFailed, match="processes were killed"):
            await starting


async def test_stopped_keeper_continues_without_a_message(warden: Warden) -> None:
    process = await warden.run(spec("sh", "-c", "read -r line; exit 3", stdin="pipe"))
    keeper_pid = warden.keeper_pid
    os.kill(keeper_pid, signal.SIGSTOP)
    await process.write(b"\n")
    assert (await process.wait()).code == 3
    assert warden.keeper_pid == keeper_pid
    assert await process.end(0) == ()


@pytest.mark.usefixtures("quick_pings")
async def test_pause_of_server_and_keeper_ends_nothing(warden: Warden) -> None:
    process = await warden.run(spec(*PYTHON, "import signal; signal.pause()"))
    keeper_pid = warden.keeper_pid
    os.kill(keeper_pid, signal.SIGSTOP)
    # The pause: nothing runs in this process either.
    subprocess.run(["sleep", str(10 * keeper_client.PING_S)], check=True)  # noqa: ASYNC221
    assert await process.alive() == 1
    assert warden.keeper_pid == keeper_pid
    assert await process.end(0) == ()


async def test_slow_start_of_a_program_is_given_up(warden: Warden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden_module, "EXEC_S_MAX", 0.0)
    mark, keeper_pid = new_mark(), warden.keeper_pid
    with pytest.raises(ProcessFailed, match="did not start within 0 s"):
        await warden.run(spec("sleep", "1000", mark=mark))
    assert marked(mark) == []
    assert warden.keeper_pid == keeper_pid


async def test_hung_keeper_does_not_prevent_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_client, "KILL_S_MAX", 0.5)
    warden = Warden()
    await warden.start()
    keeper_pid = warden.keeper_pid
    with hung(keeper_pid):
        await warden.close()
        await until(lambda: not is_alive(keeper_pid))
