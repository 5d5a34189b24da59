"""`kedge approvals`, and the session commands undo, model and summarize."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kedge.client.client import Client, new_run_id
from kedge.errors import Conflict
from kedge.testing import HostedEndpoint
from kedge.wire.models import RunBody, SubmitPrompt
from tests.cli.test_run_approvals import approvals, write
from tests.client.process import Finished, Server, Terminal, until


def kedge(server: Server, *arguments: str) -> Finished:
    return server.home.kedge(*arguments, "--host", server.host)


class Waiting:
    """A Run that waits for an answer, without a terminal."""

    def __init__(self, server: Server, client: Client) -> None:
        self.server, self.client = server, client

    async def begin(self, script: str) -> str:
        """The id of the pending approval."""
        self.workspace_id = (await self.client.create_workspace(str(self.server.home.workspace))).id
        self.session_id = (await self.client.create_session(self.workspace_id)).id
        async with self.client.events(self.workspace_id, session_id=self.session_id) as events:
            prompt = SubmitPrompt(session_id=self.session_id, prompt=script, run_id=new_run_id())
            self.run_id = (await self.client.submit(self.workspace_id, prompt)).run_id
            async for event in events:
                if event.type in ("permission_request", "question_batch_request"):
                    return str(event.payload["id"])
        raise AssertionError("it ended without asking")

    async def end(self) -> RunBody:
        return await self.client.wait_run(self.workspace_id, self.run_id)

    async def told(self) -> str:
        """Return all tool results of the session."""
        messages = await self.client.messages(self.workspace_id, self.session_id)
        return "\n".join(
            part.data["content"] for message in messages for part in message.parts if message.role == "tool"
        )


@pytest.fixture
def waiting(server: Server, client: Client) -> Waiting:
    return Waiting(server, client)


async def test_pending_approvals_are_listed_and_allowed_by_prefix(server: Server, waiting: Waiting) -> None:
    assert kedge(server, "approvals").out == "no pending approvals\n"
    ask_id = await waiting.begin(write())
    listed = kedge(server, "approvals", "list").out
    assert listed.startswith(f"{ask_id}  requested ")
    assert "  write needs your approval: Create a.txt (+2 -0)\n" in listed
    assert "    +one\n" in listed
    assert [asked["id"] for asked in approvals(server)["approvals"]] == [ask_id]
    allowed = kedge(server, "approvals", "allow", ask_id[:-1], "--session")
    assert (allowed.code, allowed.out) == (0, f"{ask_id}: allowed for this session: Create a.txt (+2 -0)\n")
    assert (await waiting.end()).outcome == "completed"
    assert (server.home.workspace / "a.txt").exists()
    again = kedge(server, "approvals", "allow", ask_id)
    assert (again.code, "List them with: kedge approvals" in again.err) == (1, True)
    (grant,) = approvals(server)["grants"]
    assert f"{grant['id']}  allowed in session {waiting.session_id}: edit(**)\n" in kedge(server, "approvals").out
    forgotten = kedge(server, "approvals", "revoke", grant["id"])
    assert forgotten.out == "revoked: edit(**)\n"
    assert approvals(server)["grants"] == []


async def test_edited_rules_are_stored_for_each_command(server: Server, waiting: Waiting) -> None:
    def script(line: str) -> str:
        return f"script: tool bash {json.dumps({'command': line})} | say last"

    ask_id = await waiting.begin(script("mkdir -p made && touch made/x 2>&1"))
    offered = kedge(server, "approvals").out
    assert "rule of --session and --always: bash(mkdir -p made), bash(touch made/x)\n" in offered
    assert "or, wider: --rule 'bash(mkdir *)' --rule 'bash(touch *)'\n" in offered
    wrong = kedge(server, "approvals", "allow", ask_id, "--always", "--rule", "bash(touch *)")
    assert (wrong.code, wrong.err) == (1, "kedge: No rule covers 'mkdir -p made' of this call; add one.\n")
    rules = ("--rule", "bash(mkdir *)", "--rule", "bash(touch *)")
    assert kedge(server, "approvals", "allow", ask_id, "--always", *rules).code == 0
    assert (await waiting.end()).outcome == "completed"
    assert kedge(server, "run", script("ls made; touch other && mkdir third")).code == 0  # without a user to ask
    assert (server.home.workspace / "third").exists()
    listed = kedge(server, "approvals", "grants").out
    assert [line.partition(": ")[2] for line in listed.splitlines()] == ["bash(mkdir *)", "bash(touch *)"]


@pytest.mark.found(
    "attack 20",
    "`kedge approvals allow a` allowed any pending call, since all ids have the same prefix, and did not name it; an "
    "abbreviation now needs four distinctive characters, the answered call is printed, and its digest is sent",
)
async def test_ambiguous_abbreviation_allows_nothing(server: Server, waiting: Waiting) -> None:
    ask_id = await waiting.begin(write())
    for short in ("", "a", "ask", ask_id[:6]):
        refused = kedge(server, "approvals", "allow", short)
        assert (refused.code, "at least 4 characters" in refused.err) == (1, True)
    assert [asked["id"] for asked in approvals(server)["approvals"]] == [ask_id]
    assert kedge(server, "approvals", "deny", ask_id[:7]).out == f"{ask_id}: denied Create a.txt (+2 -0)\n"
    await waiting.end()
    assert not (server.home.workspace / "a.txt").exists()


async def test_answer_applies_only_to_the_displayed_call(waiting: Waiting) -> None:
    ask_id = await waiting.begin(write())
    client, where = waiting.client, waiting.workspace_id
    (asked,) = await client.permissions(where)
    with pytest.raises(Conflict, match="differs from what was shown"):
        await client.answer_permission(where, ask_id, "allow", "", "0" * 64)
    assert [one.id for one in await client.permissions(where)] == [ask_id], "it still waits"
    assert (await client.answer_permission(where, ask_id, "deny", "", asked.binding)).resolved
    await waiting.end()


async def test_denial_message_reaches_the_model(server: Server, waiting: Waiting) -> None:
    ask_id = await waiting.begin(write())
    denied = kedge(server, "approvals", "deny", ask_id, "-m", "not on Fridays", "--json")
    assert json.loads(denied.out) == {"resolved": True}
    assert (await waiting.end()).outcome == "completed"
    assert "Their reason: not on Fridays" in await waiting.told()
    assert not (server.home.workspace / "a.txt").exists()


async def test_questions_are_answered_from_the_command_line(server: Server, waiting: Waiting) -> None:
    questions = [{"question": "Which?", "options": [{"label": "red"}, {"label": "blue"}]}, {"question": "Why?"}]
    script = f"script: tool question {json.dumps({'questions': questions})} | say last"
    batch_id = await waiting.begin(script)
    assert "      1  red\n" in kedge(server, "approvals").out
    wrong = kedge(server, "approvals", "answer", batch_id, "1")
    assert (wrong.code, "2 questions" in wrong.err) == (2, True)
    assert kedge(server, "approvals", "answer", batch_id, "9", "x").code == 2
    assert kedge(server, "approvals", "answer", batch_id, "2", "because").out == f"{batch_id}: answered\n"
    assert (await waiting.end()).outcome == "completed"
    assert "Which?\nAnswer: blue" in await waiting.told()
    assert "Why?\nAnswer: because" in await waiting.told()
    one = f"script: tool question {json.dumps({'questions': [questions[1]]})} | say last"
    assert kedge(server, "approvals", "answer", await waiting.begin(one), "two", "words").code == 0
    await waiting.end()
    assert "Answer: two words" in await waiting.told()
    skipped = await waiting.begin(one)
    assert kedge(server, "approvals", "answer", skipped, "").code == 0
    await waiting.end()
    assert "declined to answer" in await waiting.told()


async def test_late_client_sees_the_pending_approval(server: Server, waiting: Waiting) -> None:
    """D6 for a followed session."""
    ask_id = await waiting.begin(write())
    attached = server.home.start_kedge("attach", "--host", server.host, waiting.session_id)
    shown = until(attached, f"? write: Create a.txt (+2 -0) (`kedge approvals allow {ask_id}`)\n")
    assert "first\n* write a.txt\n" in shown
    kedge(server, "approvals", "deny", ask_id)
    assert until(attached, "last") == "  -> denied\n  -> not run: denied\nlast", "the answer, and its effect"


# --- sessions -------------------------------------------------------------------------------------------------------


def session_of(server: Server) -> str:
    (session,) = json.loads(kedge(server, "sessions", "list", "--json").out)
    return str(session["id"])


def test_undo_restores_files_and_lists_them(server: Server) -> None:
    file: Path = server.home.workspace / "a.txt"
    server.home.kedge("run", "--yolo", "--host", server.host, write())
    assert file.exists()
    session_id = session_of(server)
    assert kedge(server, "sessions", "files", session_id[:8]).out == f"+ {file.resolve()}\n"
    assert json.loads(kedge(server, "sessions", "files", session_id, "--json").out)["count"] == 1
    undone = kedge(server, "sessions", "undo", session_id[:8])
    assert undone.code == 0
    assert undone.out.startswith("reverted the changes of run ")
    assert "a.txt\n" in undone.out
    assert not file.exists()
    assert kedge(server, "sessions", "files", session_id).out == ""
    assert "~ restored " in kedge(server, "sessions", "show", session_id).out
    redone = kedge(server, "sessions", "redo", session_id)
    assert (redone.code, redone.out.startswith("restored the changes of run "), file.exists()) == (0, True, True)
    assert kedge(server, "sessions", "undo", session_id).code == 0
    nothing = kedge(server, "sessions", "undo", session_id)
    assert (nothing.code, nothing.err.count("\n")) == (1, 1)
    server.home.kedge("run", "-C", "--yolo", "--host", server.host, write("b.txt"))
    (server.home.workspace / "b.txt").write_text("changed by hand")
    refused = kedge(server, "sessions", "undo", session_id)
    assert (refused.code, "Changed since that run" in refused.err) == (1, True)
    assert (server.home.workspace / "b.txt").read_text() == "changed by hand"


def test_rewind_restores_files_and_forks_the_conversation(server: Server) -> None:
    file: Path = server.home.workspace / "a.txt"
    server.home.kedge("run", "--host", server.host, "hello")
    session_id = session_of(server)
    server.home.kedge("run", "-C", "--yolo", "--host", server.host, write())
    before = json.loads(kedge(server, "sessions", "export", "--format", "json", session_id).out)["messages"]
    listed = kedge(server, "sessions", "rewind", session_id).out.splitlines()
    assert listed[0].split(maxsplit=1)[1] == "hello"
    message_id = listed[1].split()[0]
    unclear = kedge(server, "sessions", "rewind", session_id, message_id)
    assert (unclear.code, "--conversation, --files or --both" in unclear.err) == (2, True)
    rewound = kedge(server, "sessions", "rewind", session_id, message_id, "--both", "--json")
    reply = json.loads(rewound.out)
    assert (reply["prompt"], reply["restored"], file.exists()) == (write(), [str(file.resolve())], False)
    after = json.loads(kedge(server, "sessions", "export", "--format", "json", session_id).out)
    assert [one["id"] for one in after["messages"][:-1]] == [one["id"] for one in before[:2]]
    assert after["session"]["message_count"] == len(after["messages"]) == 3
    assert after["messages"][-1]["parts"][0]["data"]["fork_session_id"] == reply["fork_session_id"]
    fork = json.loads(kedge(server, "sessions", "export", "--format", "json", reply["fork_session_id"]).out)
    assert [one["parts"] for one in fork["messages"]] == [one["parts"] for one in before]


def test_session_model_is_changed_and_reset(server: Server) -> None:
    server.home.kedge("run", "--host", server.host, "hello")
    session_id = session_of(server)
    assert kedge(server, "sessions", "model", session_id).out == "local/fake-large (configured)\n"
    assert kedge(server, "sessions", "model", session_id, "kedge/offline").out == "kedge/offline\n"
    answered = server.home.kedge("run", "-C", "--host", server.host, "hello")
    assert "offline" in answered.out
    assert json.loads(kedge(server, "sessions", "model", session_id, "", "--json").out)["model"] == ""
    shown = kedge(server, "sessions", "model", session_id, "--effort", "high").out
    assert shown == "local/fake-large (configured), effort high\n"
    listed = json.loads(kedge(server, "sessions", "list", "--json").out)
    assert {one["effort"] for one in listed if one["id"] == session_id} == {"high"}
    assert "effort" not in kedge(server, "sessions", "model", session_id, "--effort", "default").out


def test_session_mode_is_switched_and_listed(server: Server) -> None:
    server.home.kedge("run", "--host", server.host, "--mode", "edits", "hello")
    session_id = session_of(server)
    assert kedge(server, "sessions", "mode", session_id).out == "ask\n", "the mode of a Run ends with it"
    assert kedge(server, "sessions", "mode", session_id, "edits").out == "edits\n"
    refused = kedge(server, "sessions", "mode", session_id, "yolo")
    assert (refused.code, "Use --yes" in refused.err) == (2, True)
    assert kedge(server, "sessions", "mode", session_id, "yolo", "--yes").out == "yolo\n"
    assert "  yolo  " in kedge(server, "sessions", "list").out


def test_summarize_follows_its_run(server: Server, endpoint: HostedEndpoint) -> None:
    server.home.kedge("run", "--host", server.host, "hello")
    done = kedge(server, "sessions", "summarize", session_of(server))
    assert (done.code, done.out, done.err) == (0, "A scripted summary.\n", "")


def test_transcript_has_one_line_per_call_reasoning_and_result(server: Server) -> None:
    script = 'script: think deep thoughts | say on | tool write {"path": "a.txt", "content": "x"} | say last'
    server.home.kedge("run", "--yolo", "--host", server.host, script)
    shown = kedge(server, "sessions", "show", session_of(server)).out
    assert "(thinking: deep thoughts)\non\n* write a.txt\n  -> +1 -0\n" in shown
    exported = kedge(server, "sessions", "export", session_of(server)).out
    assert "* write a.txt\n" in exported
    assert "-> +1 -0\n" in exported
    assert "+x\n" in exported
    attached = server.home.start_kedge("attach", "--host", server.host, session_of(server))
    assert until(attached, "+1 -0\n").endswith("(thinking: deep thoughts)\non\n* write a.txt\n  -> +1 -0\n")


def test_queued_run_asks_for_its_approval_once_active(server: Server, endpoint: HostedEndpoint) -> None:
    first = server.home.start_kedge("run", "--host", server.host, "script: say one | hold queue-ask | say two")
    until(first, "one")
    terminal = Terminal(server.home, "run", "-C", "--host", server.host, write())
    terminal.until("queued")
    endpoint.release("queue-ask")
    terminal.until("answer> ")
    terminal.type("y\n")
    assert terminal.end()[0] == 0
    assert (server.home.workspace / "a.txt").exists()
