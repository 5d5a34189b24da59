"""The side panel: todos, changed files, other clients and the queue."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len

from kedge.client.client import Client
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.panels.side_panel import PANEL_CELLS, TEXT_CELLS, SidePanel, panel_lines
from kedge.tui.panels.transcript_panel import TranscriptPanel
from kedge.wire import models as m
from tests.client.process import Server
from tests.tui.rig import Rig, rig

WIDE = (140, 40)


def call(tool: str, **arguments: object) -> str:
    return f"tool {tool} {json.dumps(arguments, ensure_ascii=False)}"


def panel(r: Rig) -> str:
    """Return the text of the panel."""
    return "\n".join(text for text, _ in r.app.query_one(SidePanel)._lines)


async def test_wide_screen_shows_todos_with_states(server: Server) -> None:
    async with rig(server, size=WIDE) as r:
        await r.shows("Todos")
        todos = [
            {"content": "Read the code", "status": "completed"},
            {"content": "Write the tests", "status": "in_progress", "active_form": "Writing the tests"},
            {"content": "Run them all", "status": "pending"},
        ]
        await r.send(f"script: {call('todos', todos=todos)} | say listed")
        await r.shows("Todos 1/3", "✓ Read the code", "● Writing the tests", "○ Run them all")


async def test_todos_are_wrapped_and_harmless(server: Server) -> None:
    async with rig(server, size=WIDE) as r:
        todos = [{"content": "漢字" * 40 + " \x1b[31m[bold]red", "status": "pending"}]
        await r.send(f"script: {call('todos', todos=todos)} | say listed")
        await r.shows("○ 漢字", "[bold]red")
        assert "\x1b" not in r.text
        lines = panel(r).splitlines()
        assert all(cell_len(line) <= TEXT_CELLS for line in lines)
        assert "".join("".join(lines).split()).count("漢字") == 40


@pytest.mark.found(
    "issue 20", "the panel listed only files that changed since the screen was opened; it lists those of the session"
)
async def test_changed_files_are_listed_until_undone(server: Server) -> None:
    (server.home.workspace / "there.txt").write_text("old\n")
    async with rig(server, size=WIDE) as r:
        connection = r.app.connection
        await r.shows("Files changed")
        await connection.client.change_session(connection.id, r.app.session_id, mode="yolo")
        steps = [
            call("write", path="new/漢字.txt", content="x\n"),
            call("view", path="there.txt"),
            call("write", path="there.txt", content="new\n"),
            call("write", path="new/漢字.txt", content="y\n"),
        ]
        await r.send("script: " + " | step | ".join(steps) + " | say written")
        await r.shows("Files changed 2", "+ new/漢字.txt", "~ there.txt")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        session_id = r.app.session_id
    async with rig(server, size=WIDE, session_id=session_id) as r:
        await r.shows("Files changed 2", "+ new/漢字.txt", "~ there.txt")
        await r.app.connection.client.undo(r.app.connection.id, session_id)
        await r.shows_no("new/漢字.txt\n")
        await r.until(lambda: panel(r).endswith("Files changed\nnone"))


async def test_panel_shows_queue_and_other_clients(server: Server, client: Client) -> None:
    async with rig(server, size=WIDE) as r:
        workspace = await client.create_workspace(str(server.home.workspace))
        await client.set_current_session(workspace.id, r.app.session_id)
        await r.send("script: hold side-never | say x")
        await r.shows("working", "1 other client")
        await r.send("script: say second")
        await r.shows("1 prompt queued")
        await r.send("script: say third")
        await r.shows("2 prompts queued")
        await r.press("escape", "escape")
        await r.shows_no("prompts queued")


async def test_panel_is_shown_from_120_columns(server: Server) -> None:
    async with rig(server, size=(119, 30)) as r:
        await r.shows("enter: send")
        assert "Todos" not in r.text
        await r.pilot.resize_terminal(120, 30)
        await r.shows("Todos", "Files changed")
        assert r.app.query_one(TranscriptPanel).outer_size.width <= 120 - PANEL_CELLS
        await r.pilot.resize_terminal(80, 24)
        await r.shows_no("Todos")
        assert r.app.query_one(TranscriptPanel).outer_size.width == 80


async def test_ctrl_b_toggles_the_panel(server: Server) -> None:
    async with rig(server, size=WIDE) as r:
        await r.shows("Todos")
        await r.press("ctrl+b")
        await r.shows_no("Todos")
        assert r.app.query_one(TranscriptPanel).outer_size.width == WIDE[0]
        await r.press("ctrl+b")
        await r.shows("Todos")


@pytest.mark.parametrize("size", [(100, 30), (60, 16)])
async def test_ctrl_b_overlays_the_panel_on_a_narrow_screen(server: Server, size: tuple[int, int]) -> None:
    async with rig(server, size=size) as r:
        await r.shows("enter: send")
        await r.press("ctrl+b")
        await r.shows("Todos", "Files changed")
        assert r.app.query_one(TranscriptPanel).outer_size.width == size[0], "the lines of the transcript do not change"
        await r.send("script: say still typing")  # the prompt keeps the focus
        await r.shows("script: say still")
        await r.press("ctrl+b")
        await r.shows_no("Todos")


def test_long_paths_keep_their_ends_and_extra_files_are_counted() -> None:
    view = WorkspaceView()
    files = [m.ChangedFileBody(path=f"/w/{'deep/' * 20}file-{number}.py", change="updated") for number in range(40)]
    view.load_files("s", m.ChangedFiles(count=40, files=files), 1)
    lines = [text for text, _ in panel_lines(view, "s", "/w")]
    assert all(cell_len(line) <= TEXT_CELLS for line in lines)
    assert any(line.startswith("~ …") and line.endswith("file-0.py") for line in lines)
    assert "  and 10 more" in lines
