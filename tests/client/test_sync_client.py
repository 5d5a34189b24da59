from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

import kedge
from kedge.testing import HostedEndpoint
from kedge.wire.models import PermissionRequest
from tests.client.fixtures import server_pids
from tests.client.process import Home, Server


def test_three_line_script_starts_a_server(in_home: Home) -> None:
    with kedge.connect() as k:
        run = k.session().run("hello")
        assert (run.text, run.outcome, run.error, run.state) == ("You said: hello", "completed", "", "ended")


def test_session_is_reopened_with_its_messages(server: Server) -> None:
    with kedge.connect(server.home.workspace, server.host) as k:
        session = k.session(title="Mine")
        session.run("one")
        again = k.session(session.id)
        again.run("two")
        texts = [part.data["text"] for message in again.messages() for part in message.parts if part.type == "text"]
        assert texts == ["one", "You said: one", "two", "You said: two"]
        assert [found.title for found in k.sessions()] == ["Mine"]
        assert len(again.runs()) == 2
        again.delete()
        with pytest.raises(kedge.SessionNotFound):
            k.session(session.id)


def test_run_can_be_awaited_and_cancelled(server: Server, endpoint: HostedEndpoint) -> None:
    with kedge.connect(server.home.workspace, server.host) as k:
        session = k.session()
        run = session.submit("script: say begun | hang")
        with pytest.raises(TimeoutError, match="is active"):
            run.wait(timeout_s=0)
        assert (run.outcome, run.text) == (None, "")
        queued = session.submit("script: say next")
        assert [covered.was for covered in run.cancel().covered] == ["active"]
        assert run.wait().outcome == "cancelled"
        assert queued.wait().outcome == "completed"
        stuck = session.submit("script: hang")
        assert [covered.run_id for covered in session.cancel().covered] == [stuck.run_id]
        assert stuck.wait().outcome == "cancelled"
        failed = session.run("script: fail 400 no such thing")
        assert failed.outcome == "failed"
        assert failed.error
        assert session.run("script: hang", timeout_s=0.05).reason == "timeout"


def test_prompt_is_streamed(server: Server) -> None:
    with kedge.connect(server.home.workspace, server.host) as k:
        events = list(k.session().stream("script: words 10"))
        assert events[-1].type == "run_complete"
        assert events[-1].payload["outcome"] == "completed"
        left = k.session().stream("script: say a | hang")
        next(left)
        left.close()


WRITE = (
    'script: tool write {"path": "a.txt", "content": "x"} | tool question {"questions": [{"question": "?"}]} | say ok'
)


def test_approvals_are_passed_to_the_caller(server: Server) -> None:
    asked: list[str] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(f"{request.tool_name} {request.params['path']}")
        return len(asked) > 1

    file = server.home.workspace / "a.txt"
    with kedge.connect(server.home.workspace, server.host) as k:
        session = k.session()
        assert session.run(WRITE, approve).outcome == "completed"
        assert not file.exists()
        assert session.run(WRITE, approve).text == "ok"
        assert file.exists()
        assert asked == ["write a.txt", "write a.txt"]
        assert [Path(name).name for name in session.undo().files] == ["a.txt"]
        assert session.shell("echo hi").output.strip() == "hi"


def test_approval_is_answered_explicitly(server: Server) -> None:
    with kedge.connect(server.home.workspace, server.host) as k:
        session = k.session()
        for event in session.stream('script: tool write {"path": "a.txt", "content": "x"} | say ok'):
            if event.type == "permission_request":
                (asked,) = k.approvals()
                assert k.answer(asked.id, "deny", "not this one")
                assert not k.answer(asked.id, True), "somebody was first"
        assert k.approvals() == []
        assert "not this one" in str(session.messages())


def test_run_without_an_approver_ends(server: Server) -> None:
    with kedge.connect(server.home.workspace, server.host) as k:
        run = k.session().run(WRITE)
        assert (run.outcome, run.reason) == ("failed", "approval_needed")
        assert k.session().run(WRITE, allow=["write"]).outcome == "completed"


def test_sync_client_works_inside_a_running_loop(server: Server) -> None:
    async def program() -> str:
        with kedge.connect(server.home.workspace, server.host) as k:
            return k.session().run("inside").text

    assert asyncio.run(program()) == "You said: inside"


