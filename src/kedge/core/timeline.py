"""The Steps and tool calls of a Run with their times, from its messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from kedge.core.transcript import CallEnd, FinishReason, Message, ToolCall, ToolResult

#: Steps and tool calls of one Run in a timeline: more than a picture can show. Items.
RUN_ITEMS_MAX = 2_000


@dataclass(slots=True)
class CallItem:
    id: str
    name: str
    title: str
    #: When the model had requested it.
    requested_at: int
    #: When it began, after its approval; None: it did not, or that is not known.
    started_at: int | None = None
    #: When its result was stored; None: it has none yet.
    ended_at: int | None = None
    is_error: bool = False
    end: CallEnd | None = None


@dataclass(slots=True)
class StepItem:
    message_id: str
    started_at: int
    #: The end of the model's reply; None: it is streaming.
    ended_at: int | None
    finish: FinishReason | None
    #: The Step wrote a summary of the history.
    is_summary: bool
    calls: list[CallItem] = field(default_factory=list)


class StepItems:
    """Collects the Steps of a Run, of which `steps_max` have begun: a Run that is stopped between two Steps has a last
    message that belongs to none."""

    def __init__(self, steps_max: int) -> None:
        self._steps_max = steps_max
        self._calls: dict[str, CallItem] = {}
        self.steps: list[StepItem] = []
        #: Steps and calls beyond the limit.
        self.omitted = 0

    @property
    def count(self) -> int:
        return len(self.steps) + len(self._calls)

    def add(self, message: Message) -> None:
        """Add the next message of the Run."""
        if message.role == "tool":
            for result in message.all(ToolResult):
                self._add_result(result, message.created_at)
        elif message.role == "assistant" and len(self.steps) < self._steps_max:
            self._add_step(message)

    def _add_step(self, message: Message) -> None:
        calls = message.all(ToolCall)
        room = RUN_ITEMS_MAX - self.count - 1
        self.omitted += max(0, len(calls) - max(room, 0)) + (room < 0)
        if room < 0:
            return
        finish = message.finish
        step = StepItem(
            message.id,
            message.created_at,
            finish.time if finish else None,
            finish.reason if finish else None,
            message.is_summary,
        )
        requested_at = finish.time if finish else message.updated_at
        step.calls = [CallItem(call.id, call.name, call.title, requested_at) for call in calls[:room]]
        self._calls |= {call.id: call for call in step.calls}
        self.steps.append(step)

    def _add_result(self, result: ToolResult, at: int) -> None:
        if call := self._calls.get(result.tool_call_id):
            call.started_at = result.started_at or None
            call.ended_at, call.is_error, call.end = at, result.is_error, result.end
