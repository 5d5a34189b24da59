from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kedge import errors
from kedge.cli.foreground import CancelTarget, _cancel
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.client.assistant_text import AssistantText
from kedge.client.client import Client, new_run_id
from kedge.client.event_stream import StreamEvent
from kedge.client.followed_run import FollowedRun
from kedge.testing import HostedEndpoint
from kedge.wire.models import SubmitPrompt
from tests.client.process import Home, Server
from tests.client.standin import STREAM, Asked, StandIn, frame, json
from tests.client.test_event_stream import begin, submit

USAGE = {"input_tokens": 1, "output_tokens": 2, "cost_usd": 0.0}


def prompt(session_id: str, text: str, **more: Any) -> SubmitPrompt:
    return SubmitPrompt(session_id=session_id, prompt=text, run_id=new_run_id(), **more)


async def follow(followed: FollowedRun) -> tuple[list[StreamEvent], str]:
    """(its events, the printed text)"""
    answer, events, text = AssistantText(), [], ""
    async with followed:
        await followed.submit()
        async for event in followed:
            events.append(event)
            text += answer.feed(event)
    assert followed.complete
    return events, text + answer.finish(followed.complete)


async def test_run_is_followed_from_acceptance_to_its_end(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    followed = FollowedRun(client, workspace_id, prompt(session_id, "script: say one two | say three"))
    events, text = await follow(followed)
    assert text.split() == ["one", "two", "three"]
    assert events[-1].type == "run_complete"
    assert followed.complete
    assert followed.complete.outcome == "completed"
    assert {event.payload["run_id"] for event in events if "run_id" in event.payload} == {followed.run_id}


async def test_events_of_other_runs_are_ignored(client: Client, home: Home, endpoint: HostedEndpoint) -> None:
    workspace_id, session_id = await begin(client, home)
    other_session = (await client.create_session(workspace_id)).id
    before = await submit(client, workspace_id, session_id, "script: say before | hold foreign-1 | fail 400 broken")
    elsewhere = await submit(client, workspace_id, other_session, "script: say elsewhere")
    followed = FollowedRun(client, workspace_id, prompt(session_id, "script: say mine"))
    async with followed:
        receipt = await followed.submit()
        assert receipt.state == "queued"
        await submit(client, workspace_id, session_id, "script: say behind")
        endpoint.release("foreign-1")
        seen = [event async for event in followed]
    assert (await client.run(workspace_id, before)).outcome == "failed"
    assert (await client.wait_run(workspace_id, elsewhere)).outcome == "completed"
    assert not [event for event in seen if event.type == "agent_event"]
    assert [event.payload["run_id"] for event in seen if event.type == "run_complete"] == [followed.run_id]
    assert followed.complete
    assert followed.complete.text.strip() == "mine"


async def test_folded_run_shows_later_text_of_its_host(client: Client, home: Home, endpoint: HostedEndpoint) -> None:
    workspace_id, session_id = await begin(client, home)
    script = "script: tag host | say first | hold fold-1 | tool no_such_tool {} | say second"
    host = await submit(client, workspace_id, session_id, script)
    endpoint.wait_until(lambda endpoint: endpoint.open_by_tag["host"] == 1)
    followed = FollowedRun(client, workspace_id, prompt(session_id, "and this", when_busy="fold"))
    answer, text = AssistantText(), ""
    async with followed:
        await followed.submit()
        endpoint.release("fold-1")
        async for event in followed:
            text += answer.feed(event)
    assert followed.complete
    assert followed.complete.folded_into == host
    assert text + answer.finish(followed.complete) == followed.complete.text
    assert "second" in text


async def test_cancelled_run_ends_cancelled(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    followed = FollowedRun(client, workspace_id, prompt(session_id, "script: say shown | hang"))
    async with followed:
        await followed.submit()
        covered = []
        async for event in followed:
            if event.type == "delta":
                covered = (await followed.cancel()).covered
    assert [one.run_id for one in covered] == [followed.run_id]
    assert followed.complete
    assert followed.complete.outcome == "cancelled"


async def test_restart_loses_and_repeats_nothing(
    own_client: Client, own_server: Server, home: Home, endpoint: HostedEndpoint
) -> None:
    workspace_id, session_id = await begin(own_client, home)
    followed = FollowedRun(own_client, workspace_id, prompt(session_id, "script: words 40 | hold restart-1 | say done"))
    seen: list[StreamEvent] = []
    restarted = False
    async with followed:
        await followed.submit()
        async for event in followed:
            seen.append(event)
            if event.type == "delta" and not restarted:
                restarted = True
                own_server.kill()
                own_server.start()
                endpoint.release("restart-1")
    assert restarted
    told = [event.position for event in seen if event.position is not None]
    assert told == sorted(set(told))
    assert [event.type for event in seen].count("run_complete") == 1


class ScriptedRun:
    """A stand-in server that scripts the events of one Run."""

    def __init__(self, *streams: list[bytes]) -> None:
        self.streams = list(streams)
        self.run: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []
        self.permissions: list[dict[str, Any]] = []
        self.refusals = 0
        #: Replies when the state is reread.
        self.reread_refusals = 0
        self.submitted: list[bytes] = []

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path.endswith("/events"):
            for data in self.streams.pop(0):
                writer.write(data)
            await writer.drain()
            if not self.streams:
                await asyncio.Event().wait()
        elif asked.path.endswith("/agent"):
            self.submitted.append(asked.body)
            if self.refusals:
                self.refusals -= 1
                return  # closes after reading the prompt: acceptance is unknown
            receipt = {"run_id": "r1", "session_id": "s", "seq": 1, "state": "active", "position": 10}
            writer.write(json(202, receipt))
        elif asked.path.endswith("/agent/runs/r1"):
            if self.reread_refusals:
                self.reread_refusals -= 1
                return  # closes, as during a restart
            writer.write(json(200, self.run))
        elif asked.path.endswith("/messages"):
            writer.write(json(200, [] if "after=" in asked.query else self.messages))
        elif asked.path.endswith("/permissions"):
            writer.write(json(200, self.permissions))
        elif asked.path.endswith("/questions"):
            writer.write(json(200, []))
        await writer.drain()


def told_message(text: str, *, end: bool, run_id: str = "r1", message_id: str = "m1") -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "data": {"text": text}}]
    parts += [{"type": "finish", "data": {"reason": "end_turn", "time": 1}}] if end else []
    ids = {"id": message_id, "session_id": "s", "run_id": run_id, "role": "assistant"}
    return {**ids, "parts": parts, "model": "", "provider": "", "created_at": 1, "updated_at": 1}


