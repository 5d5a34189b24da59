"""The table between the core's words and the wire's."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from kedge.core import events as e
from kedge.core.approvals import Ask
from kedge.core.records import Prompt, RunOptions, RunRecord, SessionRecord
from kedge.core.transcript import PART_TYPES, Finish, Message, Part, Text
from kedge.server.ports import WireEncoder
from kedge.wire import codec
from kedge.wire import models as m
from kedge.wire.export import as_html, as_json, as_markdown

RUN = RunRecord("r1", "s1", "w1", 1, Prompt("do it"), RunOptions(), "digest", 1000, state="active", started_at=1000)
SESSION = SessionRecord("s1", "w1", "A <title>", 1000, 2000, message_count=2)
NASTY = 'x\n\ndata: {"type":"run_complete"}\r\nid: 5\u2028\x85"\\'

SAMPLES: dict[type, e.Event] = {
    e.RunAccepted: e.RunAccepted("r1", 1, False, 1),
    e.RunStarted: e.RunStarted("r1", 1),
    e.RunResumed: e.RunResumed("r1", 1),
    e.StepStarted: e.StepStarted("r1", 1, 1),
    e.RunFolded: e.RunFolded("r1", "r0", 1),
    e.RunEdited: e.RunEdited("r1", 1),
    e.RunMoved: e.RunMoved("r1", None, 1),
    e.FoldMarked: e.FoldMarked("r1", 1),
    e.CancelMarked: e.CancelMarked(1, "r1", 1),
    e.RunCancelMarked: e.RunCancelMarked("r1", 1),
    e.RunEnded: e.RunEnded("r1", "completed", "", 1),
    e.RunReported: e.RunReported("r1", "completed", ""),
    e.ErrorReported: e.ErrorReported("r1"),
    e.SessionChanged: e.SessionChanged("s1", "updated"),
    e.MessageChanged: e.MessageChanged("m1", "created"),
    e.RetryReported: e.RetryReported("r1", 2, 5, 1.5, NASTY),
    e.Asked: e.Asked("r1", "a1"),
    e.AskSettled: e.AskSettled("r1", "a1"),
    e.FileChanged: e.FileChanged("r1", "f1", NASTY, "updated"),
}
ASK = Ask("a1", "w1", "s1", "r1", "c1", "bash", "approval", 1, NASTY, json.dumps({"command": NASTY}))


def frame_for(event: e.Event, *, gone: bool = False) -> bytes:
    encoder = WireEncoder()
    message = Message("m1", "s1", "user", (Text(NASTY),), 1, 1)
    match event:
        case e.SessionChanged():
            return encoder.session(7, event, None if gone else SESSION, False, 0)
        case e.MessageChanged():
            return encoder.message(7, event, None if gone else message, "s1")
        case e.Asked() | e.AskSettled():
            return encoder.ask(7, event, None if gone else ASK)
        case e.FileChanged():
            return encoder.file(7, "s1", event)
        case _:
            return encoder.run(7, "s1", event, None if gone else RUN)


def parsed(frame: bytes) -> tuple[int, dict[str, Any]]:
    lines = frame.decode().split("\n")
    assert lines[0].startswith("id: ")
    assert lines[1].startswith("data: ")
    assert lines[2:] == ["", ""]
    return int(lines[0][4:]), json.loads(lines[1][6:])


def test_there_is_a_sample_of_every_event() -> None:
    assert set(SAMPLES) == set(get_args(e.Event)) == set(e.EVENT_TYPES.values())


@pytest.mark.parametrize("event", SAMPLES.values(), ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("gone", [False, True], ids=["there", "deleted since"])
def test_every_event_is_one_frame_also_when_its_record_is_gone(event: e.Event, gone: bool) -> None:
    position, body = parsed(frame_for(event, gone=gone))
    assert position == 7
    assert set(body) == {"type", "payload"}
    assert body["payload"]["type"] in ("created", "updated", "deleted")
    if isinstance(event, e.RunReported):
        assert body["payload"]["payload"]["outcome"] == "completed"


@pytest.mark.parametrize("text", [NASTY, "\u0000", "\U0001f600", "</script>"])
def test_no_text_can_forge_a_frame(text: str) -> None:
    frame = codec.delta_frame("m1", 0, text)
    assert frame.count(b"\n") == 2
    assert frame.endswith(b"\n\n")
    assert b"\r" not in frame
    assert json.loads(frame[6:])["payload"]["payload"]["text"] == text


@pytest.mark.parametrize("kind", PART_TYPES.values(), ids=PART_TYPES.keys())
def test_every_part_survives_the_wire(kind: type[Part]) -> None:
    values: dict[str, Any] = {"str": "text", "int": 3, "bool": True, "FinishReason": "end_turn"}
    values["tuple[str, ...]"] = ("a", "b")
    part = kind(**{name: values[kind.__annotations__[name]] for name in kind.__struct_fields__})
    body = codec.part_body(part)
    assert body.type == kind.kind
    assert codec.part_from_body(body) == part


def test_an_unknown_part_is_passed_over_and_an_unknown_field_ignored() -> None:
    from kedge.wire.models import PartBody

    assert codec.part_from_body(PartBody(type="hologram", data={})) is None
    assert codec.part_from_body(PartBody(type="text", data={"text": "x", "new": 1})) == Text("x")


def test_a_run_leaves_out_what_it_does_not_have() -> None:
    body = json.loads(codec.frame("run", "updated", codec.run_body(RUN))[6:])["payload"]["payload"]
    assert "outcome" not in body
    assert "text" not in body
    assert body["usage"] == {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}


def test_a_session_can_be_exported_for_reading_and_for_programs() -> None:
    messages = [
        Message("m1", "s1", "user", (Text("what <b>?</b>"),), 1, 1),
        Message("m2", "s1", "assistant", (Text("half"), Finish("canceled", 2)), 2, 2, model="m", provider="p"),
    ]
    assert b"canceled" in b"".join(as_markdown(SESSION, messages))
    page = b"".join(as_html(SESSION, messages)).decode()
    assert "what &lt;b&gt;?&lt;/b&gt;" in page
    assert "A &lt;title&gt;" in page
    assert "<b>" not in page
    assert [message["id"] for message in json.loads(b"".join(as_json(SESSION, messages)))["messages"]] == ["m1", "m2"]


def test_a_question_whose_parameters_cannot_be_read_is_told_without_them() -> None:
    """A log from before they were cleaned may hold one, and every stream passes it."""
    ask = Ask(*("a", "w", "s", "r", "c", "view", "approval", 1), description="d", params='{"path": "\\udcff"}')
    body = codec.ask_body(ask)
    assert isinstance(body, m.PermissionRequest)
    assert body.params == {}
