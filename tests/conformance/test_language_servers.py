"""Language servers: findings after edits, questions, renames; servers that hang, flood, die; a bridge that dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.harness import Endpoint, Json, Peer, Server, Stream, open_http
from tests.conformance.test_attacks_permissions import outputs
from tests.conformance.test_i_agent import call
from tests.source import ROOT

PYLSP = Path(sys.executable).parent / "pylsp"
#: Installed by scripts/web, as a tool for the page.
TYPESCRIPT = ROOT / "web" / "node_modules" / ".bin" / "typescript-language-server"
HOSTILE = Path(__file__).parent / "hostile_language_server.py"


def config(port: int) -> str:
    """pylsp, and a hostile server per behaviour: the files of "hang" have the extension .hang."""
    entries = [f'[lsp]\nenabled = true\n[lsp.servers.pylsp]\ncommand = "{PYLSP}"\n']
    if TYPESCRIPT.exists():
        entries.append(f'[lsp.servers.typescript]\ncommand = "{TYPESCRIPT}"\nargs = ["--stdio"]\n')
    for kind in ("hang", "flood", "die", "mute"):
        command = f'command = "{sys.executable}"\nargs = ["{HOSTILE}", "{kind}", "{port}"]\n'
        entries.append(f'[lsp.servers.{kind}]\n{command}extensions = [".{kind}"]\n')
    return "\n".join(entries)


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    """A port of this machine, which hostile servers try to reach."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture(scope="module")
def server(listener: socket.socket, endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if "KEDGE_URL" in os.environ:
        pytest.skip("needs a server with its own configuration")
    listener.setblocking(False)
    port = listener.getsockname()[1]
    server = Server(tmp_path_factory.mktemp("lsp"), endpoint.hosted.url, config(port)).start()
    yield server
    server.stop()


@pytest.fixture
async def peer(server: Server, tmp_path: Path) -> AsyncIterator[Peer]:
    async with open_http(server.url, server.token) as http:
        (tmp_path / "project").mkdir()
        yield await Peer(http, tmp_path / "project").open()


async def did(peer: Peer, session: str, *calls: str) -> list[Json]:
    """Return the results of calls that are made one by one in one Run."""
    run_id = (await peer.submit(session, f"script: {' | step | '.join(calls)} | say over"))["run_id"]
    assert (await peer.wait(run_id))["outcome"] == "completed"
    return outputs(await peer.messages(session))[-len(calls) :]


async def editing(peer: Peer) -> str:
    session = await peer.session()
    await peer.set_mode(session, "edits")
    return session


async def condition(peer: Peer, name: str) -> Json:
    states: list[Json] = await peer.call("GET", f"{peer.at}/extensions")
    return next(state for state in states if state["kind"] == "lsp" and state["name"] == name)


def reported(name: str, condition: str) -> Callable[[Stream], bool]:
    def is_reported(stream: Stream) -> bool:
        states = [frame.payload for frame in stream.of("extension")]
        return any((state["name"], state["condition"]) == (name, condition) for state in states)

    return is_reported


async def started(peer: Peer, session: str) -> None:
    """Start pylsp with a first edit: app.py has a function."""
    async with peer.stream(deltas=1) as stream:
        await did(peer, session, call("write", path="app.py", content="def add(one):\n    return one\n"))
        await stream.until(reported("pylsp", "ready"))


async def test_an_edit_reports_its_new_findings_once(peer: Peer) -> None:
    session = await editing(peer)
    assert (await condition(peer, "pylsp"))["condition"] == "idle"
    (peer.directory / "old.py").write_text("import os\nprint(older)\n")
    await started(peer, session)
    broken, unrelated, _, older = await did(
        peer,
        session,
        call("edit", path="app.py", old_string="return one", new_string="return one + missing"),
        call("edit", path="app.py", old_string="def add(one)", new_string="\n\ndef add(one, two=1)"),
        call("view", path="old.py"),
        call("edit", path="old.py", old_string="import os", new_string=""),
    )
    assert broken["content"].count("app.py:2: error: undefined name 'missing' [pyflakes]") == 1
    (found,) = json.loads(broken["metadata"])["diagnostics"]
    assert (found["path"], found["line"], found["severity"]) == ("app.py", 2, "error")
    assert "missing'" not in unrelated["content"]
    assert "diagnostics" not in unrelated["metadata"]
    assert "older" not in older["content"].partition("Language server")[2], "it was there before the edit"


async def test_hostile_servers_do_not_fail_an_edit(peer: Peer, server: Server, listener: socket.socket) -> None:
    session = await editing(peer)
    kinds = ("hang", "flood", "die", "mute")
    writes = (call("write", path=f"x.{kind}", content="one\n") for kind in kinds)
    edits = (call("edit", path=f"x.{kind}", old_string="one", new_string="two") for kind in kinds)
    async with peer.stream(deltas=1) as stream:
        await did(peer, session, " | ".join(writes), " | ".join(edits))
        for result in outputs(await peer.messages(session)):
            assert not result["is_error"]
            assert len(result["content"]) < 10_000
            assert "\x1b" not in result["content"]
        assert [(peer.directory / f"x.{kind}").read_text() for kind in kinds] == ["two\n"] * 4
        await stream.until(reported("die", "failed"))
        await stream.until(reported("flood", "ready"))
    assert "ended unexpectedly" in (await condition(peer, "die"))["error"]
    assert (await condition(peer, "hang"))["condition"] == "starting"
    assert "Traceback" not in server.log
    if (await peer.reply("PUT", f"{peer.at}/sessions/{session}", {"mode": "auto"})).status_code != 409:
        assert not (peer.directory / "escaped").exists()
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_a_killed_bridge_is_started_again(peer: Peer, server: Server) -> None:
    session = await editing(peer)
    await started(peer, session)
    async with peer.stream(deltas=1) as stream:
        (pid,) = bridges(server, peer.directory)
        os.kill(pid, signal.SIGKILL)
        await stream.until(reported("pylsp", "failed"))
        (first,) = await did(peer, session, call("edit", path="app.py", old_string="one\n", new_string="two\n"))
        assert not first["is_error"]
        await stream.until(reported("pylsp", "ready"))
    (late,) = await did(peer, session, call("write", path="other.py", content="x = 1\n"))
    assert (first["content"] + late["content"]).count("undefined name 'two'") == 1, "late findings are not lost"
    assert len(bridges(server, peer.directory)) == 1


def bridges(server: Server, directory: Path) -> list[int]:
    """Return the bridges of one workspace, by their command and working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")
            if command[-3:-1] == [b"kedge.bridge.bridge_worker", b"lsp"] and os.readlink(process / "cwd") == str(
                directory
            ):
                found.append(int(process.name))
    return found


async def test_questions_name_places_with_their_lines(peer: Peer) -> None:
    (peer.directory / "app.py").write_text("def add(one):\n    return one\n")
    (peer.directory / "use.py").write_text("from app import add\n\nprint(add(1))\n")
    (peer.directory / "hidden.py").write_text("from app import add\n")
    session = await peer.session()
    script = " | step | ".join(
        (
            call("code", operation="references", path="app.py", symbol="add", line=1),
            call("code", operation="definition", path="use.py", symbol="add", line=3),
            call("code", operation="symbols", path="app.py"),
            call("code", operation="hover", path="use.py", symbol="add"),
            call("code", operation="hover", path="use.py", symbol="subtract"),
            call("code", operation="symbols", path="hidden.py"),
        )
    )
    await peer.set_mode(session, "plan")  # they only read
    run_id = (await peer.submit(session, f"script: {script} | say over", deny=["view(hidden.py)"]))["run_id"]
    await peer.wait(run_id)
    references, definition, symbols, hover, unknown, denied = outputs(await peer.messages(session))
    assert references["content"].splitlines() == [
        "app.py:1: def add(one):",
        "use.py:1: from app import add",
        "use.py:3: print(add(1))",
    ]
    assert definition["content"] == "app.py:1: def add(one):"
    assert symbols["content"] == "app.py:1: function add"
    assert "add(one)" in hover["content"]
    assert "subtract does not occur in use.py" in unknown["content"]
    assert denied["is_error"]


async def test_a_rename_is_one_approved_change_that_undo_reverts(peer: Peer) -> None:
    app, use = peer.directory / "app.py", peer.directory / "use.py"
    app.write_text("def add(one):\n    return one\n")
    use.write_text("from app import add\r\nprint('\N{GRINNING FACE}', add(1))\r\n")
    before = [app.read_bytes(), use.read_bytes()]
    session = await peer.session()
    script = f"script: {call('rename', path='app.py', symbol='add', line=1, new_name='total')} | say over"
    async with peer.stream(session_id=session, deltas=1) as stream:
        run_id = (await peer.submit(session, script))["run_id"]
        (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        assert asked.payload["params"]["files"] == ["app.py", "use.py"]
        diff = asked.payload["params"]["diff"]
        assert (
            "-print('\N{GRINNING FACE}', add(1))\n+from app import total\n+print('\N{GRINNING FACE}', total(1))" in diff
        )
        use.write_text("# changed\n")
        await peer.answer(asked.payload["id"], "allow")
        await stream.until_complete(run_id)
        assert (
            "use.py has changed meanwhile; nothing was written" in outputs(await peer.messages(session))[-1]["content"]
        )
        assert app.read_bytes() == before[0]
        use.write_bytes(before[1])
        run_id = (await peer.submit(session, script))["run_id"]
        asked = (await stream.until(lambda stream: stream.of("permission_request")[1:]))[0]
        await peer.answer(asked.payload["id"], "allow")
        await stream.until_complete(run_id)
    assert b"total" in app.read_bytes()
    assert use.read_bytes() == before[1].replace(b"add", b"total")
    await peer.call("POST", f"{peer.at}/sessions/{session}/undo", {})
    assert [app.read_bytes(), use.read_bytes()] == before
    await peer.set_mode(session, "plan")
    (refused,) = await did(peer, session, script.removeprefix("script: ").removesuffix(" | say over"))
    assert "plan mode" in refused["content"]


async def test_cancel_stops_a_question_that_hangs(peer: Peer) -> None:
    (peer.directory / "x.mute").write_text("word\n")
    (peer.directory / "app.py").write_text("")
    session = await peer.session()
    async with peer.stream(deltas=1) as stream:
        script = call("code", operation="references", path="x.mute", symbol="word")
        run_id = (await peer.submit(session, f"script: {script} | say over"))["run_id"]
        await stream.until(reported("mute", "ready"))
        await peer.cancel(session)
        (end,) = await stream.until_complete(run_id)
    assert (end["outcome"], end["cleanup"]) == ("cancelled", "clean")


@pytest.mark.skipif(not TYPESCRIPT.exists(), reason="scripts/web has not installed it")
async def test_typescript_reports_findings_after_edits(peer: Peer) -> None:
    (peer.directory / "tsconfig.json").write_text("{}")
    session = await editing(peer)
    lines = "export function add(one: number): number {\n  return one;\n}\n"
    async with peer.stream(deltas=1) as stream:
        await did(peer, session, call("write", path="app.ts", content=lines))
        await stream.until(reported("typescript", "ready"))
    await did(peer, session, call("code", operation="hover", path="app.ts", symbol="add"))  # loads the project
    for _ in range(10):  # an edit waits two seconds for findings, and on a busy machine they may take longer
        broken, fixed = await did(
            peer,
            session,
            call("edit", path="app.ts", old_string="return one", new_string="return 'one'"),
            call("edit", path="app.ts", old_string="return 'one'", new_string="return one"),
        )
        assert "error" not in fixed["content"]
        if "app.ts:2: error: Type 'string' is not assignable to type 'number'." in broken["content"]:
            return
    pytest.fail(f"no finding was reported: {broken['content']}")
