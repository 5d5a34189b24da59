"""A process without `network` reaches nothing outside, and its own servers at localhost still work."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kedge.warden.base import ProcessSpec, WardenFailed
from kedge.warden.warden import Warden
from tests.warden.support import new_mark, read_all, spec
from tests.warden.test_sandbox_mounts import daemon, worked


@pytest.fixture
async def isolating(sandboxed: Warden) -> Warden:
    if sandboxed.sandbox.network is None:
        pytest.skip("this sandbox has no way to take the network away")
    return sandboxed


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server of another program on this machine, over TCP and UDP."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_nothing_outside_is_reached_without_network(isolating: Warden, tmp_path: Path, port: int) -> None:
    abstract = "\0" + new_mark()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        udp = datagrams.getsockname()
        attempts = {
            "tcp": f"socket.create_connection(('127.0.0.1', {port}), 5).recv(9).decode()",
            "udp": f"[socket.socket(2, 2).sendto(b'x', {udp!r}), None][1]",
            "abstract": f"unix({abstract!r})",
            "unix": f"unix({str(tmp_path / 'unix')!r})",
            "raw": "socket.socket(17, 3, 3).close()",
        }
        async with daemon(abstract), daemon(str(tmp_path / "unix")):
            open_ = await worked(isolating, tmp_path, attempts, writable=(str(tmp_path),), reachable=(str(tmp_path),))
            assert {"tcp", "udp", "unix"} <= set(open_)
            assert datagrams.recv(9) == b"x"
            closed = await worked(isolating, tmp_path, attempts, writable=("/var",), network=False)
            assert [name for name in closed if name != "udp"] == []
            with pytest.raises(BlockingIOError):
                datagrams.recv(9)


async def test_families_that_namespaces_share_are_refused(isolating: Warden, tmp_path: Path) -> None:
    """A virtual machine reaches its host by vsock, from any network namespace; io_uring creates sockets, too."""
    if isolating.sandbox.bubblewrap:
        pytest.skip("bubblewrap is not given a filter")
    attempts = [
        "socket.socket(40, 1).close()",
        "socket.socket(38, 5).close()",
        "checked(libc.syscall(425, 4, bytes(120)))",
    ]
    assert await worked(isolating, tmp_path, attempts, writable=(str(tmp_path),), network=False) == []
    pair = ["[pair.close() for pair in socket.socketpair()] and None"]
    assert await worked(isolating, tmp_path, pair, writable=(str(tmp_path),), network=False) == pair


async def test_own_loopback_works_in_a_network_namespace(isolating: Warden, tmp_path: Path) -> None:
    if isolating.sandbox.network != "namespace":
        pytest.skip("without a namespace there are no internet sockets at all")
    own = "[(s := socket.create_server(('127.0.0.1', 0))), socket.create_connection(s.getsockname()), None][2]"
    six = "[(s := socket.create_server(('::1', 0), family=10)), socket.create_connection(s.getsockname()[:2]), None][2]"
    wanted = [own, six] if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6") else [own]
    assert await worked(isolating, tmp_path, wanted, writable=(str(tmp_path),), network=False) == sorted(wanted)


async def test_names_are_not_resolved_by_daemons(isolating: Warden, tmp_path: Path) -> None:
    """A look-up of a host name sends that name to a server of its owner."""
    resolver = Path("/run/nscd")
    if isolating.sandbox.network != "namespace":
        pytest.skip("without a namespace there are no sockets at all")
    try:
        resolver.mkdir()
    except OSError:
        pytest.skip("needs root, and a machine without nscd (another test may have its directory)")
    try:
        async with daemon(address := str(resolver / new_mark())):
            attempts = [f"unix({address!r})"]
            assert await worked(isolating, tmp_path, attempts, writable=(str(tmp_path),)) == attempts
            assert await worked(isolating, tmp_path, attempts, writable=(str(tmp_path),), network=False) == []
    finally:
        shutil.rmtree(resolver)


async def test_network_stays_away_from_descendants(isolating: Warden, tmp_path: Path, port: int) -> None:
    """Neither a nested namespace nor the namespace of the overseer gives it back."""
    script = f"""
        connect='exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3'
        setsid -w bash -c "$connect"
        unshare -Urn bash -c "$connect"
        for pid in 1 $PPID; do nsenter --net=/proc/$pid/ns/net bash -c "$connect"; done
        nsenter -U --preserve-credentials --net=/proc/1/ns/net bash -c "$connect"
    """
    env = {"PATH": "/usr/bin:/bin"}
    process = await isolating.run(
        spec("bash", "-c", script, cwd=str(tmp_path), env=env, writable=(str(tmp_path),), network=False)
    )
    seen = await read_all(process)
    await process.end(0)
    assert b"hello" not in seen


async def test_network_is_not_silently_left_open(tmp_path: Path) -> None:
    """A process is not started where its network cannot be taken away."""
    warden = Warden(sandbox="bubblewrap")
    await warden.start()
    try:
        if warden.sandbox.network is not None:
            pytest.skip("bubblewrap is installed")
        with pytest.raises(WardenFailed, match="no sandbox|network"):
            await warden.run(ProcessSpec(("true",), "/", {}, writable=(str(tmp_path),), network=False))
        with pytest.raises(WardenFailed, match="network"):
            await warden.run(ProcessSpec(("true",), "/", {}, network=False))
    finally:
        await warden.close()
