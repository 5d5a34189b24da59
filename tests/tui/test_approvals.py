"""The approval panel: full text, answered by F-keys, closed by the first answer (SCENARIOS B10)."""

from __future__ import annotations

import json
import string

import pytest

from kedge.client.client import Client, new_run_id
from kedge.tui.panels import prompt_panel
from kedge.tui.panels.approval_panel import ApprovalPanel
from kedge.tui.panels.full_text import diff_rows
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.wire import models as m
from tests.client.process import Server
from tests.tui.rig import Rig, rig


def write(path: str = "a.txt", content: str = "one\ntwo\n") -> str:
    return f"tool write {json.dumps({'path': path, 'content': content})}"


def bash(command: str) -> str:
    return f"tool bash {json.dumps({'command': command})}"


def panel(r: Rig) -> ApprovalPanel:
    return r.app.query_one(ApprovalPanel)


async def asked(r: Rig) -> m.PermissionRequest:
    """Wait until the shown approval can be answered."""
    await r.until(lambda: panel(r).answerable("allow") is not None)
    ask = panel(r).approval
    assert ask is not None
    return ask


async def ended(r: Rig) -> None:
    """Wait until all Runs of the session have ended."""
    await r.until(lambda: r.app.view.active(r.app.session_id) is None and not r.app.view.queue(r.app.session_id))


async def asked_elsewhere(server: Server, client: Client, script: str) -> m.PermissionRequest:
    """Cause an approval in a session of another client, in the same workspace."""
    workspace = await client.create_workspace(str(server.home.workspace))
    session = await client.create_session(workspace.id)
    prompt = m.SubmitPrompt(session_id=session.id, prompt=script, run_id=new_run_id())
    async with client.events(workspace.id) as stream:
        await client.submit(workspace.id, prompt)
        async for event in stream:
            if event.type == "permission_request" and event.payload["session_id"] == session.id:
                break
    (pending,) = [ask for ask in await client.permissions(workspace.id) if ask.session_id == session.id]
    return pending


async def test_f2_allows_a_fully_shown_diff(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await asked(r)
        assert "write needs your approval: Create a.txt (+2 -0)" in r.text
        assert "+one" in r.text
        assert "+two" in r.text
        assert "y/F2 once  2/F3 this session: edit(**)  3/F4 always: edit(**)  n/F8 deny" in r.text
        assert not (server.home.workspace / "a.txt").exists()
        await r.press("f2")
        await ended(r)
        await r.shows_no("needs your approval")
        assert "another client" not in r.text
        assert (server.home.workspace / "a.txt").read_text() == "one\ntwo\n"
        assert await r.app.connection.client.grants(r.app.connection.id) == []


@pytest.mark.parametrize(("keys", "exists"), [(("y",), True), (("4",), False), (("down", "enter"), True)])
async def test_plain_keys_answer_while_the_prompt_is_empty(
    server: Server, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...], exists: bool
) -> None:
    monkeypatch.setattr(prompt_panel, "TYPING_PAUSE_S", 0.0)
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await asked(r)
        await r.press("enter", "a", "y", "n", "1", "4")  # Enter alone answers nothing, and keys after text are text
        assert r.prompt == "ayn14"
        await r.press("ctrl+c", *keys)
        await ended(r)
        assert (server.home.workspace / "a.txt").exists() == exists
        assert r.prompt == ""


async def test_plain_keys_grant_the_rule(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_panel, "TYPING_PAUSE_S", 0.0)
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await asked(r)
        await r.press("2")
        await ended(r)
        await r.send(f"script: {write('b.txt')} | say last")
        await r.until((server.home.workspace / "b.txt").exists)
        await ended(r)


async def test_typed_text_approves_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_panel, "TYPING_PAUSE_S", 3600.0)  # all keys of this test are typed in one go
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        ask = await asked(r)
        await r.press("y", "enter")  # a prompt for later
        await r.shows("1 queued")
        await r.press("x", *(key for key in string.printable if key.isprintable()))
        await r.press("space", "ctrl+j", "backspace", "left", "right", "home", "end", "tab", "y")
        await r.press("enter")
        assert panel(r).approval == ask
        assert [pending.id for pending in await r.app.connection.client.permissions(r.app.connection.id)] == [ask.id]
        assert not (server.home.workspace / "a.txt").exists()


