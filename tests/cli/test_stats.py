"""`kedge stats`, the routes of statistics and timelines, and a restart between them: a real server."""

from __future__ import annotations

import csv
import io
import json
import time
from typing import Any

import pytest

from kedge.client.client import Client
from kedge.errors import Invalid, SessionNotFound, WrongType
from kedge.wire.models import SubmitPrompt
from tests.client.process import Finished, Server


def kedge(server: Server, *arguments: str) -> Finished:
    return server.home.kedge("stats", *arguments, "--host", server.host)


async def test_a_day_of_runs_in_all_forms(own_server: Server, own_client: Client) -> None:
    server, client = own_server, own_client
    assert kedge(server).out == "no runs ended in the last 30d\n"
    assert kedge(server, "--csv", "--by", "tool").out == "name,runs,calls,failures,not_run,busy_ms\n"
    workspace = await client.create_workspace(str(server.home.workspace))
    (server.home.workspace / "x").write_text("hello\n")
    session = await client.create_session(workspace.id)

    async def run(prompt: str, *, run_id: str) -> None:
        await client.submit(workspace.id, SubmitPrompt(session_id=session.id, prompt=prompt, run_id=run_id))

    await run('script: tool view {"path": "x"} | tool view {"path": "gone"} | say read | usage 100 10', run_id="a")
    assert (await client.wait_run(workspace.id, "a")).outcome == "completed"
    await run("script: say half | hold forever", run_id="b")
    await run("later", run_id="c")
    (lane,) = await client.lanes()
    assert (lane.session_id, lane.path, lane.active.run_id, lane.queued) == (session.id, workspace.path, "b", 1)
    assert await client.lanes(after=session.id) == []
    mark = (await client.cancel_session(workspace.id, session.id)).mark
    assert (await client.wait_run(workspace.id, "b")).outcome == "cancelled"
    await run("script: fail 400 broken", run_id="d")
    assert (await client.wait_run(workspace.id, "d")).outcome == "failed"

    page = await client.lane(workspace.id, session.id)
    assert [(one.run_id, one.step_count, len(one.steps)) for one in page.runs] == [
        ("a", 2, 2),
        ("b", 1, 1),
        ("c", 0, 0),
        ("d", 1, 1),
    ]
    (cancel,) = page.cancels
    assert (cancel.mark, cancel.run_id, mark) == (3, "b", 3)
    calls = page.runs[0].steps[0].calls
    assert [(call.name, call.is_error, call.end) for call in calls] == [
        ("view", False, "returned"),
        ("view", True, "returned"),
    ]
    assert all(isinstance(call.ended_at, int) and call.requested_at <= call.ended_at for call in calls)
    first = await client.lane(workspace.id, session.id, limit=3)
    assert ([one.run_id for one in first.runs], first.next_before) == (["b", "c", "d"], 2)
    (rest,) = (await client.lane(workspace.id, session.id, before=2)).runs
    assert rest == page.runs[0]
    ended_at = page.runs[1].ended_at
    assert isinstance(ended_at, int)
    since = await client.lane(workspace.id, session.id, **{"from": ended_at + 1, "to": ended_at + 3_600_000})
    assert [one.run_id for one in since.runs] == ["d"]

    report = json.loads(kedge(server, "--json", "--since", "2d").out)
    total = report["total"]
    assert [total[name] for name in ("runs", "completed", "failed", "cancelled", "interrupted")] == [4, 1, 1, 2, 0]
    assert (total["tool_calls"], total["tool_failures"]) == (2, 1)
    assert total["queue_wait"]["count"] == 3
    assert report["reasons"] == {"cancelled": 1, "cancelled_in_queue": 1, "model_failed": 1}
    assert [group["key"] for group in report["groups"]] == [time.strftime("%Y-%m-%d")]

    server.stop()
    server.start()
    assert json.loads(kedge(server, "--json", "--since", "2d").out)["total"] == total, "after a restart"
    await client.create_workspace(str(server.home.workspace))
    await client.delete_session(workspace.id, session.id)
    assert json.loads(kedge(server, "--json", "--since", "2d").out)["total"] == total, "after its session was deleted"
    with pytest.raises(SessionNotFound):
        await client.lane(workspace.id, session.id)

    table = kedge(server, "--by", "workspace").out.splitlines()
    assert table[0].split()[:3] == ["WORKSPACE", "RUNS", "OK"]
    assert table[1].split()[:6] == [workspace.path, "4", "1", "1", "2", "0"]
    assert table[-1].split()[:2] == ["total", "4"]
    assert kedge(server, "--by", "tool", "--workspace", workspace.path).out.splitlines()[1].split()[:5] == [
        "view", "1", "2", "1", "0",
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(kedge(server, "--by", "outcome", "--csv").out)))
    assert {row["key"]: row["runs"] for row in rows} == {"cancelled": "2", "completed": "1", "failed": "1"}
    assert {"queue_wait_median_ms", "first_token_p95_ms", "cost_usd"} <= set(rows[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "soon"], "--since 'soon' is not a time such as 12h, 7d or 4w"),
        (["--json", "--csv"], "--json and --csv exclude each other"),
        (["--by", "mood"], "Invalid value for '--by'"),
        (["--workspace", "/etc"], "No session was ever created in /etc"),
        (["--since", "9000w"], "more than 1000 days; choose a later start"),
    ],
)
def test_mistakes_are_explained_in_one_line(server: Server, arguments: list[str], message: str) -> None:
    done = kedge(server, *arguments)
    assert (done.code != 0, done.out, done.err.count("\n")) == (True, "", 1)
    assert message in done.err


def test_help_has_examples(server: Server) -> None:
    shown = server.home.kedge("stats", "--help").out
    assert "kedge stats --by model --since 7d" in shown
    assert "deleted sessions are included" in shown


@pytest.mark.parametrize(
    "params",
    [{"since": -1}, {"until": 2**60}, {"by": "mood"}, {"utc_offset_min": 10_000}, {"workspace_id": "a\0b"}],
)
async def test_wrong_queries_are_refused(client: Client, params: dict[str, Any]) -> None:
    with pytest.raises((WrongType, Invalid)):
        await client.stats(**params)


async def test_wrong_pages_of_a_timeline_are_refused(client: Client, server: Server) -> None:
    workspace = await client.create_workspace(str(server.home.workspace))
    session = await client.create_session(workspace.id)
    assert (await client.lane(workspace.id, session.id)).runs == []
    for params in ({"from": -1}, {"to": 2**60}, {"before": 0}, {"limit": 201}, {"limit": 0}):
        with pytest.raises(WrongType):
            await client.lane(workspace.id, session.id, **params)
