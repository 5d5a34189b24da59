"""`kedge attach`: follow a session, read-only."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import click
import msgspec

from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.cli.transcript_lines import TOOL_CHARS_MAX, event_line, message_lines, thought_line
from kedge.cli.workspace_lookup import session_by_prefix
from kedge.client.assistant_text import AssistantText
from kedge.client.client import Client
from kedge.client.event_stream import StreamEvent
from kedge.client.http_transport import NotConnected
from kedge.errors import NotFound, WorkspaceNotFound

#: Parts of messages and events that were printed, remembered so that none is printed twice. Items.
PRINTED_MAX = 10_000


@click.command(epilog=examples("kedge attach 3f2a", "kedge attach 3f2a --json   # the wire's envelopes, one a line"))
@click.argument("session")
@json_option
@cwd_option
@host_option
def attach(session: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Follow a session: its transcript so far, then what happens. Ctrl-C leaves; nothing is cancelled."""
    follower = _Follower(StdoutWriter(), as_json=as_json)

    async def work() -> None:
        leaving = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, leaving.set)
        following = loop.create_task(_follow(session, host, cwd, follower))
        left = loop.create_task(leaving.wait())
        try:
            await asyncio.wait({following, left}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            for begun in (following, left):
                begun.cancel()
            await asyncio.gather(following, left, return_exceptions=True)
            await follower.leave()

    asyncio.run(work())
    return 0


async def _follow(session: str, host: str | None, cwd: str, follower: _Follower) -> None:
    async with Client(host) as client:
        try:
            workspace_id, session_id = await _find(client, session, cwd)
        except NotConnected as error:
            raise NotConnected(
                f"{error.message} (there is nothing to follow; `kedge sessions show` prints it)"
            ) from None
        # Subscribed before the transcript is read: what happens in between is seen twice, and printed once.
        async with client.events(workspace_id, session_id=session_id, deltas=True) as stream:
            await follower.catch_up(client, stream.workspace_id, session_id)
            async for event in stream:
                if event.type == "gap":
                    await follower.catch_up(client, stream.workspace_id, session_id)
                if event.type == "session" and event.change == "deleted":
                    follower.status.note("the session was deleted", always=True)
                    return
                await follower.see(event)


async def _find(client: Client, given: str, cwd: str) -> tuple[str, str]:
    """(workspace, session): in this directory's workspace, or else in any that is open on the server."""
    own = await client.create_workspace(cwd)
    try:
        return own.id, session_by_prefix(given, await client.sessions(own.id), own.path).id
    except NotFound as error:
        for other in await client.workspaces():
            if other.id == own.id:
                continue
            try:
                session_id = session_by_prefix(given, await client.sessions(other.id), other.path).id
            except (NotFound, WorkspaceNotFound):
                continue
            await client.create_workspace(other.path)  # a claim of our own
            return other.id, session_id
        raise error from None


class _Follower:
    def __init__(self, output: StdoutWriter, *, as_json: bool) -> None:
        self.status = StatusLine(output)
        self._output = output
        self._as_json = as_json
        self._answer = AssistantText()
        self._printed: dict[str, None] = {}
        #: The beginning of what a model thinks, until it says something: message -> text.
        self._thoughts: dict[str, str] = {}

    async def catch_up(self, client: Client, workspace_id: str, session_id: str) -> None:
        async for message in client.all_messages(workspace_id, session_id):
            await self.see(StreamEvent("message", "created", msgspec.to_builtins(message)))
        for asked in await client.permissions(workspace_id):
            if asked.session_id == session_id:
                await self.see(StreamEvent("permission_request", "created", msgspec.to_builtins(asked)))
        for batch in await client.questions(workspace_id):
            if batch.session_id == session_id:
                await self.see(StreamEvent("question_batch_request", "created", msgspec.to_builtins(batch)))

    async def see(self, event: StreamEvent) -> None:
        if self._as_json:
            await self._output.write(event.envelope().decode() + "\n")
            return
        await self._think(event)
        await self._write(self._answer.feed(event))
        if event.type == "message" and event.change != "deleted":
            await self._message(event.payload)
        elif (line := event_line(event)) and self._is_new(f"{event.type}:{event.payload.get('id') or event.position}"):
            await self._line(line)

    async def leave(self) -> None:
        if not self._as_json:
            await self._line("")

    async def _think(self, event: StreamEvent) -> None:
        """A thought takes one line, before what is said or done because of it."""
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
                self._thoughts.pop(message_id, None)  # this is all of it
            case _:
                return
        thought = (self._thoughts.pop(message_id, "") + thought)[: 4 * TOOL_CHARS_MAX]
        if not ended:
            self._thoughts[message_id] = thought
        elif thought.strip() and self._is_new(f"thought:{message_id}"):
            await self._line(thought_line(thought))

    async def _message(self, message: dict[str, Any]) -> None:
        """What is not printed elsewhere: prompts, tools."""
        for index, part in enumerate(message.get("parts") or []):
            kind, data = part["type"], part["data"]
            if message["role"] == "assistant" and not (kind == "tool_call" and data.get("finished")):
                continue
            if kind != "finish" and self._is_new(f"{message['id']}:{index}"):
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
        """On a line of its own."""
        if self._answer.last != "\n":
            await self._write("\n")
        if line:
            await self._write(line + "\n")

    async def _write(self, text: str) -> None:
        if text:
            self._answer.last = text[-1]
            await self._output.write(text)
