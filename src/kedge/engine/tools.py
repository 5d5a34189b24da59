"""The seam for tools: what the runner asks when a model calls one. The tools themselves come with a later change."""

from __future__ import annotations

from typing import Protocol

from kedge.core.transcript import ToolCall, ToolResult
from kedge.llm.base import ToolSpec


class Tools(Protocol):
    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    async def call(self, call: ToolCall, workspace: str) -> ToolResult:
        """The result, also of a call that went wrong. Cancelling it ends everything the call started."""
        ...


class NoTools:
    """There are none: a model that calls one anyway is told so, and goes on."""

    specs: tuple[ToolSpec, ...] = ()

    async def call(self, call: ToolCall, workspace: str) -> ToolResult:
        return ToolResult(call.id, call.name, f"There is no tool named {call.name}.", is_error=True)
