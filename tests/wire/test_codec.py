"""Conversion of events and records to the wire format."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from kedge.core import events as e
from kedge.core.approvals import Ask
from kedge.core.records import RunOptions, SessionRecord, SessionView
from kedge.core.transcript import PART_TYPES, FinishPart, Message, Part, Text, ToolCall
from kedge.wire import codec, frames
from kedge.wire import models as m
from kedge.wire.export import EXPORT_FORMATS
from tests.wire.samples import NASTY, RUN, SAMPLES, SESSION
from tests.wire.test_golden_frames import frame_of


def parsed(frame: bytes) -> tuple[int, dict[str, Any]]:
    lines = frame.decode().split("\n")
    assert lines[0].startswith("id: ")
    assert lines[1].startswith("data: ")
    assert lines[2:] == ["", ""]
    return int(lines[0][4:]), json.loads(lines[1][6:])


def test_every_event_has_a_sample_and_a_frame() -> None:
    assert set(SAMPLES) == set(frames.EVENTS) == set(get_args(e.Event)) == set(e.EVENT_TYPES.values())


@pytest.mark.parametrize("event", SAMPLES.values(), ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("deleted", [False, True], ids=["stored", "deleted"])
def test_every_event_is_one_frame(event: e.Event, deleted: bool) -> None:
    position, body = parsed(frame_of(event, deleted=deleted))
    assert position == 7
    assert set(body) == {"type", "payload"}
    assert body["payload"]["type"] in ("created", "updated", "deleted")
    if isinstance(event, e.RunReported):
        assert body["payload"]["payload"]["outcome"] == "completed"


@pytest.mark.parametrize("text", [NASTY, "\u0000", "\U0001f600", "</script>"])
def test_no_text_can_forge_a_frame(text: str) -> None:
    data = frames.delta("m1", 0, text, "text")
    assert data.count(b"\n") == 2
    assert data.endswith(b"\n\n")
    assert b"\r" not in data
    assert json.loads(data[6:])["payload"]["payload"]["text"] == text


@pytest.mark.parametrize("kind", PART_TYPES.values(), ids=PART_TYPES.keys())
def test_every_part_survives_a_round_trip(kind: type[Part]) -> None:
    values: dict[str, Any] = {"str": "text", "int": 3, "bool": True, "FinishReason": "end_turn", "Display": "command"}
    values |= {"CallEnd": "not_run", "tuple[str, ...]": ("a", "b")}
    values |= {"ReversalAction": "undo", "ReversalState": "done"}
    part = kind(**{name: values[kind.__annotations__[name]] for name in kind.__struct_fields__})
    body = codec.part_body(part)
    assert body.type == kind.kind
    if isinstance(part, Text):  # users see the command that they typed
        body.data = {"text": body.data.pop("expanded"), "command": body.data["text"]}
    assert msgspec.convert(body.data, PART_TYPES[body.type]) == part


def test_a_run_omits_absent_fields() -> None:
    body = json.loads(frames.frame("run", "updated", codec.run_body(RUN))[6:])["payload"]["payload"]
    assert "outcome" not in body
    assert "text" not in body
    assert body["usage"] == {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}


def test_a_prompt_carries_every_option_that_clients_may_set() -> None:
    internal = {"purpose", "parent_run_id", "agent"}
    assert set(RunOptions.__struct_fields__) - internal <= set(m.SubmitPrompt.__struct_fields__)


def exported(form: str, session: SessionRecord, messages: list[Message]) -> bytes:
    document = EXPORT_FORMATS[form]()
    return b"".join([document.begin(session), *map(document.message, messages), document.end()])


@pytest.mark.found(
    "attack round 2: the event loop",
    "the export of a session always failed if the input of a call was deeply nested; such an input is shown as text",
)
def test_an_exported_document_is_made_piece_by_piece() -> None:
    deep = ToolCall("c", "bash", "[" * 100_000)
    messages = [
        Message("m1", "s", "user", (Text("line\nbreak"),), 1, 1),
        Message("m2", "s", "assistant", (deep, FinishPart("tool_use", 2)), 2, 2),
    ]
    assert deep.input in exported("md", SESSION, messages).decode()
    for some in ([], messages):
        document = {
            "session": codec.session_body(SessionView(SESSION)),
            "messages": [codec.message_body(message) for message in some],
        }
        assert exported("json", SESSION, some) == msgspec.json.format(msgspec.json.encode(document), indent=2)


def test_a_session_is_exported_as_markdown_html_and_json() -> None:
    messages = [
        Message("m1", "s1", "user", (Text("what <b>?</b>"),), 1, 1),
        Message("m2", "s1", "assistant", (Text("half"), FinishPart("canceled", 2)), 2, 2, model="m", provider="p"),
    ]
    assert b"canceled" in exported("md", SESSION, messages)
    page = exported("html", SESSION, messages).decode()
    assert "what &lt;b&gt;?&lt;/b&gt;" in page
    assert "A &lt;title&gt;" in page
    assert "<b>" not in page
    assert [message["id"] for message in json.loads(exported("json", SESSION, messages))["messages"]] == ["m1", "m2"]


def test_an_ask_with_malformed_parameters_is_sent_without_them() -> None:
    """One such Ask in the log must not break every event stream."""
    ask = Ask("a", "w", "s", "r", "c", "view", "approval", 1, description="d", params='{"path": "\\udcff"}')
    body = codec.ask_body(ask)
    assert isinstance(body, m.PermissionRequest)
    assert body.params == {}
