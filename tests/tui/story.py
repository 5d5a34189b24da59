"""Wire events as a server sends them, with increasing Positions, for tests of the view."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from kedge.client.event_stream import StreamEvent
from kedge.core.transcript import ToolCall
from kedge.tools.registry import Toolset, all_tools
from kedge.wire import models as m

Json = dict[str, Any]

_TOOLS = Toolset(all_tools())


def text(words: str) -> Json:
    return {"type": "text", "data": {"text": words}}


def thought(words: str, took_ms: int = 0) -> Json:
    return {"type": "reasoning", "data": {"thinking": words, "started_at": 1, "finished_at": 1 + took_ms}}


def call(call_id: str, name: str, arguments: Json) -> Json:
    described = _TOOLS.described(ToolCall(call_id, name, msgspec.json.encode(arguments).decode()))
    return {"type": "tool_call", "data": msgspec.to_builtins(described)}


def result(
    call_id: str, content: str, *, is_error: bool = False, summary: str = "", end: str = "returned", **metadata: Any
) -> Json:
    encoded = msgspec.json.encode(metadata).decode() if metadata else ""
    data = {"tool_call_id": call_id, "name": "", "content": content, "metadata": encoded, "is_error": is_error}
    return {"type": "tool_result", "data": data | {"summary": summary, "end": end}}


def finish(reason: str = "end_turn", message: str = "", details: str = "") -> Json:
    return {"type": "finish", "data": {"reason": reason, "time": 1, "message": message, "details": details}}


def message(message_id: str, role: str, *parts: Json, run: str = "r1", session: str = "s1", **more: Any) -> Json:
    body = {"id": message_id, "role": role, "session_id": session, "run_id": run, "parts": list(parts)}
    return body | {"model": "", "provider": "", "created_at": 1, "updated_at": 1} | more


def run_body(run: str = "r1", state: str = "active", *, session: str = "s1", seq: int = 1, **more: Any) -> Json:
    usage = {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    body: Json = {"run_id": run, "session_id": session, "workspace_id": "w1", "seq": seq, "state": state}
    body |= {"prompt": f"prompt of {run}", "accepted_at": seq, "usage": usage, "cleanup": "clean"}
    return body | {"stopping": False, "steps": 0, "queue_order": seq} | more


def session_body(session: str = "s1", title: str = "", updated_at: int = 1) -> Json:
    body: Json = {"id": session, "parent_session_id": "", "title": title, "message_count": 0}
    body |= {"usage": {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}, "created_at": 1}
    return body | {"updated_at": updated_at, "is_busy": False, "attached_clients": 1}


def approval(ask: str, *, run: str = "r1", call_id: str = "c1", session: str = "s1") -> Json:
    body: Json = {"id": ask, "session_id": session, "run_id": run, "tool_call_id": call_id, "tool_name": "bash"}
    return body | {"action": "execute", "description": "$ x", "path": "", "params": {}, "grant": "", "asked_at": 1}


def settled(ask: str, answer: str, by: str = "", *, run: str = "r1", call_id: str = "c1") -> Json:
    body: Json = {"id": ask, "session_id": "s1", "run_id": run, "tool_call_id": call_id, "answered_by": by}
    is_granted = answer.startswith("allow")
    return body | {"granted": is_granted, "answer": answer, "withdrawn": not answer}


@dataclass
class Story:
    """A log of events in order. A repeated event carries the newest record: see `again` in test_workspace_view."""

    events: list[StreamEvent] = field(default_factory=list)

    def tell(self, kind: str, change: str, payload: Json) -> StreamEvent:
        event = StreamEvent(kind, change, payload, 100 + len(self.events))
        self.events.append(event)
        return event

    def message(self, change: str, body: Json) -> None:
        self.tell("message", change, body)

    def run(self, change: str, body: Json) -> None:
        self.tell("run", change, body)

    def ended(self, run: str, outcome: str = "completed", *, session: str = "s1", seq: int = 1, **more: Any) -> None:
        self.run("updated", run_body(run, "ended", session=session, seq=seq, outcome=outcome, **more))
        usage = {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
        body: Json = {"session_id": session, "run_id": run, "message_id": "", "text": "", "outcome": outcome}
        self.tell("run_complete", "created", body | {"reason": "", "usage": usage, "cleanup": "clean"})

    def retry(self, run: str, attempt: int) -> None:
        body: Json = {"type": "retry", "error": "The provider is busy.", "run_id": run, "session_id": "s1"}
        self.tell("agent_event", "created", body | {"attempt": attempt, "attempts_max": 5, "wait_s": 2.0})


def delta(message_id: str, words: str, part: int = 0, kind: str = "text") -> StreamEvent:
    return StreamEvent("delta", "updated", {"message_id": message_id, "part": part, "text": words, "kind": kind})


def snapshot(body: Json) -> StreamEvent:
    """A streaming message as the server sends it when a stream connects."""
    return StreamEvent("message", "updated", body)


def progress(call_id: str, words: str, *, run: str = "r1", session: str = "s1") -> StreamEvent:
    body = {"session_id": session, "run_id": run, "tool_call_id": call_id, "text": words}
    return StreamEvent("progress", "updated", body)


def bodies(*messages: Json) -> list[m.MessageBody]:
    return [msgspec.convert(body, m.MessageBody) for body in messages]
