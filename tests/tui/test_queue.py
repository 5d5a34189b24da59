"""The queue panel: edit, move, remove and fold queued prompts (C8), and show changes of other clients."""

from __future__ import annotations

from kedge.client.client import Client
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.tui.panels.queue_panel import QueuePanel
from tests.client.process import Server
from tests.tui.rig import Rig, rig


async def three_queued(r: Rig, key: str) -> None:
    """Queue three prompts after a Run that is held by this key."""
    await r.send(f"script: hold {key} | say first")
    await r.shows("working")
    for word in ("one", "two", "three"):
        await r.send(f"script: say {word}")
    await r.shows("1. script: say one", "2. script: say two", "3. script: say three", "3 queued")


async def choose(r: Rig, index: int) -> None:
    queue = r.app.query_one(QueuePanel)
    queue.focus()
    queue.highlighted = index
    await r.pilot.pause()


async def outcomes(r: Rig) -> dict[str, str]:
    runs = await r.app.connection.client.session_runs(r.app.connection.id, r.app.session_id)
    return {run.prompt.rpartition("say ")[2]: str(run.outcome) for run in runs}


async def test_c8_queued_prompt_is_edited_in_the_prompt(server: Server) -> None:
    async with rig(server) as r:
        await three_queued(r, "q1")
        await r.type("half a thought")
        await choose(r, 1)
        await r.press("e")
        await r.shows("enter: save the queued prompt")
        assert r.prompt == "script: say two"
        await r.type(" and a half")
        await r.press("enter")
        await r.shows("2. script: say two and a half")
        assert r.prompt == "half a thought"
        server.home.endpoint.release("q1")
        await r.shows("two and a half")


async def test_c8_esc_discards_the_edit_and_spares_the_runs(server: Server) -> None:
    async with rig(server) as r:
        await three_queued(r, "q2")
        await choose(r, 0)
        await r.press("e")
        await r.type(" never mind")
        await r.press("escape")
        await r.shows("1. script: say one\n")
        assert r.prompt == ""
        active = r.app.view.active(r.app.session_id)
        assert active is not None
        assert not active.stopping
        server.home.endpoint.release("q2")


async def test_c8_queued_prompts_are_reordered(server: Server) -> None:
    async with rig(server) as r:
        await three_queued(r, "q3")
        await choose(r, 2)
        await r.press("shift+up")
        await r.shows("2. script: say three", "3. script: say two")
        await choose(r, 2)
        await r.press("n")
        await r.shows("1. script: say two", "2. script: say one", "3. script: say three")
        await choose(r, 0)
        await r.press("shift+down")
        await r.shows("1. script: say one", "2. script: say two")
        server.home.endpoint.release("q3")


async def test_c8_removed_prompt_returns_to_the_input(server: Server) -> None:
    async with rig(server) as r:
        await three_queued(r, "q4")
        await choose(r, 1)
        await r.press("d")
        await r.until(lambda: r.prompt == "script: say two")
        await r.shows("2. script: say three", "2 queued")
        server.home.endpoint.release("q4")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        assert (await outcomes(r))["two"] == "cancelled"


async def test_c2_queued_prompt_is_folded_into_the_active_run(server: Server) -> None:
    async with rig(server) as r:
        await r.send('script: hold q5 | tool ls {"path": "."} | hold q6 | say done')
        await r.shows("working")
        await r.send("please hurry")
        await r.shows("1. please hurry")
        await choose(r, 0)
        await r.press("f")
        await r.shows("1. folds into the run: please hurry")
        server.home.endpoint.release("q5")
        await r.shows_no("please hurry\n  ")
        server.home.endpoint.release("q6")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        runs = await r.app.connection.client.session_runs(r.app.connection.id, r.app.session_id)
        assert [bool(run.folded_into) for run in runs] == [False, True], "the Run stays active"


async def test_c2_prompt_waiting_to_fold_is_queued_after_a_stop(server: Server) -> None:
    async with rig(server) as r:
        await three_queued(r, "q11")
        await choose(r, 2)
        await r.press("f")
        await r.shows("3. folds into the run: script: say three")
        await choose(r, 0)
        await r.press("e")
        prompt = r.app.query_one(PromptPanel)
        prompt.set_text("script: hold q12 | say one")
        await r.press("enter")
        await r.shows("1. script: hold q12")
        await r.press("escape")
        await r.shows("1. script: say two", "2. script: say three")
        server.home.endpoint.release("q12")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)


