"""`kedge mcp serve`: a real process, used through the official client over both transports."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from kedge.client.client import Client
from kedge.testing import HostedEndpoint
from kedge.wire.models import RunBody
from tests.cli.test_run_approvals import write
from tests.client.process import Server, until

#: The revisions of the protocol before and after sessions were removed from it.
REVISIONS = ("legacy", "auto")


@asynccontextmanager
async def over_stdio(server: Server, *arguments: str, revision: str = "auto") -> AsyncIterator[McpClient]:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "kedge", "mcp", "serve", "--host", server.host, *arguments],
        env=server.home.env,
        cwd=server.home.workspace,
    )
    async with McpClient(stdio_client(parameters), mode=revision) as client:
        yield client


class HttpServer:
    """A `kedge mcp serve --http` process."""

    def __init__(self, server: Server) -> None:
        self.home = server.home
        command = server.home.start_kedge("mcp", "serve", "--host", server.host, "--http", "127.0.0.1:0")
        shown = until(command, "mcp-token\n").splitlines()
        self.url = shown[0].removeprefix("listening on ")
        self.token_file = Path(shown[1].removeprefix("token in "))
        self.token = self.token_file.read_text().strip()
        self.process = command

    @asynccontextmanager
    async def client(self, revision: str = "auto") -> AsyncIterator[McpClient]:
        headers = {"authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with McpClient(transport, mode=revision) as client:
                yield client


async def call(client: McpClient, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    report: dict[str, Any] = result.structured_content
    return report


async def refused(client: McpClient, tool: str, **arguments: Any) -> str:
    """Return the one line of the error."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    (content,) = result.content
    assert content.type == "text"
    assert "\n" not in content.text
    return content.text


async def ended(client: McpClient, run_id: str) -> dict[str, Any]:
    report = await call(client, "wait", run_id=run_id)
    assert report["state"] == "ended", report
    return report


async def own_runs(client: Client, server: Server, session_id: str) -> Sequence[RunBody]:
    workspace = await client.create_workspace(str(server.home.workspace))
    return await client.session_runs(workspace.id, session_id)


def new_key() -> str:
    return f"k{uuid.uuid4().hex}"


async def test_cancel_covers_exactly_what_was_accepted(server: Server, endpoint: HostedEndpoint) -> None:
    async with over_stdio(server) as client:
        a = await call(client, "submit", prompt=f"script: say begun | hold {new_key()}")
        session = {"session_id": a["session_id"]}
        b = await call(client, "submit", prompt="script: say never", **session)
        assert (a["state"], b["state"]) == ("active", "queued")
        waited = await call(client, "wait", run_id=a["run_id"], timeout_s=0.05)
        assert (waited["state"], waited["outcome"]) == ("running", "")
        covered = (await call(client, "cancel", **session))["covered"]
        assert covered == [{"run_id": a["run_id"], "was": "active"}, {"run_id": b["run_id"], "was": "queued"}]
        c = await call(client, "run", prompt="script: say survived", **session)
        assert (c["state"], c["outcome"], c["text"]) == ("ended", "completed", "survived")
        for run in (a, b):
            assert (await ended(client, run["run_id"]))["outcome"] == "cancelled"
        again = await call(client, "cancel", run_id=c["run_id"])
        assert (again["covered"], again["note"]) == ([], "Nothing was active or queued.")
        assert [item["session_id"] for item in (await call(client, "sessions"))["sessions"]] == [a["session_id"]]


