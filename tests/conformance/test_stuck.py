"""Readers that stay connected and do not read: they cost little, delay no other client, and are dropped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from proof.figures import IS_LONG, proof, size
from tests.conformance.harness import Peer, Server, open_http
from tests.conformance.loops import ROOT, Address, address_of, new_client
from tests.conformance.test_d_readers import much_text
from tests.conformance.watching import memory_peak_kb, metric, until_metric

#: Text of the Run: more than the kernel buffers for a reader that does not read. Bytes.
TEXT_BYTES = 8_000_000
#: Memory of a reader with a full socket: a read of the ring (256 kB and a frame, here of 0.5 MB), a copy in the send
#: buffer, and both twice for a fragmented allocator. The complete text would be 8 MB. kB.
READER_KB_MAX = 3 * 1024
#: The interval of a reader of single bytes: it stands for a second, as `stall_s` below for a minute. Seconds.
TRICKLE_S = 0.01

#: Opens streams and prints a line; then the test stops the process.
OPENER = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from tests.conformance.test_stuck import ask
held = [ask(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]) for _ in range(int(sys.argv[6]))]
print("open", flush=True)
sys.stdin.read()
"""


def ask(host: str, port: int, token: str, workspace: str) -> socket.socket:
    """Open a stream and read only the head."""
    made = socket.socket()
    # Small, so that unread data stays in the server and not in the kernel.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((host, port))
    made.sendall(
        f"GET /v1/workspaces/{workspace}/events?client_id={new_client()}&deltas=1 HTTP/1.1\r\n"
        f"{Address(host, port, token).head}\r\n".encode()
    )
    head = b""
    while b": connected" not in head:
        head += made.recv(512)
    made.setblocking(False)
    return made


def trickle(reader: socket.socket) -> None:
    """Read one byte per interval, forever."""
    with contextlib.suppress(BlockingIOError):
        try:
            if not reader.recv(1):
                return
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                return  # dropped, or closed by the test
            raise
    asyncio.get_running_loop().call_later(TRICKLE_S, trickle, reader)


@contextlib.contextmanager
def stopped_process(address: Address, workspace: str, streams: int) -> Iterator[None]:
    """A client process that is stopped while its streams are open."""
    command = [sys.executable, "-c", OPENER, str(ROOT), address.host, str(address.port), address.token, workspace]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([*command, str(streams)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.proof
@pytest.mark.timeout(600 if IS_LONG else 180)
async def test_stuck_and_slow_readers_cost_little_and_are_dropped(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    each = size(20, 200)
    server = own_server("[server]\nheartbeat_s = 0.5\nstall_s = 2")
    with proof("G15", "stuck readers", "kept, or at the cost of others") as figure:
        async with server.peer(workspace) as peer, peer.stream(deltas=1) as reader:
            await much_text(peer, TEXT_BYTES, reader)
            before_kb, address = memory_peak_kb(server.pid), address_of(server.url, server.token)
            with ExitStack() as stuck:
                for _ in range(each):
                    stuck.enter_context(ask_for(address, peer.workspace))  # never read from
                slow = [stuck.enter_context(ask_for(address, peer.workspace)) for _ in range(each)]
                for one in slow:
                    trickle(one)
                await asyncio.to_thread(stuck.enter_context, stopped_process(address, peer.workspace, each))
                assert await metric(peer.http, "kedge_streams_open") == 1 + 3 * each
                # Check that the reading client gets the whole text.
                await much_text(peer, TEXT_BYTES, reader)
                await until_metric(peer.http, "kedge_streams_open", lambda open_now: open_now == 1)
            grown_kb = memory_peak_kb(server.pid) - before_kb
            assert grown_kb < 3 * each * READER_KB_MAX, f"grew by {grown_kb} kB for {3 * each} readers"
        figure.count = 3 * each
        figure.notes["memory for each at the most"] = f"{grown_kb / 3 / each:.0f} kB"


def ask_for(address: Address, workspace: str) -> socket.socket:
    return ask(address.host, address.port, address.token, workspace)


# --- a lost network ---------------------------------------------------------------------------------------------------

#: A network namespace with a server and its readers. On a line of input the network is removed: no FIN, no reset, no
#: acknowledgement. Only the Unix socket still reaches the server.
VANISHING = """
import ctypes, fcntl, os, socket, struct, subprocess, sys
sys.path.insert(0, sys.argv[1])
from tests.conformance.loops import address_of
from tests.conformance.test_stuck import ask

def loopback(up):
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", up))  # SIOCSIFFLAGS, IFF_UP

libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
if libc.unshare(0x40000000 | (0 if user == 0 else 0x10000000)):  # CLONE_NEWNET, CLONE_NEWUSER
    print("none", flush=True)
    sys.exit()
if user:
    open("/proc/self/setgroups", "w").write("deny")
    open("/proc/self/uid_map", "w").write(f"{user} {user} 1")
    open("/proc/self/gid_map", "w").write(f"{group} {group} 1")
loopback(1)
hosts = ["--host", "tcp://127.0.0.1:0", "--host", f"unix://{sys.argv[2]}"]
server = subprocess.Popen([sys.executable, "-m", "kedge", "serve", *hosts], stdout=subprocess.PIPE, text=True)
try:
    address = address_of(server.stdout.readline().split()[-1], os.environ["KEDGE_TOKEN"])
    server.stdout.readline()
    print("up", server.pid, flush=True)
    workspace = sys.stdin.readline().strip()
    held = [ask(address.host, address.port, address.token, workspace) for _ in range(int(sys.argv[3]))]
    print("open", flush=True)
    sys.stdin.readline()
    loopback(0)
    print("gone", flush=True)
    sys.stdin.read()
finally:
    server.kill()
    server.wait()
"""


@pytest.mark.long  # the kernel drops the connections after half a minute
@pytest.mark.proof
@pytest.mark.timeout(300)
async def test_readers_with_a_lost_network_are_dropped(tmp_path: Path, workspace: Path) -> None:
    count = 100
    server = Server(tmp_path / "server", "http://127.0.0.1:9/v1", "[server]\nheartbeat_s = 0.5")
    environment = {**server.environment, "KEDGE_TOKEN": "a-token-in-a-network-of-its-own", "PYTHONPATH": f"{ROOT}/src"}
    with proof("G15", "half-open connections", "kept") as figure:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            VANISHING,
            str(ROOT),
            str(server.socket),
            str(count),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if (await process.stdout.readline()).startswith(b"none"):
                pytest.skip("this machine has no network namespaces")
            async with open_http("", "", server.socket) as http:
                peer = await Peer(http, workspace).open()
                async with peer.stream() as reader:
                    process.stdin.write(f"{peer.workspace}\n".encode())
                    assert await process.stdout.readline() == b"open\n"
                    assert await metric(http, "kedge_streams_open") == 1 + count
                    process.stdin.write(b"vanish\n")
                    assert await process.stdout.readline() == b"gone\n"
                    async with asyncio.timeout(150):
                        while await metric(http, "kedge_streams_open") > 1:
                            await reader.until(next_heartbeat(reader.comments.count("heartbeat")))
                    session = await peer.session("still here")
                    await reader.until(lambda reader: any(frame.payload["id"] == session for frame in reader.frames))
        finally:
            process.stdin.close()
            await process.wait()
        figure.count = count


def next_heartbeat(seen: int) -> Callable[[object], bool]:
    return lambda reader: reader.comments.count("heartbeat") > seen  # type: ignore[attr-defined]
