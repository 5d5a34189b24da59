"""The list of sessions: search, preview, open and change them; and the session commands of the main screen."""

from __future__ import annotations

from pathlib import Path

from textual.widgets import Input

from kedge.client.client import Client
from kedge.tui.key_bindings import SESSION_KEYS
from kedge.tui.panels.approval_panel import ApprovalPanel
from kedge.tui.render.session_rows import age
from kedge.tui.screens.sessions_screen import SessionList, SessionsScreen
from kedge.wire import models as m
from tests.client.process import Server
from tests.tui.rig import Rig, rig

SMALL = (60, 16)


async def created(server: Server, client: Client, *titles: str) -> list[m.SessionBody]:
    """Create sessions with these titles, the newest last."""
    workspace = await client.create_workspace(str(server.home.workspace))
    return [await client.create_session(workspace.id, title) for title in titles]


async def submitted(client: Client, session: m.SessionBody, server: Server, prompt: str, *, ends: bool = True) -> str:
    """Submit a prompt as another client; return the id of its Run, into which no later one folds automatically."""
    workspace = await client.create_workspace(str(server.home.workspace))
    body = m.SubmitPrompt(session_id=session.id, prompt=prompt, when_busy="queue")
    receipt = await client.submit(workspace.id, body)
    if ends:
        await client.wait_run(workspace.id, receipt.run_id)
    return receipt.run_id


async def opened(r: Rig, *shows: str) -> SessionsScreen:
    await r.press("ctrl+s")
    await r.until(lambda: isinstance(r.app.screen, SessionsScreen))
    await r.shows("esc close", *shows)
    assert isinstance(r.app.screen, SessionsScreen)
    return r.app.screen


def titles(r: Rig) -> list[str]:
    return [str(option.prompt).splitlines()[0] for option in r.app.screen.query_one(SessionList).options]


async def title_known(r: Rig, session_id: str, title: str) -> None:
    def holds() -> bool:
        session = r.app.view.session(session_id)
        return session is not None and session.title == title

    await r.until(holds)


async def on_list(r: Rig, title: str) -> None:
    """Focus the list and highlight the session with this title."""
    listed = r.app.screen.query_one(SessionList)
    await r.until(lambda: any(title in line for line in titles(r)))
    await r.press("down" if not listed.has_focus else "home", "home")
    index = next(index for index, line in enumerate(titles(r)) if title in line)
    await r.press(*["down"] * index)
    await r.until(lambda: listed.highlighted == index and listed.has_focus)


# --- search and open --------------------------------------------------------------------------------------------------


async def test_chosen_session_is_opened(server: Server, client: Client) -> None:
    first, second = await created(server, client, "Boats", "Anchors")
    async with rig(server) as r:
        assert r.app.session_id == second.id
        await opened(r, "Boats", "Anchors", "current")
        await on_list(r, "Boats")
        await r.press("enter")
        await r.until(lambda: r.app.session_id == first.id)
        assert not isinstance(r.app.screen, SessionsScreen)


async def test_esc_closes_the_list_and_stops_nothing(server: Server, client: Client) -> None:
    async with rig(server) as r:
        await r.send("script: hold never | say x")
        await r.shows("working")
        await opened(r, "running")
        await r.press("f2", "f8", "ctrl+n", "escape")
        await r.until(lambda: len(r.app.screen_stack) == 1)
        active = r.app.view.active(r.app.session_id)
        assert active is not None
        assert not active.stopping
        assert len(r.app.view.sessions()) == 1
        await r.press("escape")
        await r.shows("cancelled")


async def test_typing_searches_titles(server: Server, client: Client) -> None:
    boats, _ = await created(server, client, "Wooden Boats", "Anchors")
    async with rig(server, size=SMALL) as r:
        await opened(r, "Wooden Boats", "Anchors", "2 sessions")
        await r.press(*"boat wo")
        await r.until(lambda: len(titles(r)) == 1)
        assert "Wooden Boats" in titles(r)[0]
        await r.press("enter")
        await r.until(lambda: r.app.session_id == boats.id)


