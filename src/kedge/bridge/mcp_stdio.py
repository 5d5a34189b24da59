"""The transport to a local MCP server: a child process, with bounds for what it writes.

The transport of the SDK reads a line of any length, which takes time with the square of its length, and passes standard
error on. This one refuses long lines, slows down floods, and keeps the last lines of standard error for messages.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from kedge.bridge.mcp_messages import McpServerSpec

#: One message of a server. Pictures are the largest. Bytes.
LINE_BYTES_MAX = 32 * 1024 * 1024
#: Messages of a server in one second; then it has to wait. Honest servers report progress a few times. Items.
MESSAGES_PER_S_MAX = 500
READ_BYTES = 256 * 1024
#: The end of standard error that is kept. Bytes.
ERRORS_BYTES_MAX = 4096
#: Time to exit after the input was closed, and after TERM. Seconds.
GRACE_S = 1.0
#: Variables of the language, beside those that the SDK passes on (PATH, HOME and the like).
LANGUAGE = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
#: The id in a response, near its start or its end.
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')

Received = SessionMessage | Exception


class StdioServer:
    """A server process. `errors` has the last lines that it wrote to standard error."""

    def __init__(self, spec: McpServerSpec) -> None:
        self._spec = spec
        self._errors = bytearray()
        self._process: asyncio.subprocess.Process | None = None
        #: Set when it has closed its output.
        self.ended = asyncio.Event()

    @property
    def errors(self) -> str:
        return self._errors.decode("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    @asynccontextmanager
    async def connect(
        self,
    ) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Received], MemoryObjectSendStream[SessionMessage]]]:
        """Start the process and yield its streams of messages. At the end the process and its group are ended."""
        spec = self._spec
        language = {name: os.environ[name] for name in LANGUAGE if name in os.environ}
        pipe = asyncio.subprocess.PIPE
        process = self._process = await asyncio.create_subprocess_exec(
            spec.command,
            *spec.args,
            cwd=spec.cwd or spec.root,
            env={**language, **get_default_environment(), **spec.env},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            limit=READ_BYTES,
        )
        received_in, received = anyio.create_memory_object_stream[Received](0)
        sent, sent_out = anyio.create_memory_object_stream[SessionMessage](0)
        reading = asyncio.create_task(self._read(process, received_in))
        reading.add_done_callback(lambda _: self.ended.set())
        tasks = [
            reading,
            asyncio.create_task(self._write(process, sent_out, received_in)),
            asyncio.create_task(self._keep_errors(process)),
        ]
        try:
            yield received, sent
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(process)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (received_in, received, sent, sent_out):
                    await stream.aclose()

    async def _read(self, process: asyncio.subprocess.Process, messages: MemoryObjectSendStream[Received]) -> None:
        assert process.stdout is not None
        line, is_skipping = bytearray(), False
        loop, count, second = asyncio.get_running_loop(), 0, 0.0
        async with messages:
            while data := await process.stdout.read(READ_BYTES):
                *ends, rest = data.split(b"\n")
                for end in ends:
                    line += end
                    if is_skipping:
                        message: Received | None = _too_long(line)
                    else:
                        message = _parsed(bytes(line)) if line.strip() else None
                    line, is_skipping = bytearray(), False
                    if message is None:
                        continue
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await messages.send(message)
                    if (now := loop.time()) - second > 1:
                        count, second = 0, now
                    count += 1
                    if count > MESSAGES_PER_S_MAX:
                        await asyncio.sleep(second + 1 - now)
                line += rest
                if len(line) > LINE_BYTES_MAX or is_skipping:
                    # Only its start and its end are kept, to find the id of the request that it answers.
                    is_skipping = True
                    del line[ERRORS_BYTES_MAX:-ERRORS_BYTES_MAX]

    async def _write(
        self,
        process: asyncio.subprocess.Process,
        messages: MemoryObjectReceiveStream[SessionMessage],
        received: MemoryObjectSendStream[Received],
    ) -> None:
        assert process.stdin is not None
        try:
            async with messages:
                async for message in messages:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()
        except (OSError, anyio.ClosedResourceError):
            await received.aclose()  # the session sees the end of the connection

    async def _keep_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(READ_BYTES):
            self._errors += data[-ERRORS_BYTES_MAX:]
            del self._errors[:-ERRORS_BYTES_MAX]

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Close its input; then TERM, then KILL. Descendants in other sessions end with the bridge."""
        assert process.stdin is not None
        process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await process.wait()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await process.wait()


def _parsed(line: bytes) -> Received:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError) as error:
        return error if isinstance(error, ValueError) else ValueError("nested too deeply")


def _too_long(line: bytearray) -> Received | None:
    """Return the failure of the request that a long line answers. Its start and its end are left."""
    if (match := _ID.search(line)) is None:
        return None
    mega = LINE_BYTES_MAX // 1024 // 1024
    error = ErrorData(code=INTERNAL_ERROR, message=f"the answer is larger than {mega} MB and was dropped")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(match[1]), error=error))
