"""The transcript panel: follow, scroll, fold and select; no control characters reach the terminal."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import Selection
from textual.strip import Strip

from kedge.client.client import Client
from kedge.client.event_stream import StreamEvent
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.panels.transcript_panel import NEWS, TranscriptPanel
from kedge.tui.render.themes import THEMES
from tests.client.process import Server
from tests.tui import story as s
from tests.tui.rig import rig
from tests.tui.story import Json

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Counting(TranscriptPanel):
    """Counts the rows that are painted."""

    painted_rows = 0

    def render_line(self, y: int) -> Strip:
        self.painted_rows += 1
        return super().render_line(y)


class TranscriptApp(App[None]):
    """A transcript alone on a screen."""

    def __init__(self, messages: list[Json]) -> None:
        super().__init__()
        for theme in THEMES.values():
            self.register_theme(theme.textual_theme)
        self.theme = THEMES["dark"].textual_theme.name
        self.animation_level = "none"
        self.view = WorkspaceView()
        self.view.load_conversation("s1", s.bodies(*messages), 1)
        self.position = 100

    def compose(self) -> ComposeResult:
        yield Counting(self.view, THEMES["dark"])

    @property
    def transcript(self) -> Counting:
        return self.query_one(Counting)

    @property
    def lines(self) -> list[str]:
        strips = self.screen._compositor.render_strips()
        # Without the scrollbar, which may move slightly while the text does not.
        return ["".join(segment.text for segment in strip)[:-2].rstrip() for strip in strips]

    def apply(self, *events: StreamEvent | Json) -> None:
        for one in events:
            self.position += 1
            event = one if isinstance(one, StreamEvent) else StreamEvent("message", "updated", one, self.position)
            self.transcript.update_from(self.view.apply(event))


@asynccontextmanager
async def stage(*messages: Json, size: tuple[int, int] = (80, 20)) -> AsyncIterator[tuple[TranscriptApp, Pilot[None]]]:
    app = TranscriptApp(list(messages))
    async with app.run_test(size=size) as pilot:
        app.transcript.show(app.view, app.view.conversations["s1"])
        await pilot.pause()
        yield app, pilot


def many(count: int) -> list[Json]:
    """Messages whose heights are known only after rendering."""
    words = [f"message {n}\n\n" + "| a | b |\n|---|---|\n| 1 | 2 |\n" * (n % 3) for n in range(count)]
    return [s.message(f"m{n}", "assistant", s.text(text), s.finish()) for n, text in enumerate(words)]


async def test_ten_thousand_messages_render_only_the_end() -> None:
    async with stage(*many(10_000)) as (app, pilot):
        assert "  message 9999" in "\n".join(app.lines)
        assert app.transcript._layout.message_renderer.drawn_messages < 100
        app.transcript.scroll_home(animate=False)
        await pilot.pause()
        assert app.lines[0] == "   message 0"
        assert app.transcript._layout.message_renderer.drawn_messages < 200


async def test_scrolling_up_moves_lines_exactly() -> None:
    async with stage(*many(300)) as (app, pilot):
        for _ in range(60):
            before = app.lines
            app.transcript.scroll_relative(y=-5, animate=False)
            await pilot.pause()
            assert app.lines[5:] == before[:-5]


async def test_end_is_followed_until_the_user_scrolls() -> None:
    async with stage(*many(30)) as (app, pilot):
        app.apply(s.message("new", "assistant", s.text("the first news")))
        await pilot.pause()
        assert "the first news" in "\n".join(app.lines)
        app.transcript.scroll_page_up(animate=False)
        await pilot.pause()
        before = app.lines
        assert NEWS.strip() not in "\n".join(before)
        app.apply(s.delta("new", "\n\nthe second news"))
        await pilot.pause()
        assert app.lines[:-1] == before[:-1], "nothing moves"
        assert app.lines[-1].endswith(NEWS.rstrip())
        app.transcript.to_end()
        await pilot.pause()
        assert "the second news" in "\n".join(app.lines)
        assert NEWS.strip() not in "\n".join(app.lines)
        app.apply(s.delta("new", "\n\nthe third news"))
        await pilot.pause()
        assert "the third news" in "\n".join(app.lines)


async def test_changes_above_move_no_visible_line() -> None:
    asked = s.message("ask", "assistant", s.call("c1", "bash", {"command": "x"}))
    async with stage(asked, *many(40)) as (app, pilot):
        app.transcript.scroll_home(animate=False)
        await pilot.pause()
        app.transcript.scroll_relative(y=12, animate=False)
        await pilot.pause()
        before = app.lines
        app.apply(s.message("t1", "tool", s.result("c1", "one\ntwo\nthree", exit_code=0)))
        await pilot.pause()
        assert app.lines[:-1] == before[:-1]


async def test_delta_repaints_only_its_line() -> None:
    async with stage(*many(30), s.message("new", "assistant")) as (app, pilot):
        app.apply(s.message("new", "assistant", s.text("word")))
        await pilot.pause()
        app.transcript.painted_rows = 0
        app.apply(s.delta("new", " more"))
        await pilot.pause()
        assert "  word more" in "\n".join(app.lines)
        assert 1 <= app.transcript.painted_rows <= 3


async def test_click_unfolds_one_and_fold_all_unfolds_everything() -> None:
    out = "\n".join(f"line {n}" for n in range(30))
    asked = s.message("ask", "assistant", s.call("c1", "bash", {"command": "x"}), s.finish("tool_use"))
    result = s.message("t1", "tool", s.result("c1", out, exit_code=0))
    async with stage(asked, result) as (app, pilot):
        assert "   … 26 more lines" in "\n".join(app.lines)
        await pilot.click(Counting, offset=(4, 0))
        await pilot.pause()
        assert "line 29" in "\n".join(app.lines)
        app.transcript.scroll_home(animate=False)
        await pilot.pause()
        await pilot.click(Counting, offset=(4, 0))
        await pilot.pause()
        assert "   … 26 more lines" in "\n".join(app.lines)
        app.transcript.fold_all()
        await pilot.pause()
        assert "line 12" in "\n".join(app.lines)


async def test_selected_text_is_copied_without_margins() -> None:
    message = s.message("m1", "assistant", s.text("before 日本 wide\n\n```\nx = 1\ny = 2\n```"), s.finish())
    async with stage(message) as (app, pilot):
        chosen = Selection(Offset(2, 0), Offset(40, 3))
        app.screen.selections = {app.transcript: chosen}
        await pilot.pause()
        assert app.screen.get_selected_text() == "before 日本 wide\n\nx = 1\ny = 2"
        app.screen.selections = {app.transcript: Selection(Offset(9, 0), Offset(11, 0))}
        await pilot.pause()
        assert app.screen.get_selected_text() == "日本"


async def test_text_is_selected_with_the_mouse() -> None:
    async with stage(s.message("m1", "user", s.text("hello there"))) as (app, pilot):
        await pilot.mouse_down(Counting, offset=(3, 0))
        await pilot.hover(Counting, offset=(8, 0))
        await pilot.mouse_up(Counting, offset=(8, 0))
        await pilot.pause()
        assert (app.screen.get_selected_text() or "").startswith("hello")


async def test_welcome_is_shown_only_in_an_empty_session() -> None:
    async with stage() as (app, pilot):
        app.transcript.set_model("kedge/offline")
        await pilot.pause()
        assert "kedge is an agent" in "\n".join(app.lines)
        assert "No language model is configured" in "\n".join(app.lines)
        app.apply(s.message("m1", "user", s.text("hello")))
        await pilot.pause()
        assert "kedge is an agent" not in "\n".join(app.lines)


async def test_resize_keeps_the_message_at_the_top() -> None:
    async with stage(*many(100)) as (app, pilot):
        app.transcript.scroll_page_up(animate=False)
        await pilot.pause()
        top = app.transcript._top
        assert top is not None
        await pilot.resize_terminal(60, 16)
        await pilot.pause()
        now = app.transcript._layout.anchor_at(round(app.transcript.scroll_y))
        assert now is not None
        assert now.message_id == top.message_id


async def test_no_escape_sequence_reaches_the_terminal(server: Server, client: Client) -> None:
    """In answers, reasoning, commands and their output, file names, and the title."""
    nasty = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    (server.home.workspace / f"file{nasty}name").write_text("x")
    async with rig(server, size=(120, 40)) as r:
        await client.rename_session(r.app.connection.id, r.app.session_id, f"title {nasty}")
        await r.send(f'script: think {nasty} | say said {nasty} end | tool ls {{"path": "."}} | say # all done')
        await r.shows("all done")
        await r.press("ctrl+r")
        await r.shows("␛]0;owned␇")
        await r.send("!printf 'out\\033]0;of a tool\\007'")
        await r.shows("exit 0", "    out")  # the server removes control sequences from command output
        strips = r.app.screen._compositor.render_strips()
        for strip in strips:
            for segment in strip:
                assert not segment.control
                assert not CONTROLS.search(segment.text), segment
                assert segment.style is None or not segment.style.link
