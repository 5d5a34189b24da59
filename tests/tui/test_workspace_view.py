"""The workspace view: the same state for any order and repetition of events."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.client.event_stream import StreamEvent
from kedge.client.view.conversation import ViewChanges
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.pending_asks import closed_text
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import THEMES
from kedge.tui.render.tool_cards import RenderedLine
from kedge.wire import models as m
from tests.tui import story as s
from tests.tui.story import Json, Story

RENDERER = Renderer(THEMES["plain"])


def opened(*sessions: str) -> WorkspaceView:
    """A view with these sessions open and empty."""
    view = WorkspaceView()
    for session in sessions or ("s1",):
        view.load_conversation(session, [], 0)
    return view


def applied(view: WorkspaceView, events: list[StreamEvent]) -> ViewChanges:
    changed = ViewChanges()
    for event in events:
        # Decoded for each view, as from the wire: views and repetitions share no payload.
        copy = msgspec.json.decode(msgspec.json.encode(event.payload))
        changed.add(view.apply(StreamEvent(event.type, event.change, copy, event.position)))
    return changed


def lines(view: WorkspaceView, session: str = "s1") -> list[str]:
    message_renderer = MessageRenderer(view, RENDERER, 80)
    conversation = view.conversations[session]
    rendered: list[RenderedLine] = [
        line for entry in conversation.ordered() for line in message_renderer.message(entry, conversation)
    ]
    return [line.strip.text.rstrip() for line in rendered]


def shown(view: WorkspaceView, *, is_drawn: bool = True) -> Json:
    """All visible state."""
    state: Json = {"sessions": view.sessions(), "asks": view.asks(), "closed": view.closed_asks}
    for session, conversation in view.conversations.items():
        state[session] = {
            "messages": [entry.body for entry in conversation.ordered()],
            "lines": lines(view, session) if is_drawn else [],
            "retries": conversation.retries,
            "active": view.active(session),
            "queue": view.queue(session),
        }
    return state


# --- stories --------------------------------------------------------------------------------------------------------


def a_run(story: Story, draw: random.Random, run: str, seq: int, *, is_last: bool) -> None:
    """Add a Run: Steps with calls, approvals and retries, and one of the outcomes."""
    story.run("created", s.run_body(run, "queued", seq=seq))
    if draw.random() < 0.3:
        story.run("updated", s.run_body(run, "queued", seq=seq, queue_order=seq + 10, prompt="edited"))
    if draw.random() < 0.2:
        story.ended(run, "cancelled", seq=seq)  # it never started
        return
    story.run("updated", s.run_body(run, "active", seq=seq, started_at=5))
    story.message("created", s.message(f"{run}-ask", "user", s.text(f"do {run}"), run=run))
    steps = draw.randrange(1, 4)
    for step in range(1, steps + 1):
        story.run("updated", s.run_body(run, "active", seq=seq, steps=step, started_at=5))
        a_step(story, draw, run, step)
    end = draw.choice(["completed", "cancelled", "failed", "interrupted", *(["still active"] if is_last else [])])
    reason = {"completed": "end_turn", "cancelled": "canceled"}.get(end, "error")
    if end == "still active":
        story.message("created", s.message(f"{run}-last", "assistant", s.text("so far"), run=run))
        return
    details = "The model broke off; try again." if end == "failed" else ""
    story.message("created", s.message(f"{run}-last", "assistant", s.text("done"), run=run))
    last = s.message(f"{run}-last", "assistant", s.text("done"), s.finish(reason, "", details), run=run)
    story.message("updated", last)
    story.ended(run, end, seq=seq, steps=steps)


def a_step(story: Story, draw: random.Random, run: str, step: int) -> None:
    """Add a Step. Its calls have the same ids as those of the Step before: some providers reuse them."""
    name, calls = f"{run}-{step}", [f"call_{n}" for n in range(draw.randrange(0, 3))]
    story.message("created", s.message(name, "assistant", run=run))
    for attempt in range(2, 2 + draw.choice([0, 0, 1, 2])):
        story.message("updated", s.message(name, "assistant", run=run))  # the text of the failed attempt is removed
        story.retry(run, attempt)
    if draw.random() < 0.4:
        # The user runs a shell command meanwhile.
        shell = {"type": "shell_command", "data": {"command": "ls", "output": "a", "exit_code": 0}}
        story.message("created", s.message(f"{name}-shell", "user", shell, run=""))
    parts = [s.text(f"step {step}"), *(s.call(one, "bash", {"command": f"echo {name} {one}"}) for one in calls)]
    story.message("updated", s.message(name, "assistant", *parts, s.finish("tool_use"), run=run))
    for one in calls:
        if draw.random() < 0.4:
            ask = f"ask-{name}-{one}"
            story.tell("permission_request", "created", s.approval(ask, run=run, call_id=one))
            answer = draw.choice(["allow", "deny", "", None])
            if answer is not None:
                body = s.settled(ask, answer, "c9" if answer else "", run=run, call_id=one)
                story.tell("permission_notification", "created", body)
    for one in calls:
        if draw.random() < 0.9:
            output = s.result(one, f"output of {name} {one}", exit_code=0, summary="exit 0, 0.0 s")
            story.message("created", s.message(f"{name}-{one}", "tool", output, run=run))


def a_child(story: Story, draw: random.Random) -> None:
    """Add a child Run of r1, in its own session."""
    story.tell("session", "created", s.session_body("s9", "look around"))
    child: Json = {"session": "s9", "seq": 9, "parent_run_id": "r1", "prompt": "look"}
    story.run("created", s.run_body("r9", "active", **child))
    story.message("created", s.message("r9-ask", "user", s.text("look"), run="r9", session="s9"))
    story.run("updated", s.run_body("r9", "active", steps=1, **child))
    if draw.random() < 0.7:
        story.ended("r9", steps=2, **child)


def a_story(seed: int) -> Story:
    draw, story = random.Random(seed), Story()
    story.tell("session", "created", s.session_body("s1"))
    story.tell("session", "created", s.session_body("s2", "another"))
    runs = draw.randrange(1, 4)
    for seq in range(1, runs + 1):
        a_run(story, draw, f"r{seq}", seq, is_last=seq == runs)
    if draw.random() < 0.5:
        a_child(story, draw)
    story.tell("session", "updated", s.session_body("s1", "A title", 7))
    if draw.random() < 0.5:
        story.tell("session", "deleted", {"id": "s2"})
    seen = sorted({event.payload["id"] for event in story.events if event.type == "message"})
    for gone in draw.sample(seen, draw.choice([0, 0, 1, 2]) if len(seen) > 2 else 0):
        body = next(event.payload for event in story.events if event.payload.get("id") == gone)
        story.message("deleted", {"id": gone, "session_id": body["session_id"]})
    return story


def batches(story: Story, draw: random.Random) -> list[StreamEvent]:
    """Return every event at least once, in pieces that overlap, repeat and are in any order."""
    events = story.events
    pieces: list[list[StreamEvent]] = []
    for _ in range(draw.randrange(0, 6)):
        start = draw.randrange(len(events))
        pieces.append([again(story, event, draw) for event in events[start : start + draw.randrange(1, 30)]])
    cuts = sorted(draw.sample(range(len(events)), min(len(events), draw.randrange(0, 6))))
    pieces += [events[start:end] for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    draw.shuffle(pieces)
    mixed = [event for piece in pieces for event in piece]
    if draw.random() < 0.3:
        draw.shuffle(mixed)
    return mixed


def again(story: Story, event: StreamEvent, draw: random.Random) -> StreamEvent:
    """Return the event as it is read later: the log refers to a record, which may be newer by then, or deleted."""
    if event.type not in ("message", "session", "run") or draw.random() < 0.5:
        return event
    key = "run_id" if event.type == "run" else "id"
    last = [one for one in story.events if one.type == event.type and one.payload[key] == event.payload[key]][-1]
    change = "deleted" if last.change == "deleted" else event.change
    return StreamEvent(event.type, change, last.payload, event.position)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_order_and_repetition_of_batches_do_not_matter(seed: int) -> None:
    story, draw = a_story(seed), random.Random(seed + 1)
    clean, mixed = opened("s1", "s9"), opened("s1", "s9")
    ends = [one.run_id for one in applied(clean, story.events).ended]
    ends_mixed = [one.run_id for one in applied(mixed, batches(story, draw)).ended]
    assert shown(mixed) == shown(clean)
    assert sorted(ends_mixed) == sorted(ends), "each end is reported once"


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_view_loaded_midway_converges(seed: int) -> None:
    """Load state at a Position, then apply the later events. The state already includes some of them."""
    story, draw = a_story(seed), random.Random(seed + 1)
    clean, joined = opened("s1", "s9"), opened("s1", "s9")
    applied(clean, story.events)
    middle = draw.randrange(len(story.events))
    until = draw.randrange(middle, len(story.events))
    at = story.events[middle].position or 0
    before = opened("s1", "s9")
    applied(before, story.events[: until + 1])
    # The request was made at `at`; the response is as of `until`.
    joined.load_sessions(before.sessions(), at)
    joined.load_runs([run for one in range(10) if (run := before.run(f"r{one}"))], at)
    joined.load_asks(before.asks())
    for session in ("s1", "s9"):
        joined.load_conversation(session, [e.body for e in before.conversations[session].ordered()], at)
    applied(joined, story.events[middle + 1 :])
    now, then = shown(joined, is_drawn=False), shown(clean, is_drawn=False)
    for part in ("s1", "s9"):
        del now[part]["retries"], then[part]["retries"]  # a view loaded midway receives only later retries
    for part in ("sessions", "asks", "s1", "s9"):
        assert now[part] == then[part]


# --- single events --------------------------------------------------------------------------------------------------


def test_deltas_apply_only_to_messages_that_follow() -> None:
    view = WorkspaceView()
    view.load_conversation("s1", s.bodies(s.message("m1", "assistant", s.text("read"))), 50)
    applied(view, [s.delta("m1", " more")])
    assert lines(view) == ["  read", ""], "the loaded text may already include the Delta"
    applied(view, [s.snapshot(s.message("m1", "assistant", s.text("read and"))), s.delta("m1", " more")])
    assert lines(view) == ["  read and more", ""]
    applied(view, [StreamEvent("message", "updated", s.message("m1", "assistant", s.text("end"), s.finish()), 60)])
    changed = applied(view, [s.delta("m1", " late"), s.delta("unknown", "x")])
    assert lines(view) == ["  end", ""]
    assert not changed.messages


def test_deltas_create_missing_parts() -> None:
    view, story = opened(), Story()
    story.message("created", s.message("m1", "assistant"))
    applied(view, [*story.events, s.delta("m1", "hm", 0, "reasoning"), s.delta("m1", "so", 1), s.delta("m1", "!", 1)])
    kinds = [(part.type, part.data) for part in view.conversations["s1"].entries["m1"].body.parts]
    assert kinds == [("reasoning", {"thinking": "hm"}), ("text", {"text": "so!"})]


def test_retry_clears_the_message() -> None:
    view, story = opened(), Story()
    story.message("created", s.message("m1", "assistant"))
    applied(view, [story.events[0], s.delta("m1", "half a thou")])
    story.message("updated", s.message("m1", "assistant"))
    story.retry("r1", 2)
    applied(view, story.events[1:])
    assert lines(view) == ["↻ The provider is busy. Attempt 2 of 5 in 2 s.", ""]
    applied(view, [s.delta("m1", "a thought")])
    assert lines(view) == ["  a thought", ""]
    applied(view, story.events)
    assert not view.conversations["s1"].retries, "a repeated old retry stays ended"


def test_reused_call_ids_keep_their_own_results() -> None:
    view, story = opened(), Story()
    story.run("created", s.run_body())
    for step in ("one", "two"):
        story.message("created", s.message(step, "assistant", s.call("call_0", "bash", {"command": step})))
        if step == "one":
            story.message(
                "created", s.message("t1", "tool", s.result("call_0", "said one", exit_code=0, summary="exit 0"))
            )
    applied(view, [*story.events, s.progress("call_0", "working on two")])
    drawn = lines(view)
    assert drawn[:2] == ["● $ one  exit 0", "    said one"]
    assert drawn[-3:-1] == ["○ $ two", "    working on two"]


def test_open_call_of_an_ended_run_is_interrupted() -> None:
    view, story = opened(), Story()
    story.run("created", s.run_body())
    story.message("created", s.message("m1", "assistant", s.call("c1", "bash", {"command": "sleep 9"})))
    applied(view, story.events)
    assert lines(view)[0] == "○ $ sleep 9"
    story.ended("r1", "interrupted")
    changed = applied(view, story.events)
    assert "m1" in changed.messages
    assert lines(view)[0] == "■ $ sleep 9  no result"


def test_agent_card_shows_the_state_of_its_run() -> None:
    view, story = opened(), Story()
    story.run("created", s.run_body())
    look = s.call("c1", "agent", {"prompt": "look", "description": "Look around"})
    story.message("created", s.message("m1", "assistant", look))
    a_child_run: dict[str, Any] = {"session": "s9", "parent_run_id": "r1", "prompt": "look"}
    story.run("created", s.run_body("r9", "active", steps=2, **a_child_run))
    changed = applied(view, [*story.events, s.progress("x", "$ grep -rn door", run="r9", session="s9")])
    assert "m1" in changed.messages
    assert lines(view)[:2] == ["○ agent Look around  step 2", "    $ grep -rn door"]
    story.ended("r9", session="s9", steps=3, started_at=1_000, ended_at=5_200, parent_run_id="r1", prompt="look")
    story.message("created", s.message("t1", "tool", s.result("c1", "It is blue.")))
    applied(view, story.events)
    assert lines(view)[:2] == ["● agent Look around  3 steps, 4.2 s", "    It is blue."]
    assert view.is_child("s9")
    assert not view.is_child("s1")


def test_agents_with_the_same_prompt_match_by_order() -> None:
    view, story = opened(), Story()
    story.run("created", s.run_body())
    calls = [s.call(one, "agent", {"prompt": "look"}) for one in ("c1", "c2")]
    story.message("created", s.message("m1", "assistant", *calls))
    for number in (1, 2):
        child: Json = {"session": f"a{number}", "seq": number, "parent_run_id": "r1", "prompt": "look"}
        story.run("created", s.run_body(f"child{number}", "active", steps=number, **child))
    applied(view, story.events)
    assert [line for line in lines(view) if line] == ["○ agent look  step 1", "○ agent look  step 2"]


def test_answering_client_is_known_in_any_event_order() -> None:
    for order in (1, -1):
        view, story = opened(), Story()
        story.tell("permission_request", "created", s.approval("a1"))
        story.tell("permission_notification", "created", s.settled("a1", "deny", "c7"))
        story.tell("permission_request", "deleted", {"id": "a1", "run_id": "r1"})
        applied(view, story.events[::order])
        assert view.closed_asks["a1"].by == "c7"
        assert view.asks() == []


def test_prompts_and_cancels_of_users_have_names() -> None:
    view, story = opened(), Story()
    story.message("created", s.message("m1", "user", s.text("hello")))
    story.message("created", s.message("m2", "assistant", s.finish("canceled")))
    applied(view, story.events)
    assert lines(view) == ["▌ hello", "", "■ cancelled", ""]
    story.run("created", s.run_body(author="ann"))
    assert applied(view, story.events[-1:]).messages == {"m1", "m2"}
    story.ended("r1", "cancelled", author="ann", cancelled_by="bob")
    assert applied(view, story.events[-2:]).messages == {"m1", "m2"}
    assert lines(view) == ["▌ ann", "▌ hello", "", "■ cancelled by bob", ""]


def test_run_that_overtakes_others_reloads_the_queue() -> None:
    view, story = opened(), Story()
    for seq in (2, 3):
        story.run("created", s.run_body(f"r{seq}", "queued", seq=seq))
        assert not applied(view, story.events[-1:]).moved
    story.run("created", s.run_body("r4", "queued", seq=4, queue_order=3, author="ann"))
    assert applied(view, story.events[-1:]).moved


def test_answer_of_a_user_has_a_name() -> None:
    view, story = opened(), Story()
    ask = msgspec.convert(s.approval("a1"), m.PermissionRequest)
    story.tell("permission_notification", "created", s.settled("a1", "allow", "c7") | {"author": "ann"})
    applied(view, story.events)
    assert closed_text(ask, view.closed_asks["a1"]) == "bash: allowed by ann"


def test_ask_redraws_only_the_message_of_its_call() -> None:
    view, story = opened(), Story()
    for number in (1, 2):
        run = f"r{number}"
        story.message("created", s.message(f"m{number}", "assistant", s.call("c1", "bash", {"command": "x"}), run=run))
    applied(view, story.events)
    story.tell("permission_request", "created", s.approval("a1", run="r2"))
    changed = applied(view, story.events[-1:])
    assert changed.messages == {"m2"}
    assert changed.asks
    assert lines(view)[2] == "? $ x  waiting for your answer"


def test_deleted_result_leaves_its_card() -> None:
    view, story = opened(), Story()
    story.run("created", s.run_body())
    story.message("created", s.message("m1", "assistant", s.call("c1", "bash", {"command": "x"})))
    story.message("created", s.message("t1", "tool", s.result("c1", "out", exit_code=0)))
    applied(view, story.events)
    story.message("deleted", {"id": "t1", "session_id": "s1"})
    assert applied(view, story.events).messages >= {"m1"}
    assert lines(view)[0] == "○ $ x"


def test_ended_runs_are_not_searched_for_live_ones() -> None:
    """Ended Runs are in none of the lists that are searched."""
    view = opened()
    ended = [msgspec.convert(s.run_body(f"r{n}", "ended", seq=n), m.RunBody) for n in range(5_000)]
    view.load_runs(ended, 1)
    story = Story()
    story.run("created", s.run_body("now", "active", seq=6_000))
    story.run("created", s.run_body("next", "queued", seq=6_001))
    applied(view, story.events)
    assert view.active("s1") is not None
    assert [run.run_id for run in view.queue("s1")] == ["next"]
    assert sum(len(runs) for runs in view._live.values()) == 2
    story.ended("now", seq=6_000)
    applied(view, story.events)
    assert view.active("s1") is None


def test_moved_run_requests_a_queue_reload() -> None:
    view, story = opened(), Story()
    story.run("created", s.run_body("r1", "queued", seq=1))
    assert not applied(view, story.events).moved
    story.run("updated", s.run_body("r1", "queued", seq=1, queue_order=9))
    assert applied(view, story.events[1:]).moved
    assert not applied(view, story.events[1:]).moved, "a repeated event moves nothing"


@pytest.mark.parametrize("kind", ["gap", "file", "something of a later version"])
def test_gap_is_reported_and_other_events_are_ignored(kind: str) -> None:
    changed = opened().apply(StreamEvent(kind, "created", {"reason": "evicted", "position": 9}, None))
    assert changed.gap == (kind == "gap")
    assert not changed.messages


@pytest.mark.parametrize("order", ["live", "load after the event", "load before the event"])
def test_rewind_removes_the_message_and_later_ones(order: str) -> None:
    """In every order of the event and of a response that was made before it."""
    stored = [s.message(f"m{number}", "user", s.text("hello"), run="r") for number in range(4)]
    bodies = msgspec.convert(stored, list[m.MessageBody])
    rewind = StreamEvent("rewind", "created", {"session_id": "s1", "message_id": "m2", "fork_session_id": "s2"}, 9)
    later = StreamEvent("message", "created", s.message("m9", "user", s.text("new"), run="r9"), 10)
    view = opened()
    if order != "load after the event":
        view.load_conversation("s1", bodies, 5)
    assert applied(view, [rewind, later]).order
    if order != "live":
        view.load_conversation("s1", bodies, 5)
    assert [entry.body.id for entry in view.conversations["s1"].ordered()] == ["m0", "m1", "m9"]
    view.load_conversation("s1", [*bodies[:2], msgspec.convert(later.payload, m.MessageBody)], 11)
    applied(view, [rewind])
    assert [entry.body.id for entry in view.conversations["s1"].ordered()] == ["m0", "m1", "m9"]
