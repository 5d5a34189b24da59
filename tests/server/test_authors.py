"""Authors over HTTP: every change of a user carries the name, and other clients see it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from click.testing import CliRunner

from kedge.cli.command_runs import runs
from kedge.server.auth import Gate
from kedge.server.http_server import HttpServer
from kedge.server.known_users import KnownUsers
from kedge.server.protocol import HttpProtocol
from kedge.server.routes import make_app
from kedge.server.system import SystemClock
from kedge.testing.scripted import Call, Hold, ScriptedModel
from kedge.tools.question import QuestionTool
from tests.engine.rig import ActingTool, Rig, do, rig
from tests.engine.test_undo import writes

TOKEN = "a-token-of-16-characters"


class Api:
    def __init__(self, http: httpx2.AsyncClient, r: Rig, host: str, users: KnownUsers) -> None:
        self._http, self.rig, self.host = http, r, host
        self._users = users
        #: The owner has no name.
        self._tokens = {"": TOKEN}
        self.session = f"sessions/{r.session}"

    async def call(self, user: str, method: str, path: str, body: object = None) -> Any:
        url = f"/v1/workspaces/{self.rig.workspace.id}/{path}"
        if user not in self._tokens:
            _, self._tokens[user] = await self._users.add(user, "collaborator", "")
        headers = {"authorization": f"Bearer {self._tokens[user]}"}
        reply = await self._http.request(method, url, json=body, headers=headers)
        assert reply.status_code in (200, 202), reply.text
        return reply.json()

    async def submit(self, user: str, run_id: str, **options: object) -> Any:
        body = {"session_id": self.rig.session, "prompt": "hello", "run_id": run_id, **options}
        return await self.call(user, "POST", "agent", body)

    def actions(self) -> list[tuple[str, str]]:
        entries = self.rig.store.data.audit.values()
        return [(entry.author, entry.action) for entry in entries if entry.action != "add_user"]


@asynccontextmanager
async def serving(directory: Path, model: ScriptedModel, **options: Any) -> AsyncIterator[Api]:
    async with rig(directory, model, **options) as r:
        users = KnownUsers(r.store.users, SystemClock().now_ms)
        app = make_app(r.engine, Gate(TOKEN, users=users), "data", lambda: None)
        server = HttpServer(uvicorn.Config(app, http=HttpProtocol, ws="none", lifespan="off", log_config=None))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            task = asyncio.create_task(server.serve([sock]))
            await server.ready.wait()
            try:
                address = f"127.0.0.1:{sock.getsockname()[1]}"
                async with httpx2.AsyncClient(base_url=f"http://{address}") as http:
                    yield Api(http, r, f"tcp://{address}", users)
            finally:
                server.should_exit = True
                await task


async def test_authors_are_in_replies(tmp_path: Path) -> None:
    model = ScriptedModel(do("it", ask=True), [Hold("never")])
    async with serving(tmp_path, model, tools=(ActingTool(),)) as api:
        for user, run_id in (("ann", "a"), ("ann", "b"), ("ann", "c"), ("bob", "d"), ("", "e")):
            await api.submit(user, run_id)
        (ask,) = await api.rig.until_asked()
        await api.call("bob", "POST", "permissions/grant", {"id": ask.id, "action": "allow_always"})
        (grant,) = await api.call("", "GET", "permissions/grants")
        assert grant["author"] == "bob"
        await api.rig.model.wait_requests(2)
        await api.call("cid", "POST", "agent/runs/c/cancel")
        await api.call("bob", "POST", f"agent/{api.session}/cancel")
        await api.rig.end("a")
        listed = await api.call("", "GET", f"agent/{api.session}/runs")
        by_id = {run["run_id"]: run for run in listed}
        shown = {run_id: (run.get("author"), run.get("cancelled_by")) for run_id, run in by_id.items()}
        assert shown == {
            "a": ("ann", "bob"),
            "b": ("ann", "bob"),
            "c": ("ann", "cid"),
            "d": ("bob", "bob"),
            "e": (None, "bob"),
        }
        orders = {run_id: run["queue_order"] for run_id, run in by_id.items()}
        assert sorted("bcde", key=orders.__getitem__) == ["b", "d", "e", "c"]
        lane = await api.call("", "GET", f"{api.session}/lane")
        assert [run.get("author") for run in lane["runs"]] == ["ann", "ann", "ann", "bob", None]
        assert [mark["author"] for mark in lane["cancels"]] == ["bob"]
        assert lane["runs"][0]["trace"][0]["author"] == "bob"


async def test_each_route_passes_the_user_on(tmp_path: Path) -> None:
    question = Call("question", {"questions": [{"question": "Which?"}]})
    model = ScriptedModel(do("write"), "done", [question], [question], [Hold("never")], "summary")
    tools = (writes(tmp_path / "a.txt", "new"), QuestionTool())
    async with serving(tmp_path, model, tools=tools) as api:
        run, session = "agent/runs", f"agent/{api.session}"
        await api.submit("ann", "a")
        await api.rig.end("a")
        await api.call("ann", "POST", f"{api.session}/undo", {})
        await api.call("ann", "POST", f"{api.session}/redo")
        await api.submit("ann", "b")
        (ask,) = await api.rig.until_asked()
        await api.call("ann", "POST", "questions/answer", {"batch_request_id": ask.id, "responses": []})
        (ask,) = await api.rig.until_asked()
        await api.call("ann", "POST", "questions/cancel", {"batch_request_id": ask.id})
        for run_id in ("c", "d"):
            await api.submit("ann", run_id)
        await api.call("ann", "PATCH", f"{run}/c", {"prompt": "other"})
        await api.call("ann", "POST", f"{run}/c/move", {"before": None})
        await api.call("ann", "POST", f"{run}/c/fold")
        await api.call("ann", "POST", f"{session}/summarize")
        await api.call("ann", "POST", f"{session}/queue/clear")
        await api.call("ann", "POST", f"{run}/b/cancel")
        await api.rig.end("b")
        await api.call("ann", "PUT", api.session, {"mode": "edits"})
        messages = await api.call("", "GET", f"{api.session}/messages")
        first = next(message["id"] for message in messages if message["role"] == "user")
        await api.call("ann", "POST", f"{api.session}/rewind", {"message_id": first, "scope": "conversation"})
        await api.call("ann", "DELETE", api.session)
        expected = "submit undo redo submit answer answer submit submit edit_run move_run fold_run submit clear_queue"
        expected += " cancel_run mode rewind delete_session"
        assert api.actions() == [("ann", action) for action in expected.split()]


async def test_owner_has_no_name(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedModel([Hold("never")])) as api:
        await api.submit("", "a")
        await api.call("", "POST", f"agent/{api.session}/cancel")
        ended = await api.rig.end("a")
        body = await api.call("", "GET", "agent/runs/a")
        assert ended.cancelled_by == ""
        assert not {"author", "cancelled_by"} & body.keys()
        assert api.actions() == []


async def test_user_with_too_many_runs_gets_429(tmp_path: Path) -> None:
    server = {"live_runs_per_user_max": 1}
    async with serving(tmp_path, ScriptedModel([Hold("never")]), server=server) as api:
        await api.submit("ann", "a")
        with pytest.raises(AssertionError, match="too_many_runs"):
            await api.submit("ann", "b")
        await api.submit("bob", "b")


async def test_live_runs_show_their_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDGE_TOKEN", TOKEN)
    async with serving(tmp_path, ScriptedModel([Hold("never")])) as api:
        await api.submit("", "a")
        shown = await asyncio.to_thread(CliRunner().invoke, runs, ["--host", api.host])
        assert "USER" not in shown.output
        await api.submit("ann", "b")
        shown = await asyncio.to_thread(CliRunner().invoke, runs, ["--host", api.host])
        columns = [line.split()[-2:] for line in shown.output.splitlines()]
        assert columns == [["USER", "PROMPT"], ["-", "hello"], ["ann", "hello"]]
        for run_id in ("c", "d"):
            await api.submit("ann", run_id)
        await api.submit("bob", "e")
        shown = await asyncio.to_thread(CliRunner().invoke, runs, ["--host", api.host])
        assert [line.split()[0] for line in shown.output.splitlines()[1:]] == list("abecd")
