"""The command palette: lists all commands, searches them, runs one by Enter or by a click."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from kedge.tui.key_bindings import KEYS
from kedge.tui.screens.palette_screen import PaletteScreen, matching
from tests.client.process import Server
from tests.tui.rig import Rig, rig

COMMANDS = [key for key in KEYS if key.command and key.action != "palette"]


def first(typed: str) -> str:
    return matching(COMMANDS, typed)[0].command


def names(r: Rig) -> list[str]:
    return [str(option.prompt).split()[0] for option in r.app.screen.query_one(OptionList).options]


async def opened(r: Rig, key: str = "ctrl+k") -> None:
    await r.press(key)
    await r.until(lambda: isinstance(r.app.screen, PaletteScreen) and bool(names(r)))


def test_empty_search_lists_all_commands_in_order() -> None:
    assert matching(COMMANDS, "") == COMMANDS
    assert matching(COMMANDS, " / ") == COMMANDS


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("ex", "export"),
        ("xport", "export"),
        ("smrz", "summarize"),
        ("markdown", "export"),
        ("NEW", "new"),
        ("/q", "quit"),
    ],
)
def test_search_matches_name_description_or_letters(typed: str, command: str) -> None:
    assert first(typed) == command


def test_search_without_match_is_empty() -> None:
    assert matching(COMMANDS, "zzzz") == []


async def test_slash_in_an_empty_prompt_lists_all_commands(server: Server) -> None:
    async with rig(server, size=(140, 40)) as r:
        await opened(r, "slash")
        assert names(r) == [key.command for key in COMMANDS]
        await r.shows("new", "start a new session", "ctrl-n", "enter: run")
        (mode,) = (line for line in r.lines if "choose the mode:" in line)
        assert mode.split()[-2] == "shift-tab"
        await r.press("escape")
        await r.until(lambda: len(r.app.screen_stack) == 1)
        assert r.prompt == ""


async def test_typing_filters_and_enter_runs_the_command(server: Server) -> None:
    async with rig(server, size=(60, 16)) as r:
        before = r.app.session_id
        await opened(r)
        await r.press(*"new")
        await r.until(lambda: names(r)[:1] == ["new"])
        await r.press("enter")
        await r.until(lambda: r.app.session_id != before)
        assert len(r.app.screen_stack) == 1


async def test_arrows_move_while_the_field_keeps_the_focus(server: Server) -> None:
    async with rig(server, size=(60, 16)) as r:
        await opened(r)
        listed = r.app.screen.query_one(OptionList)
        assert listed.virtual_size.height == len(COMMANDS)  # one line each, also beside a scrollbar
        await r.press("down", "down", "up")
        await r.until(lambda: listed.highlighted == 1)
        assert r.app.screen.query_one(Input).has_focus
        await r.press(*["down"] * (len(COMMANDS) - 2))
        await r.until(lambda: listed.highlighted == len(COMMANDS) - 1)
        await r.shows("quit; runs continue on the server")  # the list scrolls to the last one
        await r.press(*"zzzz", "enter")  # no match: nothing runs
        assert isinstance(r.app.screen, PaletteScreen)


async def test_command_can_open_a_dialog(server: Server) -> None:
    async with rig(server) as r:
        await opened(r)
        await r.press(*"help", "enter")
        await r.shows("Keys and commands")


async def test_click_runs_a_command(server: Server) -> None:
    async with rig(server, size=(60, 16)) as r:
        await opened(r)
        await r.press(*"rename")
        await r.until(lambda: names(r)[:1] == ["rename"])
        y, line = next((y, line) for y, line in enumerate(r.lines) if "rename this session" in line)
        await r.pilot.click(offset=(line.index("rename") + 1, y))
        await r.shows("Session title")


async def test_prompt_command_is_typed_and_expanded_when_sent(server: Server) -> None:
    async with rig(server, size=(140, 50)) as r:
        file = Path(r.app.connection.path) / ".claude" / "commands" / "greet.md"
        file.parent.mkdir(parents=True)
        file.write_text("---\nargument-hint: <who>\ndescription: Greets somebody.\n---\nscript: say hello $1")
        await opened(r, "slash")
        await r.press(*"gree")
        await r.shows("/greet", "<who> Greets somebody.")
        await r.press("enter")
        await r.until(lambda: r.prompt == "/greet ")
        await r.send("Ann")
        await r.shows("/greet Ann", "hello Ann")
        await r.shows_no("script:")
