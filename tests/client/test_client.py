from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kedge import errors
from kedge.client.client import Client, new_run_id
from kedge.client.event_stream import EventStream, StreamEvent
from kedge.client.followed_run import FollowedSummary
from kedge.wire.models import AttachmentBody, QuestionResponse, Receipt, RunBody, SessionBody, SubmitPrompt, UsageBody
from tests.client.process import Home, Server
from tests.client.standin import Asked, StandIn, json


async def begin(client: Client, home: Home) -> tuple[str, str]:
    workspace = await client.create_workspace(str(home.workspace))
    return workspace.id, (await client.create_session(workspace.id)).id


def prompt(session_id: str, text: str, **more: object) -> SubmitPrompt:
    return SubmitPrompt(session_id=session_id, prompt=text, run_id=new_run_id(), **more)  # type: ignore[arg-type]


async def test_server_describes_itself(own_client: Client, own_server: Server) -> None:
    await own_client.health()
    version = await own_client.version()
    assert own_server.process
    assert version.pid == own_server.process.pid
    assert version.data_dir == str(own_server.home.data)
    assert "kedge_runs_active" in await own_client.metrics()
    assert "/v1/health" in (await own_client.openapi())["paths"]
    assert await own_client.runs() == []


async def test_workspace_is_opened_listed_and_released(client: Client, home: Home) -> None:
    workspace = await client.create_workspace(str(home.workspace))
    assert (await client.create_workspace(str(home.workspace))).id == workspace.id
    assert workspace.id in [found.id for found in await client.workspaces()]
    assert (await client.workspace(workspace.id)).path == str(home.workspace)
    assert (await client.config(workspace.id))["model"] == "local/fake-large"
    assert "secret-canary-key" not in str(await client.config(workspace.id))
    await client.release_workspace(workspace.id)
    with pytest.raises(errors.WorkspaceNotFound):
        await client.workspace(workspace.id)
    await client.retire()
    with pytest.raises(errors.ClientRetired):
        await client.create_workspace(str(home.workspace))


