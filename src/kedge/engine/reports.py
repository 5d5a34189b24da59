"""Reads over many Runs: the search, the statistics, the timeline of a Lane, and the live Lanes of the server.

They only read, page by page, and give other tasks a turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from kedge.core.records import RunRecord, RunSpan, SessionRecord, WorkspaceRecord
from kedge.core.statistics import DAY_MS, GROUPS_MAX, Figures, GroupBy, Statistics, ToolFigures
from kedge.core.timeline import StepItems
from kedge.core.transcript import chars_of
from kedge.engine.ports import Clock
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import WrongType
from kedge.slices import in_slices
from kedge.store.base import SearchHit, Store

#: The range of a query without one. Days.
DAYS_DEFAULT = 30
#: Facts read and added at once: about two milliseconds. Items.
FACTS_PAGE = 500
#: Steps and tool calls with which a page of a timeline ends: about a megabyte of JSON. Items.
PAGE_STEPS_AND_CALLS = 4_000
#: Messages that are read at once, and the size of Runs or messages with which a page ends: a message may have
#: megabytes. A Run is always complete. Items, bytes.
MESSAGES_PAGE, BYTES_MAX = 500, 4 * 1024 * 1024


class StatisticsReport:
    """Everything of one query. `groups` is computed: the statistics are complete."""

    def __init__(
        self, since: int, until: int, statistics: Statistics, groups: list[Figures], workspaces: dict[str, str]
    ) -> None:
        self.since, self.until = since, until
        self.total = statistics.total
        self.reasons = statistics.reasons
        self.tools: list[ToolFigures] = statistics.tools
        self.groups = groups
        #: The paths of workspaces that are groups, by id.
        self.workspaces = workspaces


@dataclass(slots=True)
class RunItem:
    """A Run in a timeline."""

    run: RunRecord
    items: StepItems


@dataclass(slots=True)
class Timeline:
    #: In ascending order of seq.
    runs: list[RunItem]
    #: The page before has Runs with a lower seq than this one; None: it is the first page.
    next_before: int | None
    #: The Position of the workspace's log before the first read: later events may be in the page already.
    position: int


@dataclass(slots=True)
class LiveLane:
    """The Lane of a session with live Runs."""

    workspace: WorkspaceRecord
    session: SessionRecord
    active: RunRecord
    queued: int
    folded: int
    #: Approvals and questions that wait for an answer, and since when.
    asks: int
    asked_at: int | None


class Reports:
    def __init__(self, store: Store, clock: Clock, workspaces: Workspaces) -> None:
        self._store = store
        self._clock = clock
        self._workspaces = workspaces
        #: One query at a time: each holds the times of all its Runs in memory, some megabytes.
        self._counting = asyncio.Semaphore(1)

    async def search(self, workspace: Workspace, query: str, limit: int) -> list[tuple[SearchHit, str]]:
        """Return hits with the titles of their sessions."""
        hits, titles = await self._store.search(workspace.id, query, limit), dict[str, str]()
        for session_id in {hit.session_id: None for hit in hits}:
            session = await self._store.session(workspace.id, session_id)
            titles[session_id] = session.title if session else ""
        return [(hit, titles[hit.session_id]) for hit in hits]

    async def statistics(
        self,
        by: GroupBy,
        since: int | None = None,
        until: int | None = None,
        workspace_id: str | None = None,
        utc_offset_min: int = 0,
    ) -> StatisticsReport:
        """Count the Runs that ended at `since` or later and before `until`: by default in the last 30 days."""
        if until is None:
            until = self._clock.now_ms() + 1
        if since is None:
            since = max(0, until - DAYS_DEFAULT * DAY_MS)
        if by == "day" and until - since > GROUPS_MAX * DAY_MS:
            raise WrongType(f"by=day: the range has more than {GROUPS_MAX} days; choose a later start.")
        async with self._counting:
            statistics = Statistics(by, utc_offset_min)
            after = 0
            while True:
                page, after = await self._store.run_facts(after, FACTS_PAGE, since, until, workspace_id)
                for facts in page:
                    statistics.add(facts)
                if not after:
                    break
            groups = [figures async for figures in in_slices(statistics.groups(), lambda group: 64 * group.runs)]
            paths: dict[str, str] = {}
            if by == "workspace":
                keys = {figures.key for figures in groups}
                paths = {record.id: record.path for record in await self._store.workspaces() if record.id in keys}
            return StatisticsReport(since, until, statistics, groups, paths)

    async def timeline(self, workspace: Workspace, session_id: str, span: RunSpan, limit: int) -> Timeline:
        """Return the last Runs in this span, at least one, with their Steps and tool calls."""
        await self._workspaces.lane(workspace, session_id)
        position = workspace.feed.head
        runs = await self._store.runs(session_id, limit + 1, BYTES_MAX, span)
        shown: list[RunItem] = []
        count = size = 0
        for run in reversed(runs[-limit:]):
            if shown and (count >= PAGE_STEPS_AND_CALLS or size >= BYTES_MAX):
                break
            items, read_bytes = await self._items(run)
            shown.append(RunItem(run, items))
            count, size = count + items.count, size + read_bytes
        shown.reverse()
        is_last = not runs or (len(shown) == len(runs) and not await self._has_earlier(session_id, span, runs[0].seq))
        return Timeline(shown, None if is_last else shown[0].run.seq, position)

    async def _has_earlier(self, session_id: str, span: RunSpan, seq: int) -> bool:
        """Return whether the span has a Run before this one: the page of Runs may have ended early."""
        return bool(await self._store.runs(session_id, 1, 1, RunSpan(seq, span.since, span.until)))

    async def _items(self, run: RunRecord) -> tuple[StepItems, int]:
        """Return the Steps of a Run, and the size of its messages, which are not kept."""
        items, size = StepItems(run.steps), 0
        after: str | None = None
        while run.steps:
            page = await self._store.messages(run.session_id, after, MESSAGES_PAGE, BYTES_MAX, run_id=run.run_id)
            for message in page:
                items.add(message)
                size += chars_of(message)
            if not page:
                break
            after = page[-1].id
        return items, size

    def live_lanes(self, after: str = "") -> Iterator[LiveLane]:
        """Return the Lanes with live Runs of all open workspaces, by the ids of their sessions."""
        lanes = {
            session_id: (workspace, state)
            for workspace in self._workspaces.all()
            for session_id, state in workspace.lanes.items()
            if state.lane.active is not None and session_id > after
        }
        for _, (workspace, state) in sorted(lanes.items()):
            active = state.runs.get(state.lane.active.run_id) if state.lane.active else None
            if active is not None:
                yield LiveLane(
                    workspace.record,
                    state.session,
                    active,
                    len(state.lane.queue),
                    len(state.lane.folded),
                    len(state.asks),
                    min((ask.asked_at for ask in state.asks.values()), default=None),
                )
