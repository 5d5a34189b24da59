"""The top line and the line of the active Run: their text, and what they drop on a narrow screen."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual.color import Color
from textual.message import Message
from textual.messages import Layout

from kedge.client.client import Client
from kedge.tui.render.cell_width import Piece, cut, cut_start, fitted, wrapped
from kedge.tui.render.themes import THEMES
from tests.client.process import CONFIG, Server
from tests.tui.rig import Rig, rig

SMALL = CONFIG.replace(
    '{{ id = "fake-large" }}',
    '{{ id = "fake-large", context_window = 4000, input_price = 1000, output_price = 0 }}',
)


@pytest.fixture
def small_model(own_server: Server) -> Server:
    """A server whose model has a context of 4,000 tokens and costs a dollar per 1,000 tokens."""
    assert SMALL != CONFIG
    own_server.home.config.write_text(SMALL.format(url=own_server.home.endpoint.url))
    return own_server


def run_line(r: Rig) -> str:
    return next(line for line in r.lines if "● working" in line)


# --- the top line ---------------------------------------------------------------------------------------------------


async def test_context_is_that_of_the_last_request(small_model: Server) -> None:
    async with rig(small_model) as r:
        await r.shows("local/fake-large")
        assert "ctx" not in r.lines[0], "no request was made yet"
        await r.send('script: usage 1000 0 | tool ls {"path": "."} | usage 1590 10 | say fine')
        await r.shows("fine", "ctx 40 %", "$2.59")
        session_id = r.app.session_id
    async with rig(small_model, session_id=session_id) as r:  # the server keeps it
        await r.shows("ctx 40 %", "$2.59")


async def test_top_line_shows_the_mode_in_words(own_server: Server) -> None:
    """For clients that were connected, and for clients that connect later."""
    async with rig(own_server) as r, Client(own_server.host) as other:
        await r.shows("local/fake-large")
        workspace = await other.create_workspace(r.app.connection.path)
        await other.change_session(workspace.id, r.app.session_id, mode="yolo")
        await r.shows("yolo: nothing asks")
        async with rig(own_server) as late:
            await late.shows("yolo: nothing asks")
        await r.press("shift+tab")
        await r.shows_no("nothing asks")
        await r.press("shift+tab", "shift+tab")
        await r.shows("plan: read-only")
        for answer in ("n", "y"):
            await r.press("ctrl+k", *"/mode", "enter", *"yolo", "enter", answer, "enter")
            await r.until(lambda: len(r.app.screen_stack) == 1 and not r.app.is_busy)
            await r.shows("plan: read-only" if answer == "n" else "yolo: nothing asks")


async def test_context_grows_during_a_run(small_model: Server) -> None:
    async with rig(small_model) as r:
        await r.send('script: usage 1000 0 | tool ls {"path": "."} | usage 2000 0 | hold context-1 | say fine')
        await r.shows("ctx 25 %", "esc: stop this run")
        small_model.home.endpoint.release("context-1")
        await r.shows("ctx 50 %")


async def test_nearly_full_context_has_the_warning_colour(small_model: Server) -> None:
    async with rig(small_model) as r:
        await r.send("script: usage 3196 0 | say nearly")
        await r.shows("ctx 80 %!")
        strip = r.app.screen._compositor.render_strips()[0]
        drawn = next(segment for segment in strip if "ctx" in segment.text)
        assert drawn.text == "ctx 80 %!"
        assert drawn.style is not None
        assert drawn.style.color is not None
        assert drawn.style.color.triplet is not None
        warning = THEMES["dark"].textual_theme.warning
        assert warning is not None
        shades = zip(drawn.style.color.triplet, Color.parse(warning).rgb, strict=True)
        assert all(abs(shade - expected) <= 1 for shade, expected in shades)


async def test_context_is_hidden_without_a_known_limit(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: usage 1000 1000 | say fine")
        await r.shows("fine")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        assert "ctx" not in r.text


async def test_clients_of_the_session_are_counted(server: Server, client: Client) -> None:
    async with rig(server) as r:
        workspace = await client.create_workspace(str(server.home.workspace))
        await client.set_current_session(workspace.id, r.app.session_id)
        await r.shows("2 clients")
        async with rig(server, session_id=r.app.session_id) as third:
            await third.shows("3 clients")
            await r.shows("3 clients")
        await r.shows("2 clients")
        await client.set_current_session(workspace.id, "")
        await r.shows_no("clients")


async def test_wide_title_is_cut_between_characters(server: Server, client: Client) -> None:
    async with rig(server, size=(60, 16)) as r:
        workspace = await client.create_workspace(str(server.home.workspace))
        await client.rename_session(workspace.id, r.app.session_id, "[red]" + "漢字の表題" * 20 + "\x1b[2J")
        await r.shows("[red]漢字", "local/fake-large")
        assert cell_len(r.lines[0]) <= 60
        assert "…" in r.lines[0]
        await r.pilot.resize_terminal(100, 30)
        await r.until(lambda: cell_len(r.lines[0]) > 80)


# --- the line of the Run --------------------------------------------------------------------------------------------


async def test_narrow_screen_always_shows_what_esc_stops(small_model: Server) -> None:
    async with rig(small_model, size=(60, 16)) as r:
        script = (
            'script: usage 123 45 | tool ls {"path": "."} | fail 503 retry-after=60 the provider is overloaded today'
        )
        await r.send(script)
        await r.shows("attempt 2 of")
        await r.send("script: say next")
        await r.shows("1 queued")
        line = run_line(r)
        assert line.rstrip().endswith("1 queued · esc: stop this run")
        assert "tokens" not in line
        await r.pilot.resize_terminal(160, 30)
        await r.until(lambda: all(text in run_line(r) for text in ("Provider local returned", " tokens", "step 2")))
        await r.press("escape", "escape")
        await r.shows("cancelled")


@pytest.mark.parametrize("width", range(0, 100, 3))
def test_fitted_drops_by_priority_and_keeps_order(width: int) -> None:
    pieces: list[Piece] = [(1, "● working"), (3, "漢字漢字"), (2, "12 s"), (4, ""), (0, "esc: stop this run")]
    fitting = fitted(pieces, width)
    assert fitting[-1] == "esc: stop this run"
    assert fitting == [text for _, text in pieces if text in fitting]
    assert len(fitting) == 1 or cell_len(" · ".join(fitting)) <= width
    assert ("漢字漢字" in fitting) <= ("12 s" in fitting) <= ("● working" in fitting)


@pytest.mark.parametrize(
    "text", ["", "plain words", "漢字かな交じり文", "a漢b字c", "👩‍👩‍👧 family", "e\u0301e\u0301e\u0301"]
)
@pytest.mark.parametrize("width", range(1, 20))
def test_cut_text_is_never_wider_than_its_room(text: str, width: int) -> None:
    assert cell_len(cut(text, width)) <= width
    assert cell_len(cut_start(text, width)) <= width
    if width > 1:
        assert all(cell_len(line) <= width for line in wrapped(text, width))
        assert "".join("".join(wrapped(text, width)).split()) == "".join(text.split()), "nothing is lost"


async def test_keys_and_events_cause_no_needless_layout(server: Server, client: Client) -> None:
    """A layout is the most expensive operation of a screen: the user would notice it at each key."""
    laid_out_for: list[str] = []

    def record(message: Message) -> None:
        if isinstance(message, Layout):
            laid_out_for.append(repr(message.widget))

    async with rig(server, on_message=record) as r:
        await r.until(lambda: not r.app.is_busy)
        await r.press("a")
        laid_out_for.clear()
        await r.press("b", "c", "d")
        await client.rename_session(r.app.connection.id, r.app.session_id, "Other words")
        await r.shows("Other words")
        assert laid_out_for == []
