"""The trace of a Run and the use of its tools: parts of its record, which outlives the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.transcript import ToolResult

#: The latest entries of a Run's trace. A client can move a queued Run as often as it likes; a cancel finds the Run
#: active, after its last move. Items.
TRACE_ENTRIES_MAX = 50
#: Tools that a Run is counted for by name: a model can invent names. Items, characters.
TOOL_NAMES_MAX, TOOL_NAME_CHARS_MAX = 32, 64
#: The name under which the other tools of a Run are counted.
OTHER_TOOLS = "(other)"


class TraceEntry(Struct, frozen=True, omit_defaults=True):
    """Something that happened to a Run while it was live.

    cancel: a cancel that covers every Run with seq <= mark found this Run active. cancel_run: it was cancelled alone.
    move: it was moved in the queue, before another Run or to the end. fold: it was marked to join the active Run.
    resume: it continued after the loss of its process."""

    kind: Literal["cancel", "cancel_run", "move", "fold", "resume"]
    at: int
    #: Of a cancel.
    mark: int = 0
    #: Of a move; None: to the end.
    before: str | None = None
    #: The user who cancelled. Empty: the owner.
    author: str = ""


def extended(trace: tuple[TraceEntry, ...], entry: TraceEntry) -> tuple[TraceEntry, ...]:
    return (*trace, entry)[-TRACE_ENTRIES_MAX:]


class ToolUse(Struct, frozen=True, array_like=True):
    """The calls of one tool in a Run that have ended."""

    name: str
    #: Calls that began.
    calls: int = 0
    #: Those among them that returned an error or were cut off.
    failures: int = 0
    #: Calls that did not begin: not approved, or not reached when the Run ended.
    not_run: int = 0
    #: Time from their begin to their result, where both are known. Milliseconds.
    busy_ms: int = 0


def counted(tools: tuple[ToolUse, ...], results: Iterable[ToolResult], now: int) -> tuple[ToolUse, ...]:
    """Return the tools of a Run after these results, which are stored at `now`."""
    by_name = {use.name: use for use in tools}
    for result in results:
        name = result.name[:TOOL_NAME_CHARS_MAX]
        if name not in by_name and len(by_name) >= TOOL_NAMES_MAX:
            name = OTHER_TOOLS
        use = by_name.get(name) or ToolUse(name)
        if result.end == "not_run":
            by_name[name] = replace(use, not_run=use.not_run + 1)
            continue
        by_name[name] = replace(
            use,
            calls=use.calls + 1,
            failures=use.failures + result.is_error,
            busy_ms=use.busy_ms + (max(0, now - result.started_at) if result.started_at else 0),
        )
    return tuple(by_name.values())
