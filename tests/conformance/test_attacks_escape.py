"""Attacks of tools on the server, on machines without namespaces. Both run as the same user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.conformance.harness import Endpoint, Server, unique
from tests.conformance.test_i_agent import call
from tests.warden.support import is_alive

#: A server that runs as on a machine without namespaces.
PROGRAM = """
import kedge.warden.warden
kedge.warden.warden.Warden.__init__.__defaults__ = ("subreaper", "any")
from kedge.cli.main import main
main()
"""
#: A daemon that stops and kills its overseer and the keeper, and asks the server for mode yolo.
DAEMON = """
import os, signal, socket, sys
socket_file, route = sys.argv[1:]
def parent_of(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
overseer = parent_of(os.getppid())
keeper = parent_of(overseer)
if os.fork():
    signal.pause()
os.setsid()
if os.fork():
    os._exit(0)
open("daemon", "w").write(str(os.getpid()))
for number in (signal.SIGSTOP, signal.SIGKILL):
    for pid in (keeper, overseer):
        os.kill(pid, number)
body = b'{"mode":"yolo"}'
head = f"PUT {route} HTTP/1.1\\r\\nHost: localhost\\r\\n"
head += f"Content-Type: application/json\\r\\nContent-Length: {len(body)}"
while True:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(socket_file)
            connection.sendall(head.encode() + b"\\r\\n\\r\\n" + body)
            connection.recv(4096)
        except OSError:
            pass
"""
#: The environment and the memory of the server, as another process of the user sees them.
LOOK = """
import sys
for name in ("environ", "mem", "maps", "fd/0", "cwd"):
    try:
        open(f"/proc/{sys.argv[1]}/{name}", "rb").close()
        print(name)
    except PermissionError:
        pass
    except OSError:
        print(name)
"""


class SubreaperServer(Server):
    def start(self, *_: object, **__: object) -> Self:
        hosts = ("--host", "tcp://127.0.0.1:0", "--host", f"unix://{self.socket}")
        with (self.home / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, "serve", *hosts],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        self.url = line.removeprefix("listening on ").replace("tcp://", "http://")
        self.token = (self.data_dir / "token").read_text().strip()
        return self


@pytest.fixture
def server(endpoint: Endpoint) -> Iterator[SubreaperServer]:
    if "KEDGE_URL" in os.environ:
        pytest.skip("needs a server process of its own")
    with tempfile.TemporaryDirectory(prefix="kedge-") as name:  # short enough for a socket
        server = SubreaperServer(Path(name), endpoint.hosted.url)
        yield server.start()
        server.stop()


@pytest.mark.found(
    "attack 10",
    "without namespaces, a command that killed its overseer and the keeper survived its Run, and the server took its "
    "answers to approvals; its parent is the server now, which refuses its requests and kills it",
)
async def test_an_escaped_daemon_is_refused_and_ended(server: SubreaperServer, workspace: Path) -> None:
    (workspace / "daemon.py").write_text(DAEMON)
    async with server.peer(workspace) as kedge:
        session = await kedge.session()
        route = f"/v1{kedge.at}/sessions/{session}"
        command = f"{sys.executable} -I -S daemon.py {server.socket} {route}; true"
        script = f"script: {call('bash', command=command)} | say over"
        run_id = (await kedge.submit(session, script, mode="yolo"))["run_id"]
        run = await kedge.wait(run_id)
        assert (run["outcome"], run["cleanup"]) == ("completed", "clean")
        daemon = int((workspace / "daemon").read_text())
        if survived := is_alive(daemon):
            os.kill(daemon, signal.SIGKILL)
        assert not survived
        assert await kedge.mode(session) == "ask"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.found(
    "attack 11",
    "without namespaces, a command read the API keys in the server's /proc/PID/environ; the server is not dumpable any "
    "more, so that its environment, memory and files are closed to other processes of the user",
)
def test_the_server_is_closed_to_processes_of_its_user() -> None:
    unprivileged: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    command = [sys.executable, "-P", "-m", "kedge"]
    with tempfile.TemporaryDirectory(prefix="kedge-") as home:
        if unprivileged:
            os.chown(home, 65534, 65534)
        own = {"HOME": home, "KEDGE_DATA_DIR": f"{home}/data", "OPENAI_API_KEY": unique("canary")}
        environment = {**os.environ, **own}
        if subprocess.run(
            ["env", *command, "--version"], cwd="/", env=environment, check=False, **unprivileged
        ).returncode:
            pytest.skip("another user cannot run kedge from here")
        server = subprocess.Popen(
            [*command, "serve", "--host", f"unix://{home}/k.sock"],
            cwd="/",
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            **unprivileged,
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("listening")
            look = [sys.executable, "-I", "-S", "-c", LOOK, str(server.pid)]
            done = subprocess.run(look, capture_output=True, text=True, check=True, **unprivileged)
        finally:
            server.kill()
            server.communicate()
    assert done.stdout.split() == []
