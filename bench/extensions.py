"""Extensions: the cost of a call to an MCP server, of servers that are not used, and of a language server."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from mcp import StdioServerParameters
from mcp.client import Client as McpClient
from mcp.client.stdio import stdio_client

from bench.load import Client, Connection, Json, Stream
from bench.report import Line, median, p95
from bench.server import Server, home
from bench.setting import Setting
from bench.steps import make_file, view
from bench.trees import call_times_ms

#: Programs of the development environment.
TIME_SERVER = Path(sys.executable).with_name("mcp-server-time")
PYLSP = Path(sys.executable).with_name("pylsp")
#: Calls of each kind in one Run. Items.
CALLS = 8
#: Configured servers in `mcp_unused`. Items.
UNUSED = 10
#: Prompts for the time to the first delta. Items.
PROMPTS = 20
#: Pause of the model before each word. Milliseconds.
PAUSE_MS = 5


def _times(number: int) -> Json:
    """Return arguments that differ: a model that repeats a call is stopped."""
    return {
        "source_timezone": "UTC",
        "target_timezone": "Asia/Tokyo",
        "time": f"{number // 60 % 24:02}:{number % 60:02}",
    }


async def mcp_call(setting: Setting) -> list[Line]:
    """Call a tool of a running MCP server and view a file, in turn; then make the same calls with a bare client."""
    config = f'[mcp.time]\ncommand = "{TIME_SERVER}"\n[permissions]\nallow = ["mcp(time/*)"]\n'
    through_ms: list[float] = []
    view_ms: list[float] = []
    bare_ms: list[float] = []
    with home() as directory, Server(directory, setting.model, config).run() as running:
        make_file(running)
        bare = McpClient(stdio_client(StdioServerParameters(command=str(TIME_SERVER))))
        async with Client.open(running.address, running.server) as client, client.stream() as stream, bare:
            session = await client.session()
            await _complete(client, stream, session, 'tool mcp_tools {"server": "time"} | step | say loaded')
            first_ms = call_times_ms(stream)[0]
            for number in range(setting.count(6, 3) + 1):
                first = number * CALLS + 1
                inputs = [_times(index) for index in range(first, first + CALLS)]
                steps = [
                    f"tool mcp__time__convert_time {json.dumps(arguments)} | step | {view(index)} | step"
                    for index, arguments in enumerate(inputs, first)
                ]
                start = len(stream.frames)
                await _complete(client, stream, session, " | ".join([*steps, "say done"]))
                took_ms = call_times_ms(stream, start)
                own_ms = []
                for arguments in inputs:
                    began = time.perf_counter()
                    result = await bare.call_tool("convert_time", arguments)
                    own_ms.append((time.perf_counter() - began) * 1000)
                    if result.is_error:
                        raise RuntimeError(f"a call failed: {result}")
                if number:  # the first round warms both sides
                    through_ms += took_ms[::2]
                    view_ms += took_ms[1::2]
                    bare_ms += own_ms
    through, own = median(through_ms), median(bare_ms)
    note = (
        f"{through:.1f} ms from call to result, p95 {p95(through_ms):.1f} ms; bare client: {own:.1f} ms "
        f"(x{through / own:.1f}); a view: {median(view_ms):.1f} ms; first use, with its start: {first_ms:.0f} ms"
    )
    return [Line("MCP call, excluding that of a bare client", through - own, "ms", note)]


@dataclass
class Started:
    """The times and the memory of new servers with the same configuration."""

    config: str
    start_s: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def run(self, setting: Setting) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Start a server; yields a function that sends a prompt."""
        with home() as directory, Server(directory, setting.model, self.config).run() as running:
            async with Connection.open(running.address) as connection:
                await connection.call("GET", "/v1/health")
                self.start_s.append(time.perf_counter() - running.started)
            async with Client.open(running.address, running.server) as client, client.stream() as stream:

                async def prompt() -> None:
                    session, start, sent = await client.session(), len(stream.frames), time.perf_counter()
                    run_id = await client.submit(session, f"script: pause {PAUSE_MS} | words 5")
                    self.first_ms.append(((await stream.until_delta(start)).at - sent) * 1000 - PAUSE_MS)
                    await stream.until_complete(run_id, start)

                yield prompt
            self.mib.append(running.rss_mib)


async def mcp_unused(setting: Setting) -> list[Line]:
    """Start a server with ten configured MCP servers that nothing uses, and one with none; send prompts in turn."""
    config = "".join(f'[mcp.unused{number}]\ncommand = "{TIME_SERVER}"\n' for number in range(UNUSED))
    some, none = Started(config), Started("")
    for number in range(setting.count(6, 2)):
        pair = (some, none) if number % 2 else (none, some)
        async with pair[0].run(setting) as one, pair[1].run(setting) as other:
            for _ in range(PROMPTS):
                await one()
                await other()
    rows = (
        ("start to first healthy reply", some.start_s, none.start_s, "s", 3),
        (f"memory after {PROMPTS} prompts", some.mib, none.mib, "MiB", 1),
        ("POST to first delta", some.first_ms, none.first_ms, "ms", 1),
    )
    return [
        Line(
            f"{UNUSED} unused MCP servers, {name}",
            median(used) / median(plain),
            "x",
            f"{median(used):.{digits}f} {unit} with them, {median(plain):.{digits}f} {unit} without",
        )
        for name, used, plain, unit, digits in rows
    ]


async def lsp_edit(setting: Setting) -> list[Line]:
    """Edit a Python file with a running language server, and the same text without one, in turn."""
    config = f'[lsp]\nenabled = true\n[lsp.servers.pylsp]\ncommand = "{PYLSP}"\n'
    count = setting.count(20, 8)
    with home() as directory, Server(directory, setting.model, config).run() as running:
        names = ("edited.py", "edited.txt")
        for name in names:
            (running.server.workspace / name).write_text("VALUE = 0\n")
        async with Client.open(running.address, running.server) as client, client.stream() as stream:
            session = await client.session()
            views = " | ".join(f"tool view {json.dumps({'path': name})}" for name in names)
            await _complete(client, stream, session, f"{views} | step | {_edits(names, 0, 2)} | step | say warm")
            start = len(stream.frames)
            await _complete(client, stream, session, f"{_edits(names, 2, count + 2)} | step | say done")
            took_ms = call_times_ms(stream, start)
    served_ms, plain_ms = took_ms[::2], took_ms[1::2]
    served, plain = median(served_ms), median(plain_ms)
    note = (
        f"{served:.0f} ms from call to result with pylsp, p95 {p95(served_ms):.0f} ms; "
        f"{plain:.1f} ms without (x{served / plain:.0f})"
    )
    return [Line("edit with a language server, excluding the edit", served - plain, "ms", note)]


def _edits(names: tuple[str, ...], first: int, end: int) -> str:
    """Return the directives that edit each file in turn."""
    return " | step | ".join(
        f"tool edit {json.dumps({'path': name, 'old_string': f'= {number}', 'new_string': f'= {number + 1}'})}"
        for number in range(first, end)
        for name in names
    )


async def _complete(client: Client, stream: Stream, session: str, script: str) -> None:
    start = len(stream.frames)
    end = await stream.until_complete(await client.submit(session, f"script: {script}", mode="edits"), start)
    failed = [
        part["data"]["content"]
        for frame in stream.find("message", start)
        for part in frame.payload["parts"]
        if part["type"] == "tool_result" and part["data"].get("is_error")
    ]
    if end.payload["outcome"] != "completed" or failed:
        raise RuntimeError(f"a run failed: {end.payload} {failed}")
