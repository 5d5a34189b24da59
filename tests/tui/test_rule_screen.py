"""The dialog of an approval in which the user chooses or edits the rule to store."""

from __future__ import annotations

import pytest
from textual.widgets import OptionList

from kedge.client.client import Client
from kedge.core.approvals import RULE_CHARS_MAX
from kedge.tui.panels import prompt_panel
from kedge.tui.screens.rule_screen import RuleScreen, RuleText
from tests.client.process import Server
from tests.tui.rig import Rig, rig
from tests.tui.test_approvals import asked, bash, ended, panel, write


@pytest.fixture(autouse=True)
def no_typing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_panel, "TYPING_PAUSE_S", 0.0)


async def opened(r: Rig, command: str, key: str = "f5") -> RuleText:
    await r.send(f"script: {bash(command)} | say last")
    await asked(r)
    await r.press(key)
    await r.until(lambda: isinstance(r.app.screen, RuleScreen) and bool(rule_text(r).text))
    return rule_text(r)


def rule_text(r: Rig) -> RuleText:
    return r.app.screen.query_one(RuleText)


async def granted(r: Rig) -> list[tuple[str, str]]:
    """Return the rules and sessions of all grants."""
    grants = await r.app.connection.client.grants(r.app.connection.id)
    return [(grant.rule, grant.session_id) for grant in grants]


@pytest.mark.parametrize("keys", [("e",), ("f5",), ("up", "up", "enter")])
async def test_dialog_offers_the_widest_rule_first(server: Server, keys: tuple[str, ...]) -> None:
    async with rig(server, size=(80, 24)) as r:
        await r.send(f"script: {bash('python3 -m unittest -q')} | say last")
        await asked(r)
        assert "2/F3 this session: bash(python3 -m unittest -q)" in r.text
        assert "e/F5 other rule: bash(python3 -m unittest *)" in r.text
        await r.press(*keys)
        await r.shows("Allow with a rule", "$ python3 -m unittest -q", "● this session   ○ always", "enter: allow")
        assert rule_text(r).text == "bash(python3 -m unittest *)"
        await r.press("enter")
        await ended(r)
        assert await granted(r) == [("bash(python3 -m unittest *)", r.app.session_id)]
        assert len(r.app.screen_stack) == 1
        assert "another client" not in r.text


async def test_up_and_tab_choose_another_offer_and_scope(server: Server) -> None:
    async with rig(server) as r:
        text = await opened(r, "python3 -m unittest -q")
        await r.press("left", "left", "left", "x", "up")
        assert text.text == "bash(python3 -m unittest -q)"
        await r.press("down")
        assert text.text == "bash(python3 -m unittestx *)"  # the change is kept
        await r.press("down", "tab")
        assert r.app.screen.query_one(OptionList).highlighted == 0
        await r.shows("○ this session   ● always")
        await r.press("enter")
        await ended(r)
        assert await granted(r) == [("bash(python3 -m unittest -q)", "")]


async def test_refused_rule_stays_for_correction(server: Server) -> None:
    async with rig(server, size=(80, 24)) as r:
        text = await opened(r, "python3 -m unittest -q")
        await r.press("home", "delete", "B", "enter")
        await r.shows(
            "'Bash(python3 -m unittest *)' names an unknown tool; did you mean", "bash(python3 -m unittest *)?"
        )
        assert text.text == "Bash(python3 -m unittest *)"
        await r.press("home", "delete", "b", "end", "backspace", "enter")
        await r.shows("'bash(python3 -m unittest *' is not a valid rule")
        await r.press("backspace", "-", "q", "space", "*", ")", "enter")
        await ended(r)
        assert await granted(r) == [("bash(python3 -m unittest -q *)", r.app.session_id)]


async def test_pasted_text_is_harmless_and_limited(server: Server) -> None:
    async with rig(server) as r:
        text = await opened(r, "python3 -m unittest -q")
        text.text = ""
        await r.paste("\x1b" * (RULE_CHARS_MAX + 1))
        assert text.text == "\u241b" * RULE_CHARS_MAX


async def test_empty_text_stores_nothing(server: Server) -> None:
    async with rig(server) as r:
        text = await opened(r, "python3 -m unittest -q")
        text.text = " \n"
        await r.press("enter")
        await r.shows("Write a rule")
        await r.press("escape")
        assert await asked(r) is not None
        assert await granted(r) == []


async def test_line_of_two_commands_has_a_rule_for_each(server: Server) -> None:
    async with rig(server, size=(60, 16)) as r:
        text = await opened(r, "python3 -m unittest -q; make all")
        assert text.text == "bash(python3 -m unittest *)\nbash(make *)"
        assert "● this session" in r.text
        await r.press("up", "up")
        assert text.text == "bash(python3 -m unittest -q)\nbash(make all)"
        await r.press("ctrl+u", "backspace", "enter")
        await r.shows("No rule covers 'make all' of this call; add one.")
        await r.press("ctrl+j", *"bash(make *)", "enter")
        await ended(r)
        assert {rule for rule, _ in await granted(r)} == {"bash(python3 -m unittest -q)", "bash(make *)"}


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_answer_elsewhere_closes_the_dialog(server: Server, client: Client, is_stopped: bool) -> None:
    async with rig(server) as r:
        await opened(r, "python3 -m unittest -q")
        ask = panel(r).approval
        assert ask is not None
        workspace = await client.create_workspace(str(server.home.workspace))
        if is_stopped:
            await client.cancel_run(workspace.id, ask.run_id)
            await r.shows("bash: withdrawn, because the run was stopped")
        else:
            await client.answer_permission(workspace.id, ask.id, "deny")
            await r.shows(f"bash: denied by another client ({client.client_id[:4]})")
        assert len(r.app.screen_stack) == 1
        await r.until(lambda: any(note.message.startswith("bash: ") for note in r.app._notifications))
        assert await granted(r) == []


async def test_esc_returns_to_the_approval(server: Server) -> None:
    async with rig(server) as r:
        await opened(r, "python3 -m unittest -q", "e")
        await r.press("x", "enter")
        await r.shows("is not a valid rule")
        await r.press("f2", "f8", "escape")
        ask = await asked(r)
        (pending,) = await r.app.connection.client.permissions(r.app.connection.id)
        assert pending.id == ask.id
        assert r.prompt == ""
        await r.press("f8")
        await ended(r)


async def test_unsettled_approval_opens_no_dialog(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.tui.panels.settle_timer.SETTLE_S", 3600.0)
    async with rig(server) as r:
        await r.send(f"script: {bash('python3 -m unittest -q')} | say last")
        await r.shows("e/F5 other rule")
        await r.press("f5", "e")
        assert len(r.app.screen_stack) == 1
        assert r.prompt == "e"


async def test_rule_of_a_file_change_cannot_be_edited(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await asked(r)
        assert "F5" not in r.text
        await r.press("f5")
        await r.shows("this rule cannot be changed")
        await r.press("e")
        assert r.prompt == "e"


async def test_keys_use_the_wider_rule_if_none_is_exact(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"""script: {bash("git commit -m 'a b'")} | say last""")
        assert (await asked(r)).grant == "bash(git commit *)"
        await r.shows("this session: bash(git commit *)")
        await r.press("2")
        await ended(r)
        assert await granted(r) == [("bash(git commit *)", r.app.session_id)]