async def test_messages_are_searched_after_a_pause(server: Server, client: Client) -> None:
    boats, _ = await created(server, client, "Boats", "Anchors")
    await submitted(client, boats, server, "script: title say Boats | say we sail at daybreak with the tide")
    async with rig(server, size=SMALL) as r:
        await opened(r, "Boats")
        await r.press(*"daybreak")
        await r.shows("found:", "sail at daybreak", "1 session")
        assert "Anchors" not in r.text
        await r.press(*"zzz")
        await r.shows("no matches")
        await r.press("enter", "ctrl+d")  # no session is chosen: nothing happens
        assert isinstance(r.app.screen, SessionsScreen)


async def test_letters_search_in_the_field_and_act_in_the_list(server: Server, client: Client) -> None:
    await created(server, client, "dredger")
    async with rig(server) as r:
        screen = await opened(r, "dredger", "ctrl-d delete")
        await r.press("d", "r", "d")
        assert screen.query_one(Input).value == "drd"
        assert "delete “" not in r.text
        await r.press("ctrl+u", "tab")
        await r.shows("d delete", "u undo")
        await r.press("d")
        await r.shows("delete “dredger”?")
        await r.press("escape")
        await r.shows("d delete")
        assert isinstance(r.app.screen, SessionsScreen)
        await r.press("up")
        await r.until(lambda: screen.query_one(Input).has_focus)


async def test_open_list_shows_changes_of_other_clients(server: Server, client: Client) -> None:
    boats, anchors = await created(server, client, "Boats", "Anchors")
    workspace = await client.create_workspace(str(server.home.workspace))
    async with rig(server, size=SMALL) as r:
        await opened(r, "Boats", "Anchors")
        await on_list(r, "Anchors")
        await client.create_session(workspace.id, "Made elsewhere")
        await r.shows("Made elsewhere")
        await client.rename_session(workspace.id, boats.id, "Renamed elsewhere")
        await r.shows("Renamed elsewhere")
        run_id = await submitted(client, boats, server, "script: hold never | say x", ends=False)
        await submitted(client, boats, server, "script: say y", ends=False)
        await r.shows("running · 1 queued", "●")
        await client.cancel_run(workspace.id, run_id)
        await r.shows_no("running")
        await submitted(client, boats, server, 'script: tool bash {"command": "touch x"} | say x', ends=False)
        await r.shows("? Renamed", "needs answer")
        screen = r.app.screen
        assert isinstance(screen, SessionsScreen)
        chosen = screen._chosen()
        assert chosen is not None
        assert chosen.id == anchors.id  # the highlight has not moved
        await client.delete_session(workspace.id, boats.id)
        await r.shows_no("Renamed elsewhere")


async def test_attached_clients_are_counted(server: Server, client: Client) -> None:
    boats, _ = await created(server, client, "Boats", "Anchors")
    workspace = await client.create_workspace(str(server.home.workspace))
    async with client.events(workspace.id), rig(server) as r:
        await client.set_current_session(workspace.id, boats.id)
        await opened(r, "Boats", "1 client ·")


# --- the preview ------------------------------------------------------------------------------------------------------


async def test_wide_list_previews_the_last_messages(server: Server, client: Client) -> None:
    boats, anchors, _ = await created(server, client, "Boats", "Anchors", "Empty")
    for number in range(6):
        await submitted(client, boats, server, f"script: title say Boats | say answer number {number}")
    await submitted(client, anchors, server, "script: title say Anchors | say an anchor\x1b[31m holds")
    async with rig(server) as r:
        await opened(r, "Boats")
        await on_list(r, "Boats")
        await r.shows("answer number 5")
        assert "answer number 1" not in r.text
        await on_list(r, "Anchors")
        await r.shows("an anchor␛[31m holds")
        await on_list(r, "Empty")
        await r.shows("no messages yet")
        await r.pilot.resize_terminal(*SMALL)
        await on_list(r, "Boats")
        await r.shows_no("no messages yet")
        assert "answer number" not in r.text
        await r.pilot.resize_terminal(100, 30)
        await r.shows("answer number 5")


