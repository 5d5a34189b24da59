"""Routes of reports: the statistics, the timeline of a Lane, and the live Lanes of the server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from msgspec import UNSET, Meta, Struct, field

from kedge.core.records import RunSpan
from kedge.core.statistics import OTHER, Figures, GroupBy
from kedge.engine.engine import Engine
from kedge.server.asgi import HttpRequest, Route, route
from kedge.server.routes_workspaces import PageLimit, check_text
from kedge.wire.limits import PAGE_ITEMS_MAX
from kedge.wire.report_models import (
    FiguresBody,
    LaneBody,
    LiveLaneBody,
    StatsBody,
    cancel_marks,
    day_text,
    figures_body,
    lane_run_body,
    tool_figures_body,
)

#: Milliseconds since the epoch, up to the year 9999.
TimeMs = Annotated[int, Meta(ge=0, le=253_370_764_800_000)]
#: Offsets of time zones. Minutes.
OffsetMin = Annotated[int, Meta(ge=-14 * 60, le=14 * 60)]
#: Runs of one page of a timeline. Items.
LANE_RUNS_MAX = 200


class StatsQuery(Struct):
    by: GroupBy = "day"
    since: TimeMs | None = None
    until: TimeMs | None = None
    workspace_id: str | None = None
    #: The offset of the days of the caller.
    utc_offset_min: OffsetMin = 0


class LaneQuery(Struct):
    since: TimeMs = field(name="from", default=0)
    until: TimeMs | None = field(name="to", default=None)
    #: Only Runs with a lower seq: `next_before` of the page after it.
    before: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    limit: Annotated[int, Meta(ge=1, le=LANE_RUNS_MAX)] = 100


class LanesQuery(Struct):
    #: The session after which the page begins.
    after: str = ""
    limit: PageLimit = PAGE_ITEMS_MAX


class ReportRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def stats(self, request: HttpRequest) -> StatsBody:
        query: StatsQuery = request.query
        workspace_id = None if query.workspace_id is None else check_text(query.workspace_id, "workspace_id")
        counting = self._engine.reports.statistics(
            query.by, query.since, query.until, workspace_id, query.utc_offset_min
        )
        report = await request.while_connected(counting)
        return StatsBody(
            since=report.since,
            until=report.until,
            by=query.by,
            total=figures_body(report.total, "", ""),
            groups=[_group(group, query.by, report.workspaces) for group in report.groups],
            tools=[tool_figures_body(tool) for tool in report.tools],
            reasons=report.reasons,
        )

    async def lane(self, request: HttpRequest) -> LaneBody:
        query: LaneQuery = request.query
        workspace, session_id = self._engine.workspaces.get(request.path["id"]), request.path["sid"]
        every = RunSpan()
        span = RunSpan(
            query.before or every.before_seq, query.since, every.until if query.until is None else query.until
        )
        reading = self._engine.reports.timeline(workspace, session_id, span, query.limit)
        timeline = await request.while_connected(reading)
        return LaneBody(
            session_id=session_id,
            position=timeline.position,
            runs=[lane_run_body(item.run, item.items) for item in timeline.runs],
            cancels=cancel_marks([item.run for item in timeline.runs]),
            next_before=UNSET if timeline.next_before is None else timeline.next_before,
        )

    async def lanes(self, request: HttpRequest) -> Iterator[LiveLaneBody]:
        query: LanesQuery = request.query
        lanes = self._engine.reports.live_lanes(query.after)
        return (
            LiveLaneBody(
                workspace_id=lane.workspace.id,
                path=lane.workspace.path,
                session_id=lane.session.id,
                title=lane.session.title,
                parent_run_id=lane.session.parent_run_id or UNSET,
                active=lane_run_body(lane.active),
                queued=lane.queued,
                folded=lane.folded,
                asks=lane.asks,
                asked_at=lane.asked_at or UNSET,
            )
            for lane in islice(lanes, query.limit)
        )

    def routes(self) -> list[Route]:
        lane = "/workspaces/{id}/sessions/{sid}/lane"
        return [
            route(
                "GET", "/stats", self.stats, "Return the statistics of ended runs", query=StatsQuery, reply=StatsBody
            ),
            route(
                "GET",
                "/lanes",
                self.lanes,
                "List the sessions with live runs of all open workspaces",
                query=LanesQuery,
                reply=list[LiveLaneBody],
                merged_by="session_id",
            ),
            route("GET", lane, self.lane, "Return the timeline of a session", query=LaneQuery, reply=LaneBody),
        ]


def _group(group: Figures, by: GroupBy, workspaces: dict[str, str]) -> FiguresBody:
    key = day_text(group.key) if by == "day" and group.key != OTHER else group.key
    return figures_body(group, key, workspaces.get(group.key, key))
