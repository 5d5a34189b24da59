"""One run of a hook: a shell command that reads the event, bounded in time and output."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from kedge.core.hooks import HookAnswer, HookEvent, parse_answer
from kedge.core.untrusted_text import one_line
from kedge.tools.process_port import PipedProcess, Processes
from kedge.tools.tool_failed import ToolFailed
from kedge.waiting import wait_uncancelled

#: Output that is kept of each stream; an answer is much shorter. The rest is read and dropped. Bytes.
HOOK_OUTPUT_BYTES_MAX = 256 * 1024
#: Between TERM and KILL. Seconds.
GRACE_S = 1.0
#: For output that is still in the pipes when the hook has exited. Its children may hold them open. Seconds.
DRAIN_S = 0.2
#: An error in a message. Characters.
ERROR_CHARS_MAX = 300


class _Kept:
    """The first bytes of a stream."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_cut = False

    async def read(self, more: Callable[[], Awaitable[bytes]]) -> None:
        while piece := await more():
            room = HOOK_OUTPUT_BYTES_MAX - len(self.data)
            self.data += piece[:room]
            self.is_cut |= len(piece) > room
            await asyncio.sleep(0)  # a hook that prints without end must not starve other tasks


async def run_hook(
    processes: Processes,
    root: Path,
    event: HookEvent,
    command: str,
    variables: Mapping[str, str],
    payload: bytes,
    timeout_s: float,
    on_left: Callable[[tuple[int, ...]], None],
) -> HookAnswer:
    """Run a hook and return its answer. Its whole process tree has ended on return, also if the caller is cancelled.

    `on_left`: receives the pids of processes that could not be ended."""
    try:
        process = await processes.start_piped(
            ("/bin/sh", "-c", command), root, environment=variables, separate_stderr=True
        )
    except ToolFailed as error:
        return HookAnswer(errors=(one_line(f"cannot be started: {error}", ERROR_CHARS_MAX),))
    stdout, stderr = _Kept(), _Kept()
    streams = [
        asyncio.create_task(work)
        for work in (stdout.read(process.read), stderr.read(process.read_stderr), _write(process, payload))
    ]
    try:
        async with asyncio.timeout(timeout_s):
            exit_code = await process.wait()
        await asyncio.wait(streams[:2], timeout=DRAIN_S)
    except TimeoutError:
        return HookAnswer(errors=(f"was ended: it ran for more than {timeout_s:g} s",))
    except ToolFailed as error:
        return HookAnswer(errors=(one_line(f"was lost: {error}", ERROR_CHARS_MAX),))
    finally:
        await _end(process, streams, on_left)
    return parse_answer(event, exit_code, bytes(stdout.data), bytes(stderr.data), is_cut=stdout.is_cut)


async def _write(process: PipedProcess, payload: bytes) -> None:
    try:
        await process.write(payload)
    except ToolFailed:
        pass  # it answers without reading the event
    finally:
        process.close_input()


async def _end(
    process: PipedProcess, streams: list[asyncio.Task[None]], on_left: Callable[[tuple[int, ...]], None]
) -> None:
    ending = asyncio.ensure_future(process.end(GRACE_S))
    await wait_uncancelled([ending])
    for stream in streams:
        stream.cancel()
    await wait_uncancelled(streams)
    if not ending.cancelled() and ending.exception() is None and (left := ending.result()):
        on_left(left)