async def test_session_routes(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    await client.set_current_session(workspace_id, session_id)
    assert (await client.rename_session(workspace_id, session_id, "The parser")).title == "The parser"
    receipt = await client.submit(workspace_id, prompt(session_id, "hello parser"))
    run = await client.wait_run(workspace_id, receipt.run_id)
    assert (run.outcome, run.text) == ("completed", "You said: hello parser")
    messages = await client.messages(workspace_id, session_id)
    assert [message.role for message in messages] == ["user", "assistant"]
    assert (await client.messages(workspace_id, session_id, after=messages[0].id, limit=1))[0].id == messages[1].id
    assert [message.id async for message in client.all_messages(workspace_id, session_id)] == [m.id for m in messages]
    assert [run.run_id for run in await client.session_runs(workspace_id, session_id)] == [receipt.run_id]
    assert (await client.search(workspace_id, "parser"))[0].session_id == session_id
    assert b"hello parser" in await client.export_session(workspace_id, session_id, "md")
    assert (
        (await client.export_session(workspace_id, session_id, "html")).lstrip().lower().startswith(b"<!doctype html")
    )
    fork = await client.fork_session(workspace_id, session_id, messages[0].id)
    assert fork.message_count == 1
    assert {found.id for found in await client.sessions(workspace_id)} == {session_id, fork.id}
    await client.delete_session(workspace_id, fork.id)
    with pytest.raises(errors.SessionNotFound):
        await client.session(workspace_id, fork.id)


async def test_long_transcript_is_read_in_pages(client: Client, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.client.client.PAGE_MESSAGES", 2)
    workspace_id, session_id = await begin(client, home)
    for number in range(3):
        receipt = await client.submit(workspace_id, prompt(session_id, f"number {number}"))
        await client.wait_run(workspace_id, receipt.run_id)
    found = [message async for message in client.all_messages(workspace_id, session_id)]
    assert len(found) == len({message.id for message in found}) == 6


async def said(client: Client, workspace_id: str, session_id: str, run_id: str) -> list[str]:
    """The text and the file names of this Run's prompt in the transcript."""
    messages = [message async for message in client.all_messages(workspace_id, session_id)]
    own = next(message for message in messages if message.run_id == run_id and message.role == "user")
    return [str(part.data.get("path") or part.data.get("text")) for part in own.parts]


async def test_c2_folded_run_keeps_its_files(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    script = 'script: tag fold-files | hold told-to-fold | tool ls {"path": "."} | hold told-to-fold-2 | say done'
    active = await client.submit(workspace_id, prompt(session_id, script))
    # Before its first request, the prompt could join it at once.
    await asyncio.to_thread(home.endpoint.wait_until, lambda endpoint: endpoint.open_by_tag["fold-files"] == 1)
    file = AttachmentBody(file_path="a.txt", file_name="a.txt", mime_type="text/plain", content=b"words of a file")
    queued = await client.submit(workspace_id, prompt(session_id, "hurry", attachments=[file]))
    told = await client.fold_run(workspace_id, queued.run_id)
    assert (told.seq, told.state, told.folds) == (queued.seq, "queued", True)
    assert await client.fold_run(workspace_id, queued.run_id) == told, "once is enough"
    await client.edit_run(workspace_id, queued.run_id, "hurry now")
    home.endpoint.release("told-to-fold")
    home.endpoint.release("told-to-fold-2")
    ended = await client.wait_run(workspace_id, queued.run_id)
    assert (ended.outcome, ended.folded_into, ended.folds) == ("completed", active.run_id, False)
    assert await said(client, workspace_id, session_id, queued.run_id) == ["hurry now", "a.txt"]
    with pytest.raises(errors.RunNotQueued):
        await client.fold_run(workspace_id, queued.run_id)


async def test_edit_can_replace_files(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    await client.submit(workspace_id, prompt(session_id, "script: hold other-files | say x"))
    files = [
        AttachmentBody(file_path=name, file_name=name, mime_type="text/plain", content=f"text of {name}".encode())
        for name in ("a.txt", "b.txt")
    ]
    queued = await client.submit(workspace_id, prompt(session_id, "look", attachments=files[:1]))
    long_text = "look " * 20_000  # more than fits into a small body
    await client.edit_run(workspace_id, queued.run_id, long_text, files[1:])
    home.endpoint.release("other-files")
    await client.wait_run(workspace_id, queued.run_id)
    assert await said(client, workspace_id, session_id, queued.run_id) == [long_text, "b.txt"]


async def queued_runs(client: Client, workspace_id: str, session_id: str) -> list[RunBody]:
    runs = await client.session_runs(workspace_id, session_id)
    return sorted((run for run in runs if run.state == "queued"), key=lambda run: run.queue_order)


async def test_queue_is_listed_edited_moved_cleared_and_cancelled(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    active = await client.submit(workspace_id, prompt(session_id, "script: hang"))
    first, second, third = [await client.submit(workspace_id, prompt(session_id, f"p{n}")) for n in (1, 2, 3)]
    assert (active.state, first.state) == ("active", "queued")
    assert [run.prompt for run in await queued_runs(client, workspace_id, session_id)] == ["p1", "p2", "p3"]
    assert (await client.edit_run(workspace_id, first.run_id, "edited")).prompt == "edited"
    await client.move_run(workspace_id, third.run_id, before=first.run_id)
    assert [run.prompt for run in await queued_runs(client, workspace_id, session_id)] == ["p3", "edited", "p2"]
    queued = {run.run_id for run in await client.runs("queued")}
    assert {first.run_id, second.run_id, third.run_id} <= queued
    assert active.run_id not in queued
    one = await client.cancel_run(workspace_id, second.run_id)
    assert [covered.run_id for covered in one.covered] == [second.run_id]
    cleared = await client.clear_queue(workspace_id, session_id)
    assert {covered.run_id for covered in cleared.covered} == {first.run_id, third.run_id}
    live = await client.wait_run(workspace_id, active.run_id, timeout_s=0)
    assert live.state == "active"
    with pytest.raises(errors.RunNotQueued):
        await client.edit_run(workspace_id, active.run_id, "too late")
    with pytest.raises(errors.LaneBusy):
        await client.submit(workspace_id, prompt(session_id, "now", when_busy="reject"))
    rest = await client.cancel_session(workspace_id, session_id)
    assert [(covered.run_id, covered.was) for covered in rest.covered] == [(active.run_id, "active")]
    assert (await client.wait_run(workspace_id, active.run_id)).outcome == "cancelled"
    assert (await client.cancel_session(workspace_id, session_id)).covered == []


async def test_prompt_can_be_resent(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    body = prompt(session_id, "once")
    assert await client.submit(workspace_id, body) == await client.submit(workspace_id, body)
    body.prompt = "other"
    with pytest.raises(errors.RunIdReused):
        await client.submit(workspace_id, body)


async def test_released_workspace_is_reopened(own_client: Client, own_server: Server, home: Home) -> None:
    workspace_id, session_id = await begin(own_client, home)
    own_server.stop()
    own_server.start()
    assert (await own_client.session(workspace_id, session_id)).id == session_id
    async with Client(own_server.host) as stranger:
        await own_client.release_workspace(workspace_id)
        with pytest.raises(errors.WorkspaceNotFound, match="Open its directory"):
            await stranger.sessions(workspace_id)


@pytest.mark.found(
    "seed 924284 of the simulator",
    "A workspace that no client held was released while a request to it arrived, and the client passed the refusal on, "
    "although a slightly later request reopened the workspace. Neither has an effect, so both are now retried.",
)
async def test_request_to_a_closing_workspace_is_retried() -> None:
    workspace = {"id": "w", "path": "/the/path", "data_dir": "", "version": "", "config": {}}
    refusal = {"message": "?", "code": "workspace_closing"}
    answers = iter([(200, workspace), (409, refusal), (200, workspace), (200, [])])

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(json(*next(answers)))
        await writer.drain()

    async with StandIn(handler) as standin, Client(standin.host) as client:
        await client.create_workspace("/the/path")
        assert await client.session_runs("w", "s") == []
        asked = [one.path for one in standin.asked]
        assert asked == ["/workspaces", asked[1], "/workspaces", asked[1]]


async def test_forced_shutdown_ends_the_server(own_client: Client, own_server: Server, home: Home) -> None:
    workspace_id, session_id = await begin(own_client, home)
    await own_client.submit(workspace_id, prompt(session_id, "script: hang"))
    with pytest.raises(errors.ServerNotIdle):
        await own_client.control("shutdown")
    await own_client.control("shutdown", force=True)
    assert own_server.process
    assert own_server.process.wait(20) == 0


async def test_approval_question_and_grant_methods(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    assert (await client.permissions(workspace_id), await client.questions(workspace_id)) == ([], [])
    script = 'script: tool write {"path": "a.txt", "content": "x"} | tool question {"questions": [{"question": "?"}]}'
    async with client.events(workspace_id, session_id=session_id) as events:
        receipt = await client.submit(workspace_id, prompt(session_id, f"{script} | say done"))
        asked = [event.payload["id"] async for event in _requests(events)]
    (approval,), (batch,) = await client.permissions(workspace_id), await client.questions(workspace_id)
    assert sorted(asked) == sorted([approval.id, batch.id])
    assert (await client.answer_permission(workspace_id, approval.id, "allow_always")).resolved
    late = await client.answer_permission(workspace_id, approval.id, "deny", "too late")
    assert (late.resolved, late.answered) == (False, "allow_always")
    said = QuestionResponse(request_id=batch.questions[0].request_id, fill_in_text="so be it")
    assert (await client.answer_questions(workspace_id, batch.id, [said])).resolved
    assert (await client.wait_run(workspace_id, receipt.run_id)).outcome == "completed"
    with pytest.raises(errors.AskWithdrawn):
        await client.cancel_questions(workspace_id, batch.id)
    (grant,) = await client.grants(workspace_id)
    assert (grant.rule, grant.given_by) == ("edit(**)", client.client_id)
    await client.forget_grant(workspace_id, grant.id)
    with pytest.raises(errors.GrantNotFound):
        await client.forget_grant(workspace_id, grant.id)
    undone = await client.undo(workspace_id, session_id)
    assert (undone.run_id, [Path(file).name for file in undone.files]) == (receipt.run_id, ["a.txt"])


async def _requests(events: EventStream) -> AsyncIterator[StreamEvent]:
    """The approval and the question of that Run."""
    found = 0
    async for event in events:
        if event.type in ("permission_request", "question_batch_request"):
            yield event
            found += 1
        if found == 2:
            return


async def test_session_update_summary_and_commands(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    changed = await client.change_session(workspace_id, session_id, model="kedge/offline")
    assert (changed.model, changed.title) == ("kedge/offline", "")
    changed = await client.change_session(workspace_id, session_id, title="T", model="")
    assert (changed.model, changed.title) == ("", "T")
    done = await client.shell(workspace_id, session_id, "echo hello; exit 2")
    assert (done.exit_code, done.output.strip()) == (2, "hello")
    receipt = await client.submit(workspace_id, prompt(session_id, "hello"))
    await client.wait_run(workspace_id, receipt.run_id)
    receipt = await client.summarize(workspace_id, session_id)
    assert (await client.wait_run(workspace_id, receipt.run_id)).outcome == "completed"
    followed = FollowedSummary(client, workspace_id, session_id)
    async with followed:
        receipt = await followed.submit()
        events = [event async for event in followed]
    assert events[-1].payload["run_id"] == receipt.run_id == followed.run_id


async def test_sessions_are_read_in_pages(client: Client, home: Home) -> None:
    workspace_id = (await client.create_workspace(str(home.workspace))).id
    created = {(await client.create_session(workspace_id, f"{number}")).id for number in range(1_005)}
    listed = await client.sessions(workspace_id)
    assert len(listed) == 1_005
    assert {session.id for session in listed} == created


async def test_page_of_large_messages_ends_early(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    for number in range(5):
        receipt = await client.submit(workspace_id, prompt(session_id, f"{number} {'x' * 1_000_000}"))
        await client.wait_run(workspace_id, receipt.run_id)
    page = await client.messages(workspace_id, session_id)
    assert 0 < len(page) < 10
    whole = [message async for message in client.all_messages(workspace_id, session_id)]
    assert [message.role for message in whole] == ["user", "assistant"] * 5
    assert whole[: len(page)] == page


@pytest.mark.found(
    "fault 24",
    "only the open of a workspace was repeated when a server that shuts down or starts refused it; now all requests "
    "are for which that is safe, and never a cancel",
)
@pytest.mark.parametrize("code", ["shutting_down", "starting"])
async def test_refused_requests_are_repeated_except_cancels(code: str) -> None:
    session = SessionBody(
        id="s1",
        parent_session_id="",
        title="",
        message_count=0,
        usage=UsageBody(input_tokens=0, output_tokens=0, cost_usd=0.0),
        created_at=0,
        updated_at=0,
        is_busy=False,
        attached_clients=0,
    )
    receipt = Receipt(run_id="r1", session_id="s1", seq=1, state="active", position=1)

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        is_first = len([request for request in standin.asked if request.path == asked.path]) == 1
        reply = receipt if asked.path.endswith("/agent") else session
        writer.write(json(503, {"message": "Not now.", "code": code}) if is_first else json(200, reply))

    restarts: list[int] = []

    async def restart() -> None:
        restarts.append(len(standin.asked))

    async with StandIn(handler) as standin, Client(standin.host) as client:
        client.restart = restart
        assert (await client.create_session("w1")).id == "s1"
        assert (await client.submit("w1", prompt("s1", "hello"))).run_id == "r1"
        assert restarts == [1, 3], "before each second attempt"
        for call in (
            client.cancel_session("w1", "s1"),
            client.cancel_run("w1", "r1"),
            client.clear_queue("w1", "s1"),
            client.shell("w1", "s1", "true"),
        ):
            with pytest.raises(errors.Unavailable, match="Not now"):
                await call
        assert len(restarts) == 2