def test_server_restart_is_transparent(own_server: Server, endpoint: HostedEndpoint) -> None:
    with kedge.connect(own_server.home.workspace, own_server.host) as k:
        session = k.session()
        run = session.submit("script: say one | hold facade-1 | say two")
        own_server.stop()
        own_server.start()
        endpoint.release("facade-1")
        assert run.wait().outcome in ("interrupted", "completed")
        assert session.run("again").text == "You said: again"


def test_closed_connection_leaves_no_thread(server: Server) -> None:
    before = threading.active_count()
    with pytest.raises(kedge.Unreachable):
        kedge.connect(host="unix:///nowhere.sock")
    k = kedge.connect(server.home.workspace, server.host)
    k.close()
    k.close()
    with pytest.raises(kedge.KedgeError, match="is closed"):
        k.session()
    assert threading.active_count() == before


def test_importing_kedge_loads_only_itself() -> None:
    code = "import sys; before = set(sys.modules); import kedge; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("kedge.")] == []
    assert not {"asyncio", "httpx2", "msgspec", "click"} & set(loaded)
    assert "kedge" in loaded


def test_public_api_matches_all() -> None:
    for name in kedge.__all__:
        assert getattr(kedge, name) is not None
    assert set(kedge.__all__) <= set(dir(kedge))
    with pytest.raises(AttributeError):
        kedge.no_such_name  # noqa: B018


class MovedClock:
    """The clock of retries, advanced by the test."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


@pytest.mark.found(
    "a review of the client: a restart during a Run of more than half a minute",
    "the retry deadline was counted from the start of the wait, so that it had passed when the server was down for a "
    "second; it is now counted from the loss of the server",
)
def test_restart_late_in_a_long_wait_is_transparent(
    own_server: Server, endpoint: HostedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovedClock()
    monkeypatch.setattr("kedge.client.retry.loop_time", clock.monotonic)
    with kedge.connect(own_server.home.workspace, own_server.host) as k:
        run = k.session().submit("script: tag late | say one | hold facade-2 | say two")
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(run.wait)
            endpoint.wait_until(lambda endpoint: endpoint.open_by_tag["late"] == 1)
            clock.passed_s = 3600.0
            own_server.kill()
            endpoint.release("facade-2")
            own_server.start()
            assert waiting.result(30).outcome == "completed"


def test_stream_starts_after_the_server_stopped(in_home: Home) -> None:
    with kedge.connect() as k:
        session = k.session()
        for pid in server_pids(in_home):
            os.kill(pid, signal.SIGKILL)
        assert [event.type for event in session.stream("hello")][-1] == "run_complete"


class Relay(threading.Thread):
    """A proxy between client and server that closes the connection instead of returning the answer to a cancel."""

    def __init__(self, place: Path, server: str) -> None:
        super().__init__(daemon=True)
        self.host = f"unix://{place}"
        self.cancels = 0
        self._server = server.removeprefix("unix://")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(place))
        self._listening.listen()

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._server)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for side, other in ((client, server), (server, client)):
                    if side not in ready:
                        continue
                    data = side.recv(65536)
                    is_cancel = side is client and b"/cancel HTTP/1.1" in data
                    self.cancels += is_cancel
                    if not data:
                        return
                    other.sendall(data)
                    if is_cancel:
                        server.recv(65536)  # the cancel was done, but the client receives no answer
                        return

    def close(self) -> None:
        self._listening.close()


@pytest.mark.found(
    "a review of the client: the answer to a cancel that is lost",
    "`session.cancel()` was resent automatically, and cancelled Runs that others had started in between, which a "
    "cancel must never do; the client now raises an error that the answer was lost",
)
def test_b6_cancel_with_a_lost_answer_is_not_resent(server: Server, tmp_path: Path) -> None:
    relay = Relay(tmp_path / "relay.sock", server.host)
    relay.start()
    with closing(relay), kedge.connect(server.home.workspace, relay.host) as k:
        session = k.session()
        run = session.submit("script: say begun | hang")
        with pytest.raises(kedge.Unreachable):
            session.cancel()
        assert run.wait().outcome == "cancelled"
        assert relay.cancels == 1