class Begun(asyncio.Event):
    """Set by the first tool call of a Run, which must be `ls`."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        assert (progress, message) == (1.0, "ls .")
        self.set()


async def cancelled_call(client: McpClient, server: Server, own: Client) -> None:
    """Cancel a call of `run` in a session with a second Run in its queue: only its own Run is cancelled."""
    first = await call(client, "run", prompt="script: say first")
    session_id, key, begun = first["session_id"], new_key(), Begun()
    arguments = {"prompt": f"script: tool ls {{}} | say working | hold {key}", "session_id": session_id}
    calling = asyncio.ensure_future(client.call_tool("run", arguments, progress_callback=begun))
    await begun.wait()
    later = await call(client, "submit", prompt="script: say later", session_id=session_id)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert (await ended(client, later["run_id"]))["text"] == "later"
    outcomes = {run.prompt[:14]: run.outcome for run in await own_runs(own, server, session_id)}
    assert outcomes["script: tool l"] == "cancelled"


@pytest.mark.parametrize("revision", REVISIONS)
async def test_cancelled_call_cancels_its_run_over_stdio(server: Server, client: Client, revision: str) -> None:
    async with over_stdio(server, revision=revision) as agent:
        await cancelled_call(agent, server, client)


async def test_cancelled_call_cancels_its_run_over_http(server: Server, client: Client) -> None:
    http = HttpServer(server)
    for revision in REVISIONS:
        async with http.client(revision) as agent:
            await cancelled_call(agent, server, client)


async def test_runs_continue_without_their_client(server: Server, client: Client, endpoint: HostedEndpoint) -> None:
    """The ends of a connection that are not a cancel: closed standard input, an ended session, a stopped process."""
    http = HttpServer(server)
    for connect, stops in ((over_stdio(server), False), (http.client("legacy"), False), (http.client(), True)):
        key, begun = new_key(), Begun()
        async with connect as agent:
            prompt = f"script: tool ls {{}} | hold {key} | say done alone"
            session_id = (await call(agent, "run", prompt="script: say hello"))["session_id"]
            calling = agent.call_tool("run", {"prompt": prompt, "session_id": session_id}, progress_callback=begun)
            task = asyncio.ensure_future(calling)
            await begun.wait()
            (run,) = [run for run in await own_runs(client, server, session_id) if run.state == "active"]
            if stops:
                http.process.terminate()
                assert await asyncio.to_thread(http.process.wait, 20) == 0
        # It left without a cancel: the call has no result.
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, MCPError)
        endpoint.release(key)
        assert (await client.wait_run(run.workspace_id, run.run_id)).outcome == "completed"


async def test_approvals_are_for_the_user_by_default(server: Server) -> None:
    async with over_stdio(server) as agent:
        assert "answer_approval" not in {tool.name for tool in (await agent.list_tools()).tools}
        waiting = await call(agent, "run", prompt=write())
        assert (waiting["state"], waiting["outcome"]) == ("waiting_for_answer", "")
        (approval,) = waiting["pending"]
        assert "Create a.txt (+2 -0)" in approval["text"]
        assert "  +one\n  +two" in approval["text"]
        assert (await call(agent, "pending"))["pending"] == [approval]
        assert "Unknown tool" in await refused(agent, "answer_approval", approval_id=approval["id"], answer="allow")
        for mode in ("edits", "auto", "yolo"):
            assert "mode" in await refused(agent, "submit", prompt=write(), mode=mode)
        assert "outside" in await refused(agent, "submit", prompt=write(), directory="..")
        await call(agent, "cancel", run_id=waiting["run_id"])
        assert (await ended(agent, waiting["run_id"]))["outcome"] == "cancelled"
        assert not (server.home.workspace / "a.txt").exists()


async def test_approvals_are_answered_one_by_one_if_the_user_says_so(server: Server, client: Client) -> None:
    async with over_stdio(server, "--approve") as agent:
        waiting = await call(agent, "run", prompt=write())
        (approval,) = waiting["pending"]
        answer = {"approval_id": approval["id"], "answer": "allow"}
        assert "binding" in await refused(agent, "answer_approval", **answer)
        assert await refused(agent, "answer_approval", **answer, binding="0" * 64)
        assert "answer" in await refused(agent, "answer_approval", **{**answer, "answer": "allow_always"})
        await call(agent, "answer_approval", **answer, binding=approval["binding"])
        assert (await ended(agent, waiting["run_id"]))["outcome"] == "completed"
        assert (server.home.workspace / "a.txt").read_text() == "one\ntwo\n"
        other = await call(agent, "run", prompt=write("b.txt"), session_id=waiting["session_id"])
        (approval,) = other["pending"]
        await call(agent, "answer_approval", approval_id=approval["id"], answer="deny", message="Not this file")
        assert (await ended(agent, other["run_id"]))["outcome"] == "completed"
        assert not (server.home.workspace / "b.txt").exists()
        assert "not run: denied" in (await call(agent, "transcript", session_id=waiting["session_id"]))["text"]
    workspace = await client.create_workspace(str(server.home.workspace))
    results = [
        message for message in await client.messages(workspace.id, waiting["session_id"]) if message.role == "tool"
    ]
    assert "Not this file" in results[-1].parts[0].data["content"]
    assert await client.grants(workspace.id) == []


async def test_questions_are_answered_but_plans_are_for_the_user(server: Server) -> None:
    questions = [{"question": "Which?", "options": [{"label": "red"}, {"label": "blue"}]}]
    plan = f"script: tool present_plan {json.dumps({'plan': '1. Write a.txt'})} | echo"
    async with over_stdio(server, "--approve") as agent:
        asked = await call(agent, "run", prompt=f"script: tool question {json.dumps({'questions': questions})} | echo")
        (question,) = asked["pending"]
        assert "there is no option 3" in await refused(
            agent, "answer_question", question_id=question["id"], answers=["3"]
        )
        await call(agent, "answer_question", question_id=question["id"], answers=["2"])
        assert (await ended(agent, asked["run_id"]))["outcome"] == "completed"
        assert "blue" in (await call(agent, "transcript", session_id=asked["session_id"]))["text"]
        asked = await call(agent, "run", prompt=plan, mode="plan")
        (question,) = asked["pending"]
        assert "Accept, and let edits pass" in question["text"]
        for answer in ("1", "2", "Accept", " Accept, and let edits pass "):
            text = await refused(agent, "answer_question", question_id=question["id"], answers=[answer])
            assert "only the user" in text
        assert "Only the user" in await refused(
            agent, "submit", prompt="script: say no", session_id=asked["session_id"], mode="ask"
        )
        await call(agent, "answer_question", question_id=question["id"], answers=["Write b.txt instead"])
        assert (await ended(agent, asked["run_id"]))["outcome"] == "completed"


async def test_results_are_harmless_and_bounded(server: Server) -> None:
    async with over_stdio(server) as agent:
        first = await call(agent, "run", prompt="script: say \x1b[2Jred\x07 \u202eevil")
        session_id = first["session_id"]
        await call(agent, "run", prompt="script: words 8000", session_id=session_id)
        report = await call(agent, "run", prompt="script: say the end", session_id=session_id)
        assert report["text"] == "the end"
        pages: list[str] = []
        after = ""
        while not pages or after:
            page = await call(agent, "transcript", session_id=session_id, after=after)
            pages.append(page["text"])
            after = page["next_after"]
        assert len(pages) == 3
        assert max(map(len, pages)) < 25_000
        assert "more characters]" in pages[1]
        assert "the end" in pages[-1]
        resource = (await agent.read_resource(f"kedge://session/{session_id}")).contents[0]
        everything = json.dumps([first, pages, resource.model_dump()], ensure_ascii=False)
        assert "red" in everything
        assert not any(character in everything for character in "\x1b\x07\u202e")


async def test_two_http_clients_share_one_server(server: Server) -> None:
    exposed = server.home.data / "mcp-token"
    exposed.write_text("x" * 43)
    exposed.chmod(0o644)
    http = HttpServer(server)
    assert http.token != "x" * 43
    assert stat.S_IMODE(http.token_file.stat().st_mode) == 0o600
    async with http.client() as one, http.client("legacy") as two:
        texts = await asyncio.gather(
            *(call(agent, "run", prompt=f"script: say {name}") for agent, name in ((one, "a"), (two, "b"), (one, "c")))
        )
        assert [report["text"] for report in texts] == ["a", "b", "c"]
        assert len((await call(two, "sessions"))["sessions"]) == 3


#: Headers that replace those of a valid request -> status of the reply.
REFUSED = [
    ({"authorization": ""}, 401),
    ({"authorization": "Bearer wrong"}, 401),
    ({"host": "evil.example"}, 421),
    ({"host": "127.0.0.1:1"}, 421),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
]


async def test_http_refuses_strangers_and_foreign_pages(server: Server) -> None:
    http = HttpServer(server)
    initialize = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    accept = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {http.token}"}
    modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
    async with httpx2.AsyncClient() as raw:
        assert (await raw.post(http.url, json=initialize, headers=accept)).status_code == 200
        for headers, status in REFUSED:
            for more in ({}, modern):
                reply = await raw.post(http.url, json=initialize, headers=accept | more | headers)
                assert (reply.status_code, headers) == (status, headers)
                assert http.token not in reply.text
    http.process.terminate()
    assert http.process.wait(20) == 0
    assert HttpServer(server).token == http.token


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "10.0.0.1:80", "example.com:80", "127.0.0.1", "[::1]:99999"]
)
def test_http_listens_on_loopback_only(server: Server, address: str) -> None:
    done = server.home.kedge("mcp", "serve", "--http", address)
    assert (done.code, done.err.count("\n")) == (2, 1)


async def test_killed_server_is_a_clear_error(own_server: Server, endpoint: HostedEndpoint) -> None:
    async with over_stdio(own_server) as agent:
        key = new_key()
        run = await call(agent, "submit", prompt=f"script: hold {key} | say resumed")
        waiting = asyncio.ensure_future(refused(agent, "wait", run_id=run["run_id"], timeout_s=0.3))
        own_server.kill()
        assert str(own_server.socket) in await waiting
        own_server.start()
        endpoint.release(key)
        assert (await ended(agent, run["run_id"]))["text"] == "resumed"
