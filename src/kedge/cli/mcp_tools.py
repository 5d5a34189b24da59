"""The tools of kedge as an MCP server: each is one or a few requests of the Python client.

What a client of it cannot do, whatever its model tries: work outside of the directory, choose a mode that asks less
than `ask`, store a rule, or, without `--approve`, answer an approval.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import anyio
from mcp.server.mcpserver import Context
from msgspec import UNSET
from pydantic import Field

from kedge.cli.mcp_reports import (
    AnswerReport,
    CancelReport,
    PendingReport,
    RunReport,
    SessionsReport,
    SubmitReport,
    TranscriptReport,
    cancel_report,
    pending_report,
    run_report,
    sessions_report,
    transcript_report,
)
from kedge.cli.run_output import TOOL_LINE_CHARS_MAX
from kedge.cli.workspace_lookup import print_progress
from kedge.client.client import Client, new_run_id
from kedge.client.event_stream import EventStream, StreamEvent
from kedge.client.local_server import find_or_start, open_workspace
from kedge.client.safe_text import visible_line
from kedge.client.view.ask_text import answer_label, response_to
from kedge.core.modes import narrower
from kedge.errors import Conflict, Invalid, KedgeError, NotFound
from kedge.wire.models import PermissionRequest, QuestionBatch, Resolved, SubmitPrompt

#: Shorter than the time after which most MCP clients give up on a call and cancel it: 60 s. Seconds.
WAIT_S_DEFAULT = 50.0
#: Longest wait in one call. The caller can repeat it. Seconds.
WAIT_S_MAX = 600.0
#: A server that restarts is back within a second. The caller can repeat the call. Seconds.
RECONNECT_S = 3.0
#: A cancelled call waits this long for the receipt of its Run and for the cancel. Seconds.
CANCEL_S_MAX = 30.0
#: Messages of one page of the transcript. Items.
PAGE_MESSAGES = 100

#: Events after which a Run may have ended or wait for an answer.
_WAKES = ("run_complete", "permission_request", "question_batch_request", "gap")

Directory = Annotated[
    str,
    Field(description="Directory of the run or session. Default: that of this server, which others are relative to."),
]
Wait = Annotated[
    float, Field(gt=0, le=WAIT_S_MAX, description="Return after this many seconds, even if the run has not ended.")
]
#: The modes in which the user answers for every change. The others are never a client's choice, whatever mode the
#: session is in: that may be the mode of a Run of the user, which ends before this one starts.
SafeMode = Literal["plan", "ask"]
Report = Callable[[str], Awaitable[None]]


async def _no_report(line: str) -> None:
    pass


class KedgeTools:
    """The tools. Their public methods are registered under their names; the docstrings are the descriptions."""

    def __init__(self, client: Client, root: str, *, may_start: bool) -> None:
        self._client = client
        self._root = os.path.realpath(root)
        self._may_start = may_start
        client.restart = partial(find_or_start, print_progress) if may_start else None
        #: Returns whether the connection of a call is closing: that is not a cancel of its Run.
        self.is_closing: Callable[[Context[Any, Any]], bool] = lambda context: False

    # --- tools --------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        prompt: Annotated[str, Field(description="What the agent should do.")],
        session_id: Annotated[str, Field(description="Continue this session. Default: a new one.")] = "",
        directory: Directory = "",
        mode: Annotated[
            SafeMode | None, Field(description="plan: read only, and return a plan. ask: changes ask the user.")
        ] = None,
        model: Annotated[str, Field(description="PROVIDER/MODEL. Default: the configured one.")] = "",
    ) -> SubmitReport:
        """Send a prompt to a kedge agent and return at once. The run is durable: it continues without this client.

        Wait for it with `wait`. A prompt to a busy session is queued."""
        path, workspace_id = await self._open(directory)
        new = await self._new_prompt(workspace_id, prompt, session_id, mode, model)
        receipt = await self._client.submit(workspace_id, new)
        return SubmitReport(run_id=receipt.run_id, session_id=receipt.session_id, directory=path, state=receipt.state)

    async def wait(
        self,
        run_id: str,
        directory: Directory = "",
        timeout_s: Wait = WAIT_S_DEFAULT,
    ) -> RunReport:
        """Wait until a run ends or needs an answer, for a limited time. Return its outcome and text, or its state."""
        path, workspace_id = await self._open(directory)
        run = await self._client.run(workspace_id, run_id)
        async with self._events(workspace_id, run.session_id) as events:
            return await self._watch(events, path, run_id, timeout_s)

    async def run(
        self,
        context: Context[Any, Any],
        prompt: Annotated[str, Field(description="What the agent should do.")],
        session_id: Annotated[str, Field(description="Continue this session. Default: a new one.")] = "",
        directory: Directory = "",
        mode: Annotated[
            SafeMode | None, Field(description="plan: read only, and return a plan. ask: changes ask the user.")
        ] = None,
        model: Annotated[str, Field(description="PROVIDER/MODEL. Default: the configured one.")] = "",
        timeout_s: Wait = WAIT_S_DEFAULT,
    ) -> RunReport:
        """Send a prompt to a kedge agent and wait for its end: `submit` and `wait` in one call, with progress.

        Cancelling this call cancels exactly this run. After `timeout_s` the run continues; wait for it again."""
        path, workspace_id = await self._open(directory)
        new = await self._new_prompt(workspace_id, prompt, session_id, mode, model)
        async with self._events(workspace_id, new.session_id) as events:
            submit = asyncio.ensure_future(self._client.submit(workspace_id, new))
            try:
                await asyncio.shield(submit)
                return await self._watch(events, path, new.run_id, timeout_s, _progress(context))
            except asyncio.CancelledError:
                if not self.is_closing(context):
                    with anyio.move_on_after(CANCEL_S_MAX, shield=True), suppress(KedgeError):
                        await submit
                        await self._client.cancel_run(workspace_id, new.run_id)
                raise

    async def cancel(self, session_id: str = "", run_id: str = "", directory: Directory = "") -> CancelReport:
        """Cancel one run, or all runs of a session accepted so far. Prompts sent later are not affected."""
        if bool(session_id) == bool(run_id):
            raise Invalid("Pass either session_id or run_id.")
        _, workspace_id = await self._open(directory)
        if run_id:
            return cancel_report(await self._client.cancel_run(workspace_id, run_id))
        return cancel_report(await self._client.cancel_session(workspace_id, session_id))

    async def sessions(self, directory: Directory = "") -> SessionsReport:
        """List the sessions of a directory, last used first."""
        path, workspace_id = await self._open(directory)
        return sessions_report(await self._client.sessions(workspace_id), path)

    async def transcript(
        self,
        session_id: str,
        after: Annotated[str, Field(description="`next_after` of the previous page.")] = "",
        directory: Directory = "",
    ) -> TranscriptReport:
        """Read the transcript of a session, page by page from its beginning. Tool calls are shown as one line each."""
        _, workspace_id = await self._open(directory)
        read = partial(self._client.messages, workspace_id, session_id, limit=PAGE_MESSAGES)
        report = transcript_report(session_id, await read(after=after or None))
        if report["next_after"] and not await read(after=report["next_after"]):
            report["next_after"] = ""
        return report

    async def pending(self, directory: Directory = "") -> PendingReport:
        """List the approvals and questions that wait for an answer, with the full text that a user sees."""
        _, workspace_id = await self._open(directory)
        return await self._pending(workspace_id)

    async def answer_question(
        self,
        question_id: str,
        answers: Annotated[
            list[str], Field(max_length=20, description="For each question the number of an option, or any text.")
        ],
        directory: Directory = "",
    ) -> AnswerReport:
        """Answer a question of the agent. In plan mode options are for the user: there, answer with other text."""
        _, workspace_id = await self._open(directory)
        batch = _find(question_id, await self._client.questions(workspace_id), "question")
        if len(answers) != len(batch.questions):
            raise Invalid(f"{batch.id} has {len(batch.questions)} questions. Give one answer to each.")
        if (await self._client.session(workspace_id, batch.session_id)).mode == "plan":
            _check_is_free_text(batch, answers)
        try:
            responses = [response_to(*pair) for pair in zip(batch.questions, answers, strict=True)]
        except ValueError as error:
            raise Invalid(f"Invalid answer: {error}.") from None
        return _answered(batch.id, "answered", await self._client.answer_questions(workspace_id, batch.id, responses))

    async def answer_approval(
        self,
        approval_id: str,
        answer: Literal["allow", "deny"],
        binding: Annotated[str, Field(description="To allow: the binding of the approval, from `pending`.")] = "",
        message: Annotated[str, Field(description="To deny: the reason, for the agent.")] = "",
        directory: Directory = "",
    ) -> AnswerReport:
        """Allow exactly this tool call once, or deny it. The first answer of any client wins."""
        if answer == "allow" and not binding:
            raise Invalid("Pass the binding of the approval. If it has none, only the user can allow it.")
        _, workspace_id = await self._open(directory)
        request = _find(approval_id, await self._client.permissions(workspace_id), "approval")
        return _answered(
            request.id,
            answer,
            await self._client.answer_permission(workspace_id, request.id, answer, message, binding or request.binding),
        )

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _open(self, directory: str) -> tuple[str, str]:
        """Return the path and the id of the workspace. It is opened, and the server started, if necessary."""
        path = await asyncio.to_thread(_below, self._root, directory)  # a dead mount must not stop the other calls
        workspace = await open_workspace(self._client, path, may_start=self._may_start, notify=print_progress)
        return path, workspace.id

    async def _new_prompt(
        self, workspace_id: str, text: str, session_id: str, mode: SafeMode | None, model: str
    ) -> SubmitPrompt:
        if session_id:
            session = await self._client.session(workspace_id, session_id)
        else:
            session = await self._client.create_session(workspace_id)
        if mode is not None and narrower(mode, session.mode) != mode:
            raise Invalid(f"Session {session.id} is in mode {session.mode}. Only the user can widen it.")
        return SubmitPrompt(prompt=text, session_id=session.id, run_id=new_run_id(), mode=mode, model=model or None)

    def _events(self, workspace_id: str, session_id: str) -> EventStream:
        return self._client.events(workspace_id, session_id=session_id, give_up_s=RECONNECT_S)

    async def _pending(self, workspace_id: str, run_id: str = "") -> PendingReport:
        """Return the pending asks of the workspace, or those of one Run."""
        approvals, questions = await asyncio.gather(
            self._client.permissions(workspace_id), self._client.questions(workspace_id)
        )
        return pending_report(
            [ask for ask in approvals if run_id in ("", ask.run_id)],
            [ask for ask in questions if run_id in ("", ask.run_id)],
        )

    async def _watch(
        self, events: EventStream, path: str, run_id: str, timeout_s: float, report: Report = _no_report
    ) -> RunReport:
        """Return the state of the Run when it has ended or needs an answer, at the latest after `timeout_s`.

        The state is always read; events only say when. So no gap or reconnect of the stream can make it wrong."""
        seen: set[str] = set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                current = await self._state(events.workspace_id, run_id, path)
                while current["state"] not in ("ended", "waiting_for_answer"):
                    event = await anext(events)
                    for line in _progress_lines(event, run_id, seen):
                        await report(line)
                    if event.type in _WAKES:
                        current = await self._state(events.workspace_id, run_id, path)
                return current
        return await self._state(events.workspace_id, run_id, path)

    async def _state(self, workspace_id: str, run_id: str, path: str) -> RunReport:
        run = await self._client.run(workspace_id, run_id)
        if run.state == "ended":
            return run_report(run, [], path)
        asking = run_id if run.folded_into is UNSET else run.folded_into
        return run_report(run, (await self._pending(workspace_id, asking))["pending"], path)


T = TypeVar("T", PermissionRequest, QuestionBatch)


def _below(root: str, directory: str) -> str:
    """Return the real path of a directory. Invalid if it is not below the root."""
    try:
        path = os.path.realpath(os.path.join(root, directory))
    except ValueError as error:
        raise Invalid(f"Invalid directory: {error}.") from None
    if os.path.commonpath((root, path)) != root:
        raise Invalid(f"{path} is outside of {root}. Start another server there: kedge mcp serve --cwd DIR")
    return path


def _find(ask_id: str, asks: Sequence[T], kind: str) -> T:
    for ask in asks:
        if ask.id == ask_id:
            return ask
    raise NotFound(f"No {kind} {visible_line(ask_id, 80)!r} is pending in this directory.")


def _answered(ask_id: str, answer: str, resolved: Resolved) -> AnswerReport:
    if not resolved.resolved:
        raise Conflict(f"Another client answered {ask_id} first: {answer_label(resolved.answered)}.")
    return AnswerReport(id=ask_id, answer=answer_label(answer))


def _check_is_free_text(batch: QuestionBatch, answers: Sequence[str]) -> None:
    """Refuse the choice of an option: one of them may accept a plan, which widens the mode of the session."""
    for question, answer in zip(batch.questions, answers, strict=True):
        labels = {option.label.strip() for option in question.options}
        if response_to(question, answer).selected_ids or answer.strip() in labels:
            raise Invalid(
                "The session is in plan mode: only the user can choose an option there. Answer with other text."
            )


def _progress(context: Context[Any, Any]) -> Report:
    count = 0

    async def report(line: str) -> None:
        nonlocal count
        count += 1
        await context.report_progress(count, message=line)

    return report


def _progress_lines(event: StreamEvent, run_id: str, seen: set[str]) -> Iterator[str]:
    """Yield one line for each tool call of the Run that is not in `seen`."""
    if event.type != "message" or event.payload.get("run_id") != run_id:
        return
    for part in event.payload.get("parts", ()):
        if part["type"] == "tool_call" and part["data"]["id"] not in seen:
            seen.add(part["data"]["id"])
            yield visible_line(part["data"]["title"] or part["data"]["name"], TOOL_LINE_CHARS_MAX)
