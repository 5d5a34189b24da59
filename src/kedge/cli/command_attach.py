"""`kedge attach`: show a session live, read-only."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import Any

import click
import msgspec

from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.run_output import TOOL_LINE_CHARS_MAX
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.cli.transcript_lines import event_line, message_lines, thought_line
from kedge.cli.workspace_lookup import connected, session_by_prefix
from kedge.client.assistant_text import AssistantText
from kedge.client.client import Client
from kedge.client.event_stream import StreamEvent
from kedge.client.http_transport import NotConnected
from kedge.errors import NotFound, WorkspaceNotFound

#: Printed parts and events that are remembered, so that none is printed twice. Items.
PRINTED_MAX = 10_000


@click.command(epilog=examples("kedge attach 3f2a", "kedge attach 3f2a --json   # one wire envelope per line"))
@click.argument("session")
@json_option
@cwd_option
@host_option
def attach(session: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Show a session live, read-only.

    Prints the transcript so far, then each new event. Ctrl-C exits without cancelling anything."""
    follower = _Follower(StdoutWriter(), as_json=as_json)

    async def work() -> None:
        interrupted = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupted.set)
        following = loop.create_task(_follow(session, host, cwd, follower))
        stopped = loop.create_task(interrupted.wait())
        try:
            await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            for task in (following, stopped):
                task.cancel()
            await asyncio.gather(following, stopped, return_exceptions=True)
            await follower.end()

    asyncio.run(work())
    return 0


async def _follow(session: str, host: str | None, cwd: str, follower: _Follower) -> None:
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(connected(host))
            workspace_id, session_id = await _find(client, session, cwd)
        except NotConnected as error:
            raise NotConnected(f"{error.message} Print a stored session with: kedge sessions show {session}") from None
        # Subscribe before reading the transcript. Events in between arrive twice, and are printed once.
        async with client.events(workspace_id, session_id=session_id, deltas=True) as stream:
            await follower.catch_up(client, stream.workspace_id, session_id)
            async for event in stream:
                if event.type == "gap":
                    await follower.catch_up(client, stream.workspace_id, session_id)
                if event.type == "session" and event.change == "deleted":
                    follower.status.note("the session was deleted", always=True)
                    return
                await follower.on_event(event)


async def _find(client: Client, prefix: str, cwd: str) -> tuple[str, str]:
    """Return the ids of workspace and session. This directory comes first, then the other open workspaces."""
    own = await client.create_workspace(cwd)
    try:
        return own.id, session_by_prefix(prefix, await client.sessions(own.id), own.path).id
    except NotFound as error:
        for other in await client.workspaces():
            if other.id == own.id:
                continue
            try:
                session_id = session_by_prefix(prefix, await client.sessions(other.id), other.path).id
            except (NotFound, WorkspaceNotFound):
                continue
            await client.create_workspace(other.path)  # this client's own claim
            return other.id, session_id
        raise error from None


class _Follower:
    def __init__(self, output: StdoutWriter, *, as_json: bool) -> None:
        self.status = StatusLine(output)
        self._output = output
        self._as_json = as_json
        self._answer = AssistantText()
        self._printed: dict[str, None] = {}
        #: The start of unprinted reasoning: message id -> text.
        self._thoughts: dict[str, str] = {}

    async def catch_up(self, client: Client, workspace_id: str, session_id: str) -> None:
        streaming: str | None = None  # the Run of an unfinished message
        async for message in client.all_messages(workspace_id, session_id):
            # Further messages of that Run on a later page were created after it was finished: the stream has them, in
            # order, and the rest of its text before them.
            if message.run_id != streaming or message.role == "user":
                await self.on_event(StreamEvent("message", "created", msgspec.to_builtins(message)))
            if message.role == "assistant" and not any(part.type == "finish" for part in message.parts):
                streaming = message.run_id
        for request in await client.permissions(workspace_id):
            if request.session_id == session_id:
                await self.on_event(StreamEvent("permission_request", "created", msgspec.to_builtins(request)))
        for batch in await client.questions(workspace_id):
            if batch.session_id == session_id:
                await self.on_event(StreamEvent("question_batch_request", "created", msgspec.to_builtins(batch)))

    async def on_event(self, event: StreamEvent) -> None:
        if self._as_json:
            await self._output.write(event.envelope().decode() + "\n")
            return
        await self._reasoning(event)
        await self._write(self._answer.feed(event))
        if event.type == "message" and event.change != "deleted":
            await self._message(event.payload)
        elif (line := event_line(event)) and self._is_new(f"{event.type}:{event.payload.get('id') or event.position}"):
            await self._line(line)

    async def end(self) -> None:
        if not self._as_json:
            await self._line("")

    async def _reasoning(self, event: StreamEvent) -> None:
        """Print reasoning as one line, before the text or tool call that follows it."""
        payload, ended = event.payload, True
        match event.type:
            case "delta":
                message_id, thought = payload["message_id"], ""
                if payload.get("kind") == "reasoning":
                    thought, ended = payload["text"], False
            case "message" if event.change != "deleted" and payload["role"] == "assistant":
                message_id, parts = payload["id"], payload.get("parts") or []
                thought = " ".join(part["data"]["thinking"] for part in parts if part["type"] == "reasoning")
                ended = any(part["type"] != "reasoning" for part in parts)
                self._thoughts.pop(message_id, None)  # replaced by the full text
            case _:
                return
        thought = (self._thoughts.pop(message_id, "") + thought)[: 4 * TOOL_LINE_CHARS_MAX]
        if not ended:
            self._thoughts[message_id] = thought
        elif thought.strip() and self._is_new(f"thought:{message_id}"):
            await self._line(thought_line(thought))

    async def _message(self, message: dict[str, Any]) -> None:
        """Print the parts that AssistantText does not: prompts and tool calls."""
        for index, part in enumerate(message.get("parts") or []):
            kind, data = part["type"], part["data"]
            if message["role"] == "assistant" and not (kind == "tool_call" and data.get("finished")):
                continue
            if kind != "finish" and self._is_new(f"{message['id']}:{index}:{data.get('state', '')}"):
                for line in message_lines(message["role"], [(kind, data)]):
                    await self._line(line)

    def _is_new(self, key: str) -> bool:
        if key in self._printed:
            return False
        self._printed[key] = None
        if len(self._printed) > PRINTED_MAX:
            del self._printed[next(iter(self._printed))]
        return True

    async def _line(self, line: str) -> None:
        """Print a line, after ending an unfinished one."""
        if self._answer.last != "\n":
            await self._write("\n")
        if line:
            await self._write(line + "\n")

    async def _write(self, text: str) -> None:
        if text:
            self._answer.last = text[-1]
            await self._output.write(text)