def told_end(text: str, run_id: str = "r1") -> dict[str, Any]:
    ids = {"session_id": "s", "run_id": run_id, "message_id": "m1"}
    return {**ids, "text": text, "outcome": "completed", "reason": "", "usage": USAGE, "cleanup": "clean"}


def told_run(state: str, **more: Any) -> dict[str, Any]:
    ids = {"run_id": "r1", "session_id": "s", "workspace_id": "w", "seq": 1, "state": state, "prompt": "p"}
    return {**ids, "accepted_at": 1, "usage": USAGE, "cleanup": "clean", "stopping": False, "steps": 1, **more}


def told_follow(client: Client) -> FollowedRun:
    return FollowedRun(client, "w", SubmitPrompt(session_id="s", prompt="p", run_id="r1"), give_up_s=5)


async def test_end_before_the_202_is_not_missed() -> None:
    told = ScriptedRun(
        [STREAM, frame("message", told_message("early", end=True), 11), frame("run_complete", told_end("early"), 12)]
    )
    async with StandIn(told) as standin, Client(standin.host) as client:
        _, text = await follow(told_follow(client))
    assert text == "early"


async def test_run_complete_alone_provides_the_text() -> None:
    told = ScriptedRun(
        [STREAM, frame("run_complete", told_end("foreign", "r0"), 11), frame("run_complete", told_end("text"), 12)]
    )
    async with StandIn(told) as standin, Client(standin.host) as client:
        _, text = await follow(told_follow(client))
    assert text == "text"


async def test_early_lost_stream_resumes_before_the_run() -> None:
    told = ScriptedRun([STREAM], [STREAM, frame("run_complete", told_end("x"), 12)])
    async with StandIn(told) as standin, Client(standin.host) as client:
        events, _ = await follow(told_follow(client))
        assert [one.headers.get("last-event-id") for one in standin.asked if "events" in one.path] == [None, "9"]
    assert [event.type for event in events] == ["run_complete"]


async def test_state_is_reread_after_a_gap() -> None:
    gap = frame("gap", {"reason": "evicted", "position": 50})
    start = frame("message", told_message("ab", end=False), 11)
    told = ScriptedRun([STREAM, start, gap, frame("run_complete", told_end("abcde"), 51)])
    told.run = told_run("active")
    told.messages = [told_message("foreign", end=True, run_id="r0", message_id="m0"), told_message("abcd", end=False)]
    async with StandIn(told) as standin, Client(standin.host) as client:
        _, text = await follow(told_follow(client))
    assert text == "abcde"


