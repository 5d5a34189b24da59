"""Statistics of ended Runs: sums, medians and 95th percentiles, in total and by group.

Each Run is counted once, when it ends. A folded Run counts as a Run, and its host has the Steps, tokens and tool calls
of both. A child Run counts as a Run, with its own tokens and cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.events import Outcome, Reason
from kedge.core.records import Usage
from kedge.core.run_facts import RunFacts
from kedge.core.run_trace import OTHER_TOOLS, ToolUse

GroupBy = Literal["day", "model", "workspace", "outcome", "tool"]

#: Groups of one report, and tools: more than a table or plot shows. The rest are one group. Items.
GROUPS_MAX = 1000
#: The key of that group.
OTHER = "(other)"
DAY_MS, _MINUTE_MS = 86_400_000, 60_000


class Spread(Struct, frozen=True):
    """The distribution of a time. Both values are measured ones, by the nearest-rank method; 0 without a value."""

    count: int = 0
    median_ms: int = 0
    p95_ms: int = 0


def spread(values: list[int]) -> Spread:
    if not values:
        return Spread()
    values = sorted(values)
    median, p95 = (values[math.ceil(share * len(values)) - 1] for share in (0.5, 0.95))
    return Spread(len(values), median, p95)


class Figures(Struct, frozen=True):
    """The figures of a group of Runs."""

    #: The number of a day since the epoch, a model, the id of a workspace, or an outcome. Empty: the total, or no model
    #: was chosen.
    key: str
    runs: int
    outcomes: dict[Outcome, int]
    #: Runs among them that joined another one, were children of another one, or continued after a crash.
    folded: int
    children: int
    resumed: int
    steps: int
    usage: Usage
    #: From acceptance to start, or to joining another Run.
    queue_wait: Spread
    #: From start to the first piece of the first reply.
    first_token: Spread
    #: From start to end, without folded Runs.
    duration: Spread
    tool_calls: int
    tool_failures: int


class ToolFigures(Struct, frozen=True):
    use: ToolUse
    #: Runs that called it.
    runs: int


@dataclass(slots=True)
class _Tally:
    runs: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    folded: int = 0
    children: int = 0
    resumed: int = 0
    steps: int = 0
    usage: Usage = Usage()
    waits: list[int] = field(default_factory=list)
    first_tokens: list[int] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)
    tool_calls: int = 0
    tool_failures: int = 0

    def add(self, run: RunFacts) -> None:
        self.runs += 1
        self.outcomes[run.outcome] += 1
        self.folded += run.is_folded
        self.children += run.is_child
        self.resumed += run.resumes > 0
        self.steps += run.steps
        self.usage += run.usage
        if run.started_at is not None:
            self.waits.append(max(0, run.started_at - run.accepted_at))
            if run.first_token_at is not None:
                self.first_tokens.append(max(0, run.first_token_at - run.started_at))
            if not run.is_folded:
                self.durations.append(max(0, run.ended_at - run.started_at))
        for use in run.tools:
            self.tool_calls += use.calls
            self.tool_failures += use.failures

    def figures(self, key: str) -> Figures:
        return Figures(
            key=key,
            runs=self.runs,
            outcomes=dict(sorted(self.outcomes.items())),
            folded=self.folded,
            children=self.children,
            resumed=self.resumed,
            steps=self.steps,
            usage=self.usage,
            queue_wait=spread(self.waits),
            first_token=spread(self.first_tokens),
            duration=spread(self.durations),
            tool_calls=self.tool_calls,
            tool_failures=self.tool_failures,
        )


class Statistics:
    """Collects facts. `utc_offset_min` is the offset of the user's days from those of UTC."""

    def __init__(self, by: GroupBy, utc_offset_min: int = 0) -> None:
        self._by = by
        self._offset_ms = utc_offset_min * _MINUTE_MS
        self._total = _Tally()
        self._groups: dict[str, _Tally] = {}
        self._reasons: Counter[Reason] = Counter()
        self._tools: dict[str, ToolFigures] = {}

    def add(self, run: RunFacts) -> None:
        self._total.add(run)
        self._reasons[run.reason] += 1
        for use in run.tools:
            self._add_tool(use)
        if self._by != "tool":
            key = self._key(run)
            if key not in self._groups and len(self._groups) >= GROUPS_MAX:
                key = OTHER
            self._groups.setdefault(key, _Tally()).add(run)

    def _add_tool(self, use: ToolUse) -> None:
        name = use.name if use.name in self._tools or len(self._tools) < GROUPS_MAX else OTHER_TOOLS
        known = self._tools.get(name) or ToolFigures(ToolUse(name), 0)
        total = replace(
            known.use,
            calls=known.use.calls + use.calls,
            failures=known.use.failures + use.failures,
            not_run=known.use.not_run + use.not_run,
            busy_ms=known.use.busy_ms + use.busy_ms,
        )
        self._tools[name] = ToolFigures(total, known.runs + 1)

    def _key(self, run: RunFacts) -> str:
        match self._by:
            case "model":
                return run.model
            case "workspace":
                return run.workspace_id
            case "outcome":
                return run.outcome
            case _:
                return f"{(run.ended_at + self._offset_ms) // DAY_MS:06}"

    @property
    def total(self) -> Figures:
        return self._total.figures("")

    @property
    def reasons(self) -> dict[Reason, int]:
        """Runs by reason, without those that completed."""
        return {reason: count for reason, count in sorted(self._reasons.items()) if reason}

    @property
    def tools(self) -> list[ToolFigures]:
        """The tools, most calls first."""
        return sorted(self._tools.values(), key=lambda tool: (-tool.use.calls, tool.use.name))

    def groups(self) -> Iterator[Figures]:
        """Yield the groups by key, each of which takes time to compute."""
        return (self._groups[key].figures(key) for key in sorted(self._groups))
