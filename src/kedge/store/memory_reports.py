"""Reads of the memory store over all sessions of a workspace: the search, and the facts of ended Runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kedge.core import run_facts
from kedge.core.records import RunRecord, RunSpan
from kedge.core.run_facts import RunFacts
from kedge.store import codec, search_tokens
from kedge.store.base import SearchHit

if TYPE_CHECKING:
    from kedge.store.memory import MemoryData


def search_hits(data: MemoryData, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
    prefixes = search_tokens.query_tokens(query)
    hits: list[SearchHit] = []
    for (owner, _), stored in reversed(data.messages.items()):
        if len(hits) >= limit or not prefixes:
            break
        text = search_tokens.searched_text(stored.message)
        if owner == workspace_id and search_tokens.matches(text, prefixes):
            snippet = search_tokens.snippet(text, prefixes)
            hits.append(SearchHit(stored.message.session_id, stored.message.id, snippet))
    return hits


def run_bytes(run: RunRecord) -> int:
    return len(codec.encode_run(run, run.position)) + len(codec.encode_prompt(run.prompt))


def by_seq(runs: Iterable[RunRecord]) -> list[RunRecord]:
    return sorted(runs, key=lambda run: (run.seq, run.workspace_id, run.run_id))


def is_within(run: RunRecord, span: RunSpan) -> bool:
    is_over = run.ended_at is not None and run.ended_at < span.since
    return run.seq < span.before_seq and run.accepted_at <= span.until and not is_over


def add_facts(data: MemoryData, ended: list[RunFacts]) -> None:
    """Add the facts of ended Runs, and remove the oldest ones beyond the limit."""
    for facts in ended:
        ordinal = next(reversed(data.facts), 0) + 1
        data.facts[ordinal] = facts
        while (oldest := next(iter(data.facts))) <= ordinal - run_facts.FACTS_MAX:
            del data.facts[oldest]


def remove_facts(data: MemoryData, workspace_id: str) -> None:
    data.facts = {ordinal: facts for ordinal, facts in data.facts.items() if facts.workspace_id != workspace_id}


def facts_page(
    data: MemoryData, after: int, limit: int, since: int, until: int, workspace_id: str | None
) -> tuple[list[RunFacts], int]:
    rows = [
        (ordinal, facts)
        for ordinal, facts in data.facts.items()
        if ordinal > after and since <= facts.ended_at < until and workspace_id in (None, facts.workspace_id)
    ][: max(limit, 0)]
    return [facts for _, facts in rows], rows[-1][0] if rows and len(rows) == limit else 0
