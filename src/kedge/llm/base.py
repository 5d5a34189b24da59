"""The model port: what the engine asks of a model, and what it gets back.

A model is asked once per Step. `stream` is an async context manager: leaving it, for whatever reason, closes the
connection to the provider before it returns. Nothing is retried here; that is the engine's policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from kedge.core.records import Usage
from kedge.core.transcript import FinishReason, Message, ToolCall


@dataclass(frozen=True, slots=True)
class ToolSpec:
    name: str
    description: str
    #: JSON Schema of the input, as JSON text.
    schema: str


@dataclass(frozen=True, slots=True)
class ModelRequest:
    #: The model's id at its provider.
    model: str
    #: As `core.transcript.for_model` made them: complete, no dangling tool calls.
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    #: The directory the Run works in: for models that run here.
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ModelEnd:
    """Always last. `reason` is tool_use iff the model called tools."""

    reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()


ModelPart = TextDelta | ReasoningDelta | ModelEnd


class Model(Protocol):
    """One model at one provider. Errors are `ModelFailed` with a message that says what to do."""

    #: Names for the transcript, such as "local" and "fake-large".
    provider: str
    name: str

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelPart]]: ...