async def test_mode_that_the_key_only_passes_settles_nothing(server: Server) -> None:
    """The key passes edits, which would allow the file, and auto. The mode that it ends at settles the approval."""
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        ask = await asked(r)
        await r.press("shift+tab", "shift+tab")
        await r.shows("plan: read-only")
        assert panel(r).approval == ask
        await r.press("shift+tab", "shift+tab", "shift+tab")
        await r.until((server.home.workspace / "a.txt").exists)
        await ended(r)


async def test_typing_continues_during_an_approval(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await r.press("a", "b")
        await asked(r)
        await r.press("c")
        assert r.prompt == "abc"
        assert r.app.screen.focused is r.app.query_one(PromptPanel)


async def test_esc_stops_the_run_and_approves_nothing(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await asked(r)
        await r.press("escape")
        await r.shows("write: withdrawn, because the run was stopped", "■ cancelled")
        assert panel(r).approval is None
        assert not (server.home.workspace / "a.txt").exists()


async def test_f_keys_do_nothing_without_an_approval(server: Server) -> None:
    async with rig(server) as r:
        await r.type("a draft")
        before = r.text
        await r.press("f2", "f3", "f4", "f8")
        assert r.prompt == "a draft"
        assert r.text == before


async def test_f3_allows_later_calls_of_the_session(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write('a.txt')} | step | {write('b.txt')} | say last")
        await asked(r)
        await r.press("f3")
        await ended(r)
        (grant,) = await r.app.connection.client.grants(r.app.connection.id)
        assert (grant.rule, grant.session_id) == ("edit(**)", r.app.session_id)


async def test_f4_allows_in_every_session(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await asked(r)
        await r.press("f4")
        await ended(r)
        (grant,) = await r.app.connection.client.grants(r.app.connection.id)
        assert (grant.rule, grant.session_id) == ("edit(**)", "")


async def test_approval_without_rule_can_only_be_allowed_once(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {bash('echo $(date)')} | say last")
        ask = await asked(r)
        assert ask.grant == ""
        assert "F3" not in r.text
        await r.press("f3", "f4")
        await r.shows("this can only be allowed once")
        assert panel(r).approval == ask
        await r.press("f2")
        await ended(r)


async def test_prompt_text_is_the_reason_of_a_denial(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await asked(r)
        assert "F8 deny (prompt text = reason)" in r.text
        await r.type("use the other file")
        await r.press("f8")
        assert r.prompt == ""
        await ended(r)
        messages = [each async for each in r.app.connection.client.all_messages(r.app.connection.id, r.app.session_id)]
        results = [part.data["content"] for each in messages for part in each.parts if part.type == "tool_result"]
        assert "Their reason: use the other file" in results[0]
        assert not (server.home.workspace / "a.txt").exists()


async def test_invisible_characters_are_spelled_out(server: Server) -> None:
    async with rig(server) as r:
        command = bash("echo \u202egnp.exe \x1b[2J [bold]x[/bold]")
        await r.send(f"script: {command} | say last")
        await asked(r)
        assert "$ echo \\u{202e}gnp.exe \\u{1b}[2J [bold]x[/bold]" in r.text
        # Also in the transcript above the panel.
        assert "\x1b" not in r.text


async def test_long_diff_scrolls_and_long_line_folds(server: Server) -> None:
    long_line = "a" * 150 + "THE-END"
    content = long_line + "\n" + "".join(f"line {number}\n" for number in range(100))
    async with rig(server, size=(80, 24)) as r:
        await r.send(f"script: {write(content=content)} | say last")
        await asked(r)
        await r.shows("THE-END", "of 105")
        assert "+line 99" not in r.text
        while "+line 99" not in r.text:
            await r.press("ctrl+down")
        assert "F2 once" in r.text
        while "THE-END" not in r.text:
            await r.press("alt+pageup")
        assert r.app.screen.focused is r.app.query_one(PromptPanel)


async def test_small_screen_keeps_keys_and_prompt_visible(server: Server) -> None:
    command = "\n".join(f"echo line {number} >> out" for number in range(30))
    async with rig(server, size=(60, 16)) as r:
        await r.send(f"script: {bash(command)} | say done")
        await asked(r)
        for number in range(5):
            await r.send(f"prompt {number}")
        await r.shows("● waiting for you", "5 queued", "1. prompt 0")
        await r.type("in view")
        assert (r.lines[-2].strip(), r.lines[-1][:13]) == ("in view", " enter: queue")
        await r.shows("F2 once", "F8 deny")
        await r.press("escape", "escape")
        await ended(r)


async def test_click_on_a_key_acts_like_the_key(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        await asked(r)
        await r.pilot.click("#approval #keys", offset=(3, 0))
        await ended(r)
        assert r.app.screen.focused is r.app.query_one(PromptPanel)


async def test_second_key_press_does_not_answer_the_next_approval(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write('a.txt')} | step | {write('b.txt')} | say last")
        await asked(r)
        monkeypatch.setattr("kedge.tui.panels.settle_timer.SETTLE_S", 3600.0)
        await r.press("f2", "f2")
        await r.shows("Create b.txt")
        await r.press("f2", "f3", "f4", "f8")
        assert panel(r).has_class("settling")
        (pending,) = await r.app.connection.client.permissions(r.app.connection.id)
        assert pending.path.endswith("b.txt")
        assert (server.home.workspace / "a.txt").exists()


async def test_covered_approval_is_not_answered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        ask = await asked(r)
        monkeypatch.setattr("kedge.tui.panels.settle_timer.SETTLE_S", 0.001)
        await r.press("f1")
        await r.until(lambda: len(r.app.screen_stack) == 2)
        for _ in range(5):
            await r.press("f2", "f8")
        assert [each.id for each in await r.app.connection.client.permissions(r.app.connection.id)] == [ask.id]
        r.app.pop_screen()
        assert await asked(r) == ask


async def test_approvals_of_the_shown_session_come_first(server: Server, client: Client) -> None:
    async with rig(server) as r:
        first = await asked_elsewhere(server, client, f"script: {write('first.txt')} | say x")
        assert await asked(r) == first
        assert "Approval · another session" in r.text
        second = await asked_elsewhere(server, client, f"script: {write('second.txt')} | say x")
        await r.shows("Approval · 1 of 2 · another session")
        await r.send(f"script: {write('own.txt')} | say last")
        # The shown approval stays until it is answered. Then that of this session follows, although another is older.
        await r.shows("Approval · 1 of 3 · another session", "Create first.txt")
        await r.press("f8")
        await r.shows("Approval · 1 of 2 ─", "Create own.txt")
        await asked(r)
        await r.press("f8")
        await r.until(lambda: panel(r).approval == second)


async def test_answer_of_another_client_closes_the_approval(server: Server, client: Client) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        ask = await asked(r)
        workspace = await client.create_workspace(str(server.home.workspace))
        await client.answer_permission(workspace.id, ask.id, "allow_session")
        await r.shows(f"write: allowed for the session by another client ({client.client_id[:4]})")
        assert panel(r).approval is None


async def test_b10_stop_by_another_client_closes_the_approval(server: Server, client: Client) -> None:
    async with rig(server) as r:
        await r.send(f"script: {write()} | say last")
        ask = await asked(r)
        workspace = await client.create_workspace(str(server.home.workspace))
        await client.cancel_run(workspace.id, ask.run_id)
        await r.shows("write: withdrawn, because the run was stopped")
        await r.press("f2")
        assert panel(r).approval is None
        assert not (server.home.workspace / "a.txt").exists()


async def test_pending_approval_is_shown_after_start(server: Server, client: Client) -> None:
    ask = await asked_elsewhere(server, client, f"script: {write()} | say x")
    async with rig(server, session_id=ask.session_id) as r:
        assert await asked(r) == ask
        await r.press("f2")
        await r.until(lambda: (server.home.workspace / "a.txt").exists())


@pytest.mark.parametrize("width", [60, 140])
def test_no_diff_line_is_omitted(width: int) -> None:
    lines = ["--- old line, a comment of SQL", "+++ new line", "-plain", "+" + "x" * 300, " same\u200bplace"]
    diff = "\n".join(["--- a/x.sql", "+++ b/x.sql", "@@ -1,3 +1,3 @@", *lines]) + "\n"
    rows = diff_rows(diff, width)
    drawn = "\n".join("".join(text for text, _ in row) for row in rows)
    assert "a/x.sql" not in drawn
    for part in ("--- old line, a comment of SQL", "+++ new line", "-plain", " same\\u{200b}place"):
        assert part in drawn
    assert drawn.count("x") == 300
