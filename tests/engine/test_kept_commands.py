"""Kept commands: they outlive their Run, belong to the session, and end with the server at the latest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kedge.core.approvals import Grant, Intent, parse_rules
from kedge.core.kept_commands import KEPT_PER_SESSION_MAX, KeptCommand
from kedge.core.modes import Mode, permit_in_mode
from kedge.errors import NotFound
from kedge.llm.base import ModelRequest
from kedge.testing.scripted import Call, Hold, Reply, Say, ScriptedModel
from kedge.tools.base import ToolFailed
from kedge.tools.head_tail import RECENT_BYTES_MAX, RecentOutput
from kedge.tools.jobs import JobsTool
from kedge.tools.shell import BashTool
from tests.engine.rig import PlainMachine, Rig, is_alive, kill, no_asyncio_errors, rig, start, until, until_marked
from tests.tools.contexts import make_context, prepare


class QuickBash(BashTool):
    #: A command that fails at once is not of interest here. Seconds.
    STARTUP_WAIT_S = 0.05


TOOLS = (QuickBash(), JobsTool())
#: Prints its pid, so that a test can check the process, then a line whenever the file `next` appears.
SERVER = "echo $$ > pid; echo listening; while :; do if [ -e next ]; then rm next; echo request; fi; sleep 0.02; done"


def keep(command: str = SERVER) -> Call:
    return Call("bash", {"command": command, "background": True, "keep": True})


async def commands(r: Rig) -> list[KeptCommand]:
    session = await r.engine.session(r.workspace, r.session)
    return list(r.workspace.view(session).session.kept_commands)


def recent_of(r: Rig, id_: str) -> RecentOutput:
    recent = r.engine.kept_registry._kept[id_].running.recent
    assert recent is not None
    return recent


async def kept_id(r: Rig) -> str:
    return (await commands(r))[-1].id


async def test_kept_command_outlives_its_run_and_a_cancel(tmp_path: Path) -> None:
    model = ScriptedModel([keep()], "started", [Hold("x"), Say("y")], [Call("jobs", {"action": "list"})], "listed")
    async with rig(tmp_path, model, tools=TOOLS, machine=PlainMachine()) as r, no_asyncio_errors():
        run = await r.submit(mode="yolo")
        assert (await r.end(run)).outcome == "completed"
        id_, pid = await kept_id(r), tmp_path / "pid"
        assert [entry.state for entry in await commands(r)] == ["running"]
        assert is_alive(pid)

        await r.submit(run_id="second")
        await r.model.wait_requests(3)
        cancelled = await r.engine.cancel(r.workspace, r.session)
        assert [entry.id for entry in cancelled.kept_commands] == [id_]
        assert (await r.end("second")).outcome == "cancelled"
        assert is_alive(pid)

        await r.end(await r.submit())  # a later Run sees it
        assert f"{id_}  kept, is running  $ {SERVER[:20]}" in (await r.results())[-1][1]
        assert f"- {id_} is running: $ {SERVER[:20]}" in r.model.requests[-1].request.system

        (tmp_path / "next").touch()

        async def output() -> str:
            return (await r.engine.kept_registry.output(r.workspace, r.session, id_)).output

        recent = recent_of(r, id_)
        await until(lambda: recent.text == "listening\nrequest\n")
        ended = await r.engine.kept_registry.end(r.workspace, r.session, id_)
        assert (ended.state, ended.exit_code) == ("ended", -15)
        assert not is_alive(pid)
        assert await output() == "listening\nrequest\n"
        assert [entry.state for entry in (await r.store.sessions(r.workspace.id))[0].kept_commands] == ["ended"]
        assert (await r.engine.kept_registry.end(r.workspace, r.session, id_)).state == "ended"
        with pytest.raises(NotFound):
            await r.engine.kept_registry.end(r.workspace, r.session, "k-unknown")


async def test_later_run_reads_and_ends_a_kept_command(tmp_path: Path) -> None:
    actions = iter(("output", "kill", "output"))
    id_ = ""

    def reply(_: ModelRequest) -> Reply:
        action = next(actions, None)
        return [Call("jobs", {"action": action, "id": id_})] if action else "done"

    async with rig(tmp_path, ScriptedModel([keep()], "started", reply), tools=TOOLS, machine=PlainMachine()) as r:
        await r.end(await r.submit(mode="yolo"))
        id_ = await kept_id(r)
        await r.end(await r.submit())
        contents = [content for _, content in await r.results()][-3:]
        assert contents[0].startswith(f"{id_} is running. Its output since the last call:")
        assert contents[1].startswith(f"{id_} was ended.")
        assert contents[2].startswith(f"{id_} has ended")
        assert not is_alive(tmp_path / "pid")
        assert [entry.state for entry in await commands(r)] == ["ended"]


async def test_cancel_before_the_command_is_kept_ends_it(tmp_path: Path) -> None:
    slow = QuickBash()
    slow.STARTUP_WAIT_S = 60.0
    model = ScriptedModel([keep()])
    async with rig(tmp_path, model, tools=(slow,), machine=PlainMachine()) as r:
        run = await r.submit(mode="yolo")
        await until_marked(tmp_path / "pid")
        assert (await r.engine.cancel(r.workspace, r.session)).kept_commands == ()
        assert (await r.end(run)).cleanup == "clean"
        assert not is_alive(tmp_path / "pid")
        assert await commands(r) == []


async def test_store_that_is_away_when_a_command_is_kept_ends_it(tmp_path: Path) -> None:
    slow = QuickBash()
    slow.STARTUP_WAIT_S = 0.5
    async with rig(tmp_path, ScriptedModel([keep()], "done"), tools=(slow,), machine=PlainMachine()) as r:
        run = await r.submit(mode="yolo")
        await until_marked(tmp_path / "pid")
        r.store.fail_before = 1
        await r.end(run)
        assert "could not be recorded" in (await r.results())[0][1]
        assert not is_alive(tmp_path / "pid")
        assert [entry.is_running for entry in await commands(r)] in ([], [False])


async def test_deleting_the_session_ends_its_commands(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([keep()], "ok"), tools=TOOLS, machine=PlainMachine()) as r:
        await r.end(await r.submit(mode="yolo"))
        pid = tmp_path / "pid"
        other = await r.engine.create_session(r.workspace, "")
        await r.engine.delete_session(r.workspace, other.id)
        assert is_alive(pid)
        await r.engine.delete_session(r.workspace, r.session)
        assert not is_alive(pid)


async def test_closing_the_server_ends_and_records_commands(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([keep()], "ok"), tools=TOOLS, machine=PlainMachine()) as r:
        await r.end(await r.submit(mode="yolo"))
        assert not r.engine.workspaces.are_idle  # a server that stops when it is idle must not end it
        pid = tmp_path / "pid"
    assert not is_alive(pid)
    (stored,) = r.store.data.sessions.values()
    assert [entry.state for entry in stored.kept_commands] == ["server_stopped"]


async def test_commands_of_a_lost_server_are_reported_as_ended(tmp_path: Path) -> None:
    machine = PlainMachine()
    r = await start(tmp_path, ScriptedModel([keep("sleep 1000")], "ok"), tools=TOOLS, machine=machine)
    await r.end(await r.submit(mode="yolo"))
    running = next(iter(r.engine.kept_registry._kept.values())).running
    store = await kill(r)
    await running.process.end(0)  # as the keeper does when its server is gone
    async with rig(tmp_path, ScriptedModel("hello"), store, tools=TOOLS, machine=PlainMachine()) as again:
        assert [entry.state for entry in await commands(again)] == ["server_stopped"]
        await again.end(await again.submit())
        system = again.model.requests[-1].request.system
        assert f"- {await kept_id(again)} ended with its server: $ sleep 1000" in system


async def test_number_and_output_of_kept_commands_are_limited(tmp_path: Path) -> None:
    loud = f"while [ ! -e go ]; do sleep 0.02; done; printf '%{3 * RECENT_BYTES_MAX}s\\n' end; sleep 1000"
    calls = [keep(loud), *(keep(f"sleep {1000 + number}") for number in range(KEPT_PER_SESSION_MAX))]
    async with rig(tmp_path, ScriptedModel(calls, "ok"), tools=TOOLS, machine=PlainMachine()) as r:
        await r.end(await r.submit(mode="yolo"))
        refused = [content for _, content in await r.results() if "already run" in content]
        assert len(refused) == 1
        assert len(await commands(r)) == KEPT_PER_SESSION_MAX
        id_ = next(entry.id for entry in await commands(r) if entry.command.startswith("while"))
        (tmp_path / "go").touch()
        recent = recent_of(r, id_)
        await until(lambda: recent.text.endswith("end\n"))
        shown = await r.engine.kept_registry.output(r.workspace, r.session, id_)
        assert (len(shown.output), shown.is_cut) == (RECENT_BYTES_MAX, True)


async def intent_of(directory: Path, command: str, **fields: Any) -> Intent:
    return (await prepare(BashTool(), make_context(directory), command=command, **fields)).intent


async def test_keeping_a_command_is_a_permission_of_its_own(tmp_path: Path) -> None:
    plain = await intent_of(tmp_path, "npm run dev", background=True)
    entry = await intent_of(tmp_path, "npm run dev", background=True, keep=True)
    reading = await intent_of(tmp_path, "tail -f log", background=True, keep=True)
    assert "stays after the run: $ npm run dev" in entry.description
    assert "continues after the run" in json.loads(entry.params)["keep"]
    assert plain.binding != entry.binding  # an answer for one is not used for the other
    grants = (Grant("g1", "w", "", plain.grant, 0),)
    rules, none = parse_rules(["bash(npm run dev)"], []), parse_rules([], [])

    def decide(mode: Mode, intent: Intent, allowed: Any = none) -> str:
        return permit_in_mode(mode, intent, allowed, grants, can_confine=True).decision

    assert decide("ask", plain) == "allow"
    assert [decide("ask", entry), decide("edits", entry), decide("ask", reading)] == ["ask"] * 3
    assert [decide("ask", entry, rules), decide("auto", entry), decide("yolo", entry)] == ["allow"] * 3
    assert decide("plan", entry) == "refuse"
    assert decide("yolo", entry, parse_rules([], ["bash(npm *)"])) == "deny"
    with pytest.raises(ToolFailed, match="background: true"):
        await intent_of(tmp_path, "npm run dev", keep=True)