# --- actions ----------------------------------------------------------------------------------------------------------


async def test_session_is_renamed_from_the_list(server: Server, client: Client) -> None:
    boats, _ = await created(server, client, "Boats", "Anchors")
    async with rig(server, size=SMALL) as r:
        await opened(r, "Boats")
        await on_list(r, "Boats")
        await r.press("r")
        await r.shows("esc: cancel")
        await r.press("escape")
        await r.shows("d delete")
        await r.press("r", "end", *" afloat", "enter")
        await r.shows("Boats afloat")
        await title_known(r, boats.id, "Boats afloat")


async def test_delete_needs_confirmation(server: Server, client: Client) -> None:
    boats, _ = await created(server, client, "Boats", "Anchors")
    async with rig(server, size=SMALL) as r:
        await opened(r, "Boats")
        await on_list(r, "Boats")
        for other in ("x", "enter", "escape", "ctrl+d", "tab", "D"):
            await r.press("d")
            await r.shows("delete “Boats”? d again: delete, any other key: keep")
            await r.press(other)
            await r.shows_no("d again")
            assert isinstance(r.app.screen, SessionsScreen)
            assert r.app.screen.query_one(SessionList).has_focus
        assert r.app.view.session(boats.id) is not None
        await r.press("d", "d")
        await r.shows_no("Boats  ")
        await r.until(lambda: r.app.view.session(boats.id) is None)


async def test_delete_warns_about_runs_and_cancels_them(server: Server, client: Client) -> None:
    boats, _ = await created(server, client, "Boats", "Anchors")
    await submitted(client, boats, server, "script: tag boats | hold never | say x", ends=False)
    server.home.endpoint.wait_until(
        lambda endpoint: endpoint.open_by_tag["boats"] == 1
    )  # else the first Step may already fold the next prompt
    await submitted(client, boats, server, "script: say y", ends=False)
    async with rig(server) as r:
        await opened(r, "running · 1 queued")
        await on_list(r, "Boats")
        await r.press("d")
        await r.shows("This cancels 2 runs. d again: delete")
        await r.press("d")
        await r.shows("deleted: Boats")
        await r.until(lambda: len(titles(r)) == 1)
        assert r.app.view.active(boats.id) is None


async def test_deleting_the_shown_session_shows_another(server: Server, client: Client) -> None:
    boats, anchors = await created(server, client, "Boats", "Anchors")
    async with rig(server) as r:
        await r.type("half a thought")
        await opened(r, "Anchors")
        await r.press("ctrl+d")
        await r.shows("delete “Anchors”?")
        await r.press("d")
        await r.until(lambda: r.app.session_id == boats.id)
        await opened_again(r)
        await r.until(lambda: r.prompt == "half a thought")
        await opened(r, "Boats")
        await r.press("ctrl+d", "d")
        await r.until(lambda: r.app.session_id not in (boats.id, anchors.id))
        await r.until(lambda: r.app.view.session(r.app.session_id) is not None)
        assert "another client" not in r.text


async def opened_again(r: Rig) -> None:
    await r.press("escape")
    await r.until(lambda: len(r.app.screen_stack) == 1)


async def test_session_deleted_by_another_client_is_left(server: Server, client: Client) -> None:
    boats, anchors = await created(server, client, "Boats", "Anchors")
    workspace = await client.create_workspace(str(server.home.workspace))
    async with rig(server, size=SMALL) as r:
        await r.type("not sent yet")
        await client.delete_session(workspace.id, anchors.id)
        await r.shows("deleted", "another")  # wrapped on a narrow screen
        await r.until(lambda: r.app.session_id == boats.id and r.prompt == "not sent yet")
        await r.send("script: say on board")
        await r.until(lambda: not r.prompt)
        await r.shows("on board")


