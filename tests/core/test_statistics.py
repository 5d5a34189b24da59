"""Facts of ended Runs and their statistics: each Run, token and tool call is counted once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kedge.core import statistics as module
from kedge.core.events import RunEnded
from kedge.core.records import Prompt, RunOptions, RunRecord, Usage
from kedge.core.run_facts import RunFacts, facts_of
from kedge.core.run_trace import OTHER_TOOLS, TOOL_NAME_CHARS_MAX, TOOL_NAMES_MAX, ToolUse, counted
from kedge.core.statistics import DAY_MS, OTHER, Spread, Statistics, spread
from kedge.core.transcript import ToolResult

BASH = ToolUse("bash", calls=3, failures=1, not_run=2, busy_ms=500)


def facts(**fields: Any) -> RunFacts:
    values = {
        "workspace_id": "w",
        "session_id": "s",
        "run_id": "r",
        "outcome": "completed",
        "reason": "",
        "accepted_at": 1_000,
        "started_at": 1_100,
        "first_token_at": 1_300,
        "ended_at": 2_000,
        "model": "x/large",
        "is_folded": False,
        "is_child": False,
        "steps": 2,
        "resumes": 0,
        "usage": Usage(10, 5, 0.25, 4, 1),
        "tools": (BASH,),
    }
    return RunFacts(**{**values, **fields})


def collected(*runs: RunFacts, by: Any = "day", offset: int = 0) -> Statistics:
    statistics = Statistics(by, offset)
    for run in runs:
        statistics.add(run)
    return statistics


def test_usage_of_children_is_not_counted_twice() -> None:
    run = RunRecord("r", "s", "w", 1, Prompt("x"), RunOptions(parent_run_id="p"), "c", 5, state="ended", started_at=6)
    run = replace(run, usage=Usage(30, 20, 0.3, 5, 4), child_usage=Usage(10, 20, 0.1, 1, 4), tools=(BASH,), steps=3)
    made = facts_of(run, RunEnded("r", "failed", "timeout", 9, "host"))
    assert made.usage == Usage(20, 0, 0.2, 4, 0), "0.3 - 0.1 is 0.19999999999999998 in binary"
    assert (made.outcome, made.reason, made.ended_at, made.is_folded, made.is_child) == (
        "failed",
        "timeout",
        9,
        True,
        True,
    )
    assert (made.accepted_at, made.started_at, made.steps, made.tools) == (5, 6, 3, (BASH,))


def test_results_are_counted_by_tool() -> None:
    results = [
        ToolResult("c1", "bash", "ok", started_at=60),
        ToolResult("c2", "bash", "exit 1", is_error=True),
        ToolResult("c3", "bash", "denied", is_error=True, end="not_run"),
        ToolResult("c4", "view", "cut", is_error=True, end="cut_off", started_at=200),
    ]
    view = ToolUse("view", calls=2, failures=1, busy_ms=7)
    assert counted((ToolUse("view", calls=1, busy_ms=7),), results, 100) == (view, ToolUse("bash", 2, 1, 1, 40))


def test_invented_names_of_tools_are_bounded() -> None:
    results = [ToolResult("c", f"{number:03}" + "x" * 500, "") for number in range(2 * TOOL_NAMES_MAX)]
    uses = {use.name: use.calls for use in counted((), results, 1)}
    assert len(uses) == TOOL_NAMES_MAX + 1
    assert (max(map(len, uses)), uses[OTHER_TOOLS]) == (TOOL_NAME_CHARS_MAX, TOOL_NAMES_MAX)


def test_percentiles_are_measured_values() -> None:
    assert spread([]) == Spread(0, 0, 0)
    assert spread([7]) == Spread(1, 7, 7)
    assert spread([4, 1, 3, 2]) == Spread(4, 2, 4)
    assert spread(list(range(100, 0, -1))) == Spread(100, 50, 95)


def test_total_of_all_kinds_of_runs() -> None:
    statistics = collected(
        facts(),
        facts(started_at=3_000, first_token_at=3_050, ended_at=9_000, outcome="failed", reason="loop", resumes=1),
        facts(started_at=1_500, first_token_at=None, usage=Usage(), tools=(), steps=0, is_folded=True),
        facts(started_at=None, first_token_at=None, usage=Usage(), tools=(), outcome="cancelled", reason="removed"),
        facts(started_at=900, first_token_at=800, ended_at=700, is_child=True, tools=()),  # the clock was set
    )
    total = statistics.total
    assert (total.runs, total.folded, total.children, total.resumed, total.steps) == (5, 1, 1, 1, 8)
    assert total.outcomes == {"cancelled": 1, "completed": 3, "failed": 1}
    assert total.usage == Usage(30, 15, 0.75, 12, 3)
    assert total.queue_wait == Spread(4, 100, 2_000)
    assert total.first_token == Spread(3, 50, 200)
    assert total.duration == Spread(3, 900, 6_000)
    assert (total.tool_calls, total.tool_failures) == (6, 2)
    assert statistics.reasons == {"loop": 1, "removed": 1}
    (tool,) = statistics.tools
    assert (tool.use, tool.runs) == (ToolUse("bash", 6, 2, 4, 1_000), 2)


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("day", ["000003", "000004"]),
        ("model", ["", "x/large"]),
        ("workspace", ["v", "w"]),
        ("outcome", ["completed", "failed"]),
        ("tool", []),
    ],
)
def test_groups_add_up_to_the_total(by: str, keys: list[str]) -> None:
    runs = [
        facts(ended_at=3 * DAY_MS),
        facts(ended_at=4 * DAY_MS - 1),
        facts(ended_at=4 * DAY_MS, outcome="failed", model="", workspace_id="v"),
    ]
    groups = list(collected(*runs, by=by).groups())
    assert [group.key for group in groups] == keys
    assert sum(group.runs for group in groups) == (3 if keys else 0)


def test_days_are_those_of_the_user() -> None:
    late = facts(ended_at=4 * DAY_MS - 60_000)
    assert [group.key for group in collected(late, offset=2).groups()] == ["000004"]
    assert [group.key for group in collected(late, offset=-24 * 60).groups()] == ["000002"]


def test_groups_and_tools_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 2)
    runs = [facts(model=f"m{n}", tools=(ToolUse(f"t{n}", 1), ToolUse("t0", 1))) for n in range(4)]
    statistics = collected(*runs, by="model")
    assert {group.key: group.runs for group in statistics.groups()} == {OTHER: 2, "m0": 1, "m1": 1}
    assert [(tool.use.name, tool.use.calls) for tool in statistics.tools] == [("t0", 5), (OTHER_TOOLS, 2), ("t1", 1)]
