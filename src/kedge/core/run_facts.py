"""The facts of an ended Run, for statistics: one compact row, stored in the append of its RunEnded.

They contain no text of the user or the model, so that they are kept when the session of the Run is deleted: a report
about costs must not change because a session was cleaned up. They are removed with their workspace."""

from __future__ import annotations

from msgspec import Struct

from kedge.core.events import Outcome, Reason, RunEnded
from kedge.core.records import RunRecord, Usage
from kedge.core.run_trace import ToolUse

#: Rows that a store keeps, of all workspaces together: the latest. A row has about 200 bytes, and at most 3 kB. Items.
FACTS_MAX = 100_000
#: The smallest unit of a cost that is not rounding noise. Decimal places of a US dollar.
_COST_PLACES = 12


class RunFacts(Struct, frozen=True, array_like=True):
    workspace_id: str
    session_id: str
    run_id: str
    outcome: Outcome
    reason: Reason
    #: Milliseconds since the epoch. A folded Run starts when it joins its host.
    accepted_at: int
    started_at: int | None
    first_token_at: int | None
    ended_at: int
    #: `provider/name`; empty: it ended before a model was chosen. A folded Run has that of its host.
    model: str
    is_folded: bool
    is_child: bool
    steps: int
    resumes: int
    #: Without that of its child Runs, which have rows of their own. The title of its session is included.
    usage: Usage
    tools: tuple[ToolUse, ...]


def facts_of(run: RunRecord, ended: RunEnded) -> RunFacts:
    """Return the facts of a Run, from its last record and its end."""
    return RunFacts(
        workspace_id=run.workspace_id,
        session_id=run.session_id,
        run_id=run.run_id,
        outcome=ended.outcome,
        reason=ended.reason,
        accepted_at=run.accepted_at,
        started_at=run.started_at,
        first_token_at=run.first_token_at,
        ended_at=ended.at,
        model=run.model,
        is_folded=ended.folded_into is not None,
        is_child=bool(run.options.parent_run_id),
        steps=run.steps,
        resumes=run.resumes,
        usage=_own_usage(run),
        tools=run.tools,
    )


def _own_usage(run: RunRecord) -> Usage:
    used, children = run.usage, run.child_usage
    return Usage(
        max(0, used.input_tokens - children.input_tokens),
        max(0, used.output_tokens - children.output_tokens),
        max(0.0, round(used.cost_usd - children.cost_usd, _COST_PLACES)),
        max(0, used.cache_read_tokens - children.cache_read_tokens),
        max(0, used.cache_write_tokens - children.cache_write_tokens),
    )