async def test_fork_from_the_list_highlights_the_copy(server: Server, client: Client) -> None:
    boats, _ = await created(server, client, "Boats", "Anchors")
    await submitted(client, boats, server, "script: title say Boats | say aboard")
    async with rig(server) as r:
        screen = await opened(r, "Boats")
        await on_list(r, "Boats")
        await r.press("f")
        await r.until(lambda: len(titles(r)) == 3)
        await r.until(lambda: (chosen := screen._chosen()) is not None and chosen.parent_session_id == boats.id)
        await r.shows("aboard")  # the preview: a copy has messages but no Run
        await r.press("enter")
        await r.until(lambda: r.app.session_id not in (boats.id, ""))
        await r.shows("aboard")


async def test_empty_session_cannot_be_forked(server: Server, client: Client) -> None:
    async with rig(server) as r:
        await r.app.run_action("fork")
        await r.shows("nothing to fork")


async def test_session_is_exported_from_the_list(server: Server, client: Client) -> None:
    (boats,) = await created(server, client, "Boats")
    await submitted(client, boats, server, "script: title say Boats | say aboard")
    path = Path(server.home.workspace) / f"session-{boats.id}.md"
    async with rig(server) as r:
        await opened(r, "Boats")
        await r.press("ctrl+e")
        await r.shows("exported to", ".md")
        assert "aboard" in path.read_text()
        path.unlink()
        path.mkdir()
        await r.press("ctrl+e")
        await r.shows("cannot write", "directory")


async def write_file(r: Rig, name: str = "new.txt") -> None:
    await r.send(f'script: tool write {{"path": "{name}", "content": "words"}} | say written it is')
    await r.until(lambda: r.app.query_one(ApprovalPanel).answerable("allow") is not None)
    await r.press("f2")
    await r.until(lambda: r.app.view.active(r.app.session_id) is None)
    await r.shows("written it is")


async def test_undo_from_the_list_needs_confirmation(server: Server) -> None:
    async with rig(server) as r:
        await write_file(r)
        path = server.home.workspace / "new.txt"
        assert path.read_text() == "words"
        await opened(r)
        await r.press("ctrl+z")
        await r.shows("undo the file changes of the last run of", "u again: undo")
        await r.press("ctrl+z")
        await r.shows_no("u again")
        assert path.exists()
        await r.press("tab", "u", "u")
        await r.shows("restored:", "new.txt")
        assert not path.exists()


# --- commands of the main screen --------------------------------------------------------------------------------------


async def test_undo_reports_restored_files_or_that_there_are_none(server: Server) -> None:
    async with rig(server) as r:
        await r.app.run_action("undo")
        await r.shows("nothing to undo")
        await write_file(r)
        await r.app.run_action("undo")
        await r.shows("restored:", "new.txt")
        assert not (server.home.workspace / "new.txt").exists()


async def test_undo_spares_files_changed_since(server: Server) -> None:
    async with rig(server) as r:
        await write_file(r)
        path = server.home.workspace / "new.txt"
        path.write_text("mine")
        await r.app.run_action("undo")
        await r.shows("Changed since that run")
        assert path.read_text() == "mine"


async def test_new_session_leaves_the_draft_with_the_old_one(server: Server, client: Client) -> None:
    (boats,) = await created(server, client, "Boats")
    async with rig(server) as r:
        await r.type("for the boats")
        await r.press("ctrl+n")
        await r.until(lambda: r.app.session_id != boats.id)
        assert r.prompt == ""
        await opened(r, "Boats")
        await on_list(r, "Boats")
        await r.press("enter")
        await r.until(lambda: r.app.session_id == boats.id and r.prompt == "for the boats")


async def test_shown_session_is_renamed(server: Server, client: Client) -> None:
    (boats,) = await created(server, client, "Boats\x1b[31m")
    async with rig(server, size=SMALL) as r:
        await r.app.run_action("rename")
        await r.shows("Session title", "Boats␛[31m")
        await r.press("end", *["backspace"] * 20, *"Sloops", "enter")
        await title_known(r, boats.id, "Sloops")
        await r.shows("Sloops")
        await r.app.run_action("rename")
        await r.press("end", *["backspace"] * 20, "enter")  # an empty title is ignored
        await r.until(lambda: len(r.app.screen_stack) == 1)
        session = r.app.view.session(boats.id)
        assert session is not None
        assert session.title == "Sloops"


