"""The next action of a Run: call the model, call tools, compact the history, or end.

Pure; the runner carries the action out. A Run is a loop over `next_action`, which holds the whole policy: Progress and
Limits are all it needs, and the first rule that applies wins.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from kedge.core.events import Reason
from kedge.core.records import Purpose
from kedge.core.reversal import Reversal, reversal_prompt
from kedge.core.transcript import (
    AttachedFile,
    Binary,
    FinishReason,
    ImageUrl,
    Message,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)

#: A model that makes the same call with the same result this often within RECENT_CALLS is stuck in a loop. Items.
REPEATS_MAX = 6
#: Long enough for a loop of three calls to repeat six times. Items.
RECENT_CALLS = 20


class Limits(Struct, frozen=True):
    steps_max: int
    budget_usd: float | None = None
    #: Tokens in the model's context at which the history is compacted; None: the model's limit is unknown.
    compact_at_tokens: int | None = None


class Progress(Struct, frozen=True):
    """The state of a Run between two actions."""

    purpose: Purpose = "answer"
    steps: int = 0
    cost_usd: float = 0.0
    #: A lower bound for the next request. Tokens.
    context_tokens: int = 0
    #: The provider refused the last request as too long.
    context_is_full: bool = False
    #: The history was compacted and no Step followed yet.
    is_compacted: bool = False
    #: Calls of the last Step without a result.
    open_calls: tuple[ToolCall, ...] = ()
    #: How the last Step ended; None: there was none, or it has to be repeated.
    last: FinishReason | None = None
    #: How often the most frequent of the recent calls had the same result.
    repeats: int = 0
    #: The error of a call that needed an approval in a Run that may not ask for one.
    unapproved: str = ""


class CallModel(Struct, frozen=True):
    pass


class CallTools(Struct, frozen=True):
    calls: tuple[ToolCall, ...]


class Compact(Struct, frozen=True):
    pass


class End(Struct, frozen=True):
    outcome: Literal["completed", "failed"] = "completed"
    reason: Reason = ""
    error: str = ""
    finish: FinishReason = "end_turn"


Action = CallModel | CallTools | Compact | End


def next_action(progress: Progress, limits: Limits) -> Action:
    """Return the first action that applies."""
    if progress.open_calls:
        return CallTools(progress.open_calls)
    if progress.unapproved:
        return End("failed", "approval_needed", progress.unapproved)
    if progress.purpose == "summary":
        return End() if progress.is_compacted else Compact()
    if progress.last not in (None, "tool_use"):
        return End(finish=progress.last)
    if progress.repeats >= REPEATS_MAX:
        return _failed("loop", f"The model made the same call {progress.repeats} times with the same result.")
    if progress.steps >= limits.steps_max:
        return _failed("max_steps", f"The run used up its {limits.steps_max} steps.")
    if limits.budget_usd is not None and progress.cost_usd >= limits.budget_usd:
        return _failed("budget", f"The run used up its budget of {limits.budget_usd:g} USD.")
    if progress.context_is_full or _is_near(progress.context_tokens, limits.compact_at_tokens):
        if not progress.is_compacted:
            return Compact()
        if progress.context_is_full:
            return _failed("context_full", "The prompt alone is too long for the model; send less.")
    return CallModel()


def _failed(reason: Reason, error: str) -> End:
    return End("failed", reason, f"{error} Send another prompt to continue.")


def _is_near(tokens: int, compact_at_tokens: int | None) -> bool:
    return compact_at_tokens is not None and tokens >= compact_at_tokens


def repeats(signatures: Iterable[str]) -> int:
    """Return how often the most frequent of a Run's recent calls had the same input and result."""
    return max(Counter(signatures).values(), default=0)


def signatures(own: list[Message]) -> list[str]:
    """Return the signatures of a Run's recent calls, from its transcript."""
    results = {result.tool_call_id: result for message in own for result in message.all(ToolResult)}
    calls = [call for message in own for call in message.all(ToolCall) if call.id in results]
    return [signature(call, results[call.id]) for call in calls[-RECENT_CALLS:]]


def signature(call: ToolCall, result: ToolResult) -> str:
    """Return a digest of a call and its result."""
    return hashlib.sha256(repr((call.name, call.input, result.content)).encode("utf-8", "replace")).hexdigest()


#: Characters per token, a rough and low estimate: used only where no provider has counted.
CHARS_PER_TOKEN = 4
#: The rough cost of a picture. Tokens.
IMAGE_TOKENS = 1500


def estimated_tokens(messages: list[Message]) -> int:
    """Return a rough count of the tokens in these messages, for use until a provider has counted them."""
    chars = images = 0
    for part in (part for message in messages for part in message.parts):
        match part:
            case Text(text=text) | ToolCall(input=text) | ShellCommand(output=text):
                chars += len(text)
            case Reversal():
                chars += len(reversal_prompt(part))
            case ToolResult(content=text, images=pictures):
                chars += len(text)
                images += len(pictures)
            case AttachedFile() | Binary() | ImageUrl():
                images += 1
            case _:
                pass
    return chars // CHARS_PER_TOKEN + images * IMAGE_TOKENS
