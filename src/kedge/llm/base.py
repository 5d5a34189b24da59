"""The interface between the engine and a model.

A model is asked once per Step. `stream` is an async context manager: leaving it, for whatever reason, closes the
connection to the provider before it returns. Nothing is retried here; that is the engine's policy, and `ModelFailed`
carries what it needs for that: whether to try again, and after how long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from kedge.core.records import Effort, Usage
from kedge.core.transcript import FinishReason, Message, ToolCall

#: Prefix of the signature of a thought whose text the provider hides; the encrypted text follows.
REDACTED = "redacted:"


class ToolSpec(Struct, frozen=True):
    name: str
    description: str
    #: JSON Schema of the input, as JSON text.
    schema: str


class ModelRequest(Struct, frozen=True):
    #: The model's id at its provider.
    model: str
    #: Made by `core.transcript.for_model`: complete, without dangling tool calls.
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    #: The directory of the Run, for models in this process.
    workspace: str = ""
    #: Limit of the reply including thinking; None: the default of the provider.
    output_tokens_max: int | None = None
    #: Budget for thinking within that limit, if the provider supports one; None: no extended thinking.
    thinking_tokens: int | None = None
    #: False: an image in the newest prompt is an error, and an older one is replaced by a note.
    accepts_images: bool = True
    #: Overrides `thinking_tokens`. Empty: the default of the model.
    effort: Effort = ""


class TextDelta(Struct, frozen=True):
    text: str


class ReasoningDelta(Struct, frozen=True):
    """A signature ends a thought: it comes with no text, and what follows is another thought. It is to be stored with
    the thought (`Reasoning.signature`), since some providers want both back, unchanged, when it led to tool calls.
    A thought that the provider hides has a signature that begins with REDACTED, and no text."""

    text: str
    signature: str = ""


class ModelEnd(Struct, frozen=True):
    """The last part. `reason` is tool_use iff the model called tools."""

    reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()


ModelPart = TextDelta | ReasoningDelta | ModelEnd


class Model(Protocol):
    """One model of one provider. Errors are `ModelFailed` with a message that states what to do."""

    #: Names for the transcript, such as "local" and "fake-large".
    provider: str
    name: str

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelPart]]: ...