async def test_shown_session_is_forked_and_exported(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: say aboard")
        await r.shows("aboard")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        first = r.app.session_id
        await r.app.run_action("fork")
        await r.until(lambda: r.app.session_id != first)
        await r.shows("this is a copy", "aboard")
        await r.app.run_action("export")
        await r.shows("exported to")
        assert "aboard" in (server.home.workspace / f"session-{r.app.session_id}.md").read_text()


async def test_shown_session_is_summarised(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: say aboard")
        await r.shows("aboard")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        await r.app.run_action("summarize")
        await r.shows("A scripted summary.", "summarised")


# --- by mouse ---------------------------------------------------------------------------------------------------------


async def click(r: Rig, text: str) -> None:
    """Click on this text."""
    await r.shows(text)
    y, line = next((y, line) for y, line in enumerate(r.lines) if text in line)
    await r.pilot.click(offset=(line.index(text) + 1, y))


async def test_all_actions_of_the_list_can_be_clicked(server: Server, client: Client) -> None:
    boats, anchors, _ = await created(server, client, "Boats", "Anchors", "Capstans")
    async with rig(server, size=SMALL) as r:
        screen = await opened(r, "Boats")
        await click(r, "Boats")
        await r.until(lambda: (chosen := screen._chosen()) is not None and chosen.id == boats.id)
        await click(r, "d delete")
        await click(r, "any other key: keep")
        await r.shows("d delete")
        await click(r, "d delete")
        await click(r, "d again: delete")
        await r.until(lambda: r.app.view.session(boats.id) is None)
        await r.until(lambda: len(titles(r)) == 2)
        await click(r, "r rename")  # of the next session, now highlighted
        await click(r, "esc: cancel")
        await click(r, "Anchors")  # it is highlighted: the click opens it
        await r.until(lambda: r.app.session_id == anchors.id)
        await opened(r)
        await click(r, "esc close")
        await r.until(lambda: len(r.app.screen_stack) == 1)


# --- ages and keys ---------------------------------------------------------------------------------------------------


def test_age_is_short() -> None:
    minute, hour, day = 60_000, 3_600_000, 86_400_000
    now = 400 * day
    ages = [age(now - ago, now) for ago in (0, -5, minute, 59 * minute, hour, 23 * hour, day, 30 * day)]
    assert ages == ["now", "now", "1 min", "59 min", "1 h", "23 h", "1 d", "30 d"]
    assert age(now - 40 * day, now).startswith("197")


def test_session_keys_do_not_clash_with_editing_keys() -> None:
    for keys, _, _ in SESSION_KEYS:
        for key in keys.split(",")[1:]:
            assert key.startswith("ctrl+")
            assert key not in ("ctrl+u", "ctrl+w", "ctrl+a", "ctrl+k", "ctrl+c", "ctrl+v", "ctrl+x")


async def test_rewind_returns_the_prompt_and_restores_files(server: Server) -> None:
    path = server.home.workspace / "new.txt"
    async with rig(server) as r:
        await r.app.run_action("rewind")
        await r.shows("nothing to rewind")
        await write_file(r)
        await r.app.run_action("undo")
        await r.shows("undo of run", "restored")
        await r.app.run_action("redo")
        await r.shows("redo of run")
        assert path.exists()
        await r.app.run_action("rewind")
        await r.shows("Return to before a prompt", "script: tool write")
        await r.press("enter")
        await r.shows("conversation and files", "files only; the conversation stays")
        await r.press("escape", "enter", "enter")
        await r.shows("the conversation as it was is in session")
        await r.until(lambda: r.prompt.startswith("script: tool write"))
        assert not path.exists()
        await r.shows_no("written it is")
        assert len(r.app.view.sessions()) == 2