async def test_edited_prompt_attaches_the_files_it_mentions_now(server: Server) -> None:
    notes = server.home.workspace / "notes.txt"
    notes.write_text("content of the notes")
    async with rig(server) as r:
        await three_queued(r, "q13")
        await choose(r, 0)
        await r.press("e")
        await r.type(" @notes.txt please")
        await r.press("enter")
        await r.shows("1. script: say one @notes.txt please")
        server.home.endpoint.release("q13")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        session = r.app.view.conversations[r.app.session_id]
        files = {part.data["path"] for entry in session.ordered() for part in entry.body.parts if part.type == "file"}
        assert files == {"notes.txt"}
    notes.unlink()


async def test_c2_enter_folds_after_ctrl_o(server: Server) -> None:
    async with rig(server) as r:
        await r.send('script: hold q7 | tool ls {"path": "."} | say done')
        await r.shows("working", "enter: queue (ctrl-o: fold)")
        await r.press("ctrl+o")
        await r.shows("enter: fold into the run (ctrl-o: queue)")
        await r.send("and quickly")
        await r.shows("1 queued")
        server.home.endpoint.release("q7")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        runs = await r.app.connection.client.session_runs(r.app.connection.id, r.app.session_id)
        assert [bool(run.folded_into) for run in runs] == [False, True]


async def test_c8_queue_changes_of_another_client_are_shown(server: Server, client: Client) -> None:
    async with rig(server) as r:
        await three_queued(r, "q8")
        workspace, queue = r.app.connection.id, r.app.view.queue(r.app.session_id)
        await client.move_run(workspace, queue[2].run_id, queue[0].run_id)
        await r.shows("1. script: say three", "2. script: say one")
        await client.edit_run(workspace, queue[0].run_id, "script: say uno")
        await r.shows("2. script: say uno")
        await client.cancel_run(workspace, queue[1].run_id)
        await r.shows("2 queued")
        assert "say two" not in r.text
        server.home.endpoint.release("q8")


async def test_tab_moves_to_the_queue_and_back(server: Server) -> None:
    async with rig(server) as r:
        await three_queued(r, "q9")
        await r.press("tab")
        await r.until(lambda: r.app.part(QueuePanel).has_focus)
        await r.shows("e edit · n next")
        await r.press("tab")
        await r.until(lambda: r.app.part(PromptPanel).has_focus)
        await r.shows("enter: queue")
        server.home.endpoint.release("q9")


async def test_second_edit_keeps_the_original_draft(server: Server) -> None:
    async with rig(server) as r:
        await three_queued(r, "q-both")
        await r.type("half a thought")
        for index in (0, 1):
            await choose(r, index)
            await r.press("e")
        await r.type(" at last")
        await r.press("enter")
        await r.shows("2. script: say two at last", "1. script: say one\n")
        assert r.prompt == "half a thought"
        server.home.endpoint.release("q-both")


async def test_refused_edit_returns_the_text(server: Server) -> None:
    async with rig(server) as r:
        await three_queued(r, "q-late")
        await choose(r, 0)
        await r.press("e")
        await r.type(" and more")
        server.home.endpoint.release("q-late")
        await r.until(lambda: not r.app.view.queue(r.app.session_id))  # it has started meanwhile
        await r.press("enter")
        await r.until(lambda: r.prompt == "script: say one and more")


async def test_removal_with_a_lost_reply_returns_the_prompt(server: Server, client: Client) -> None:
    async with rig(server) as r:
        await three_queued(r, "q-lost")
        queued = r.app.view.queue(r.app.session_id)
        await client.create_workspace(str(server.home.workspace))
        await client.cancel_run(r.app.connection.id, queued[1].run_id)  # like an own request whose reply was lost
        assert await r.app.actions.remove(queued[1])
        assert await r.app.actions.remove(queued[0])
        active = r.app.view.active(r.app.session_id)
        assert active is not None
        assert not await r.app.actions.remove(active)