@pytest.mark.found(
    "a review of the client: a server that is down while the state is reread",
    "after a gap the state was requested once, and a server that was down at that moment ended `kedge run`, although a "
    "lost stream is retried for a minute; the request is now retried as long",
)
async def test_f6_reread_waits_for_a_server_that_is_away() -> None:
    gap = frame("gap", {"reason": "evicted", "position": 50})
    told = ScriptedRun([STREAM, gap, frame("run_complete", told_end("abcde"), 51)])
    told.run, told.reread_refusals = told_run("active"), 2
    async with StandIn(told) as standin, Client(standin.host) as client:
        _, text = await follow(told_follow(client))
    assert text == "abcde"


def told_ask(ask_id: str, run_id: str = "r1") -> dict[str, Any]:
    ids = {"id": ask_id, "session_id": "s", "run_id": run_id, "tool_call_id": "c1", "tool_name": "bash"}
    return {**ids, "action": "execute", "description": "", "path": "", "params": {}, "grant": "", "asked_at": 1}


async def test_gap_repeats_pending_and_closes_settled_asks() -> None:
    gap = frame("gap", {"reason": "evicted", "position": 50})
    asked = [frame("permission_request", told_ask("a1"), 11), frame("permission_request", told_ask("a2", "r0"), 12)]
    told = ScriptedRun([STREAM, *asked, gap, frame("run_complete", told_end(""), 51)])
    told.run = told_run("active")
    told.permissions = [told_ask("a3"), told_ask("a4", "r0")]
    async with StandIn(told) as standin, Client(standin.host) as client:
        events, _ = await follow(told_follow(client))
    told_of = [(event.type, event.payload["id"]) for event in events if event.type.startswith("permission")]
    assert told_of == [("permission_request", "a1"), ("permission_notification", "a1"), ("permission_request", "a3")]


async def test_missed_end_is_found_after_a_gap() -> None:
    told = ScriptedRun([STREAM, frame("gap", {"reason": "evicted", "position": 50})])
    told.run = told_run("ended", outcome="failed", reason="model_failed", error="why", text="abc", message_id="m1")
    told.messages = [told_message("abc", end=True)]
    async with StandIn(told) as standin, Client(standin.host) as client:
        followed = told_follow(client)
        events, text = await follow(followed)
    assert text == "abc"
    assert [event.type for event in events].count("run_complete") == 1
    assert followed.complete
    assert (followed.complete.outcome, followed.complete.error) == ("failed", "why")


async def test_lost_receipt_resubmits_with_the_same_id() -> None:
    told = ScriptedRun([STREAM, frame("run_complete", told_end("x"), 12)])
    told.refusals = 2
    async with StandIn(told) as standin, Client(standin.host) as client:
        await follow(told_follow(client))
    assert len(told.submitted) == 3
    assert len(set(told.submitted)) == 1


async def test_unanswered_prompt_fails_in_the_end() -> None:
    told = ScriptedRun([STREAM])
    told.refusals = 1000
    async with StandIn(told) as standin, Client(standin.host) as client:
        body = SubmitPrompt(session_id="s", prompt="p", run_id="r1")
        async with FollowedRun(client, "w", body, give_up_s=0.2) as followed:
            with pytest.raises(errors.Unreachable):
                await followed.submit()


@pytest.mark.found(
    "a review of the command line: Ctrl-C while the server shuts down",
    "the cancel was refused with 503 and not retried, and after the restart the Run continued to its end; the cancel "
    "is now retried until it is accepted",
)
@pytest.mark.parametrize("code", ["shutting_down", "store_unavailable"])
async def test_cancel_is_retried_until_accepted(code: str) -> None:
    refused = json(errors.BY_CODE[code].status, {"message": "not now", "code": code})
    replies = [refused, refused, json(200, {"mark": 1, "covered": []})]

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(replies.pop(0))

    async with StandIn(handler) as standin, Client(standin.host) as client:
        target, followed = CancelTarget(), FollowedRun(client, "w", SubmitPrompt(session_id="s", run_id="r"))
        target.accepted.set()
        await _cancel(target, followed, StatusLine(StdoutWriter()))
        assert [asked.path for asked in standin.asked] == ["/workspaces/w/agent/runs/r/cancel"] * 3
