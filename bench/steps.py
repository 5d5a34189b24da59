"""Steps and tool calls: the time the server adds to the model's, and how it grows with the history."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from bench.bareloop import bare_run
from bench.load import Client, Frame, Json, Stream
from bench.report import Line, median
from bench.server import Running, Server, home
from bench.setting import Setting

#: Steps of one Run, with one call each, in `step_overhead`. Items.
STEPS = 8
#: Messages of such a Run: the prompt, two for each Step, the answer. Items.
RUN_MESSAGES = 2 * STEPS + 2
#: Messages of history before the Run: a new session, a long one, one four times as long. Items.
HISTORIES = (1, 200, 800)
#: Calls and Steps of the Run in `tool_calls`. Items.
CALLS, CALL_STEPS = 1_000, 50
#: Lines of the file that the calls view. Items.
FILE_LINES = 2_000

VIEWED = "viewed.txt"


def view(line: int) -> str:
    """Return the directive for a cheap call. `line` must differ: a model that repeats a call is stopped."""
    return f"tool view {json.dumps({'path': VIEWED, 'offset': line, 'limit': 1})}"


def make_file(running: Running) -> Callable[[str, Json], str]:
    """Create the file, and return the bare loop's function that views a line of it."""
    path = running.server.workspace / VIEWED
    path.write_text("".join(f"line {number}\n" for number in range(1, FILE_LINES + 1)))

    def tool(name: str, arguments: Json) -> str:
        return f"{arguments['offset']}\t{path.read_text().splitlines()[arguments['offset'] - 1]}"

    return tool


@dataclass
class Steps:
    """The times of Runs with the same length of history."""

    through_ms: list[float] = field(default_factory=list)
    bare_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def added_ms(self) -> float:
        return median(self.through_ms) - median(self.bare_ms)


async def step_overhead(setting: Setting) -> list[Line]:
    """Time Steps from one tool result to the next: a model request, a call and its result, all stored durably."""
    tool, rounds = make_file(setting.running), setting.count(8, 3)
    measured = {messages: Steps() for messages in HISTORIES}
    script = f"script: {' | step | '.join(view(number) for number in range(1, STEPS + 1))} | say done"
    async with setting.client() as client, client.stream() as stream:
        histories: dict[int, list[Json]] = {1: []}
        sessions: dict[int, str] = {}
        for messages in HISTORIES[1:]:
            # Each Run lengthens the history. Start shorter, so that its average length is `messages`.
            before = messages - rounds * RUN_MESSAGES // 2
            sessions[messages] = await client.session()
            for _ in range(before // RUN_MESSAGES):
                start = len(stream.frames)
                await stream.until_complete(await client.submit(sessions[messages], script), start)
            example = (await bare_run(setting.model, script, tool, [])).messages
            histories[messages] = (example * (messages // len(example) + 1))[: messages // RUN_MESSAGES * RUN_MESSAGES]
        for number in range(rounds + 1):
            for messages, steps in measured.items():
                session = sessions.get(messages) or await client.session()
                start, used = len(stream.frames), setting.running.cpu_s
                run_id = await client.submit(session, script)
                await stream.until_complete(run_id, start)
                cpu_s = setting.running.cpu_s - used
                bare = await bare_run(setting.model, script, tool, histories[messages])
                if number:  # the first round warms both sides
                    steps.cpu_ms.append(cpu_s / STEPS * 1000)
                    steps.through_ms += _between([frame.at for frame in _results(stream, start)])
                    steps.bare_ms += _between(bare.step_ends)
    return _step_lines(measured)


def _step_lines(measured: dict[int, Steps]) -> list[Line]:
    new, long, longer = (measured[messages] for messages in HISTORIES)
    cpu = {messages: median(steps.cpu_ms) for messages, steps in measured.items()}
    lines = [
        Line(
            name,
            steps.added_ms,
            "ms",
            f"{median(steps.through_ms):.1f} ms through the server, {median(steps.bare_ms):.1f} ms in a bare loop "
            f"(x{median(steps.through_ms) / median(steps.bare_ms):.1f}); {median(steps.cpu_ms):.1f} ms of CPU",
        )
        for name, steps in (
            ("Step, excluding model time", new),
            ("Step with 200 messages of history, excluding model time", long),
            ("Step with 800 messages of history, excluding model time", longer),
        )
    ]
    first_us, then_us = (cpu[200] - cpu[1]) / 200 * 1000, (cpu[800] - cpu[200]) / 600 * 1000
    note = (
        f"{first_us:.0f} us for each of the first 200, {then_us:.0f} us for each of the next 600; quadratic growth: x5"
    )
    lines.append(Line("CPU per Step and history message, growth", then_us / first_us, "x", note))
    return lines


async def tool_calls(setting: Setting) -> list[Line]:
    """View a file 1,000 times, 20 concurrent calls per Step, on a new server to measure its memory."""
    concurrent = CALLS // CALL_STEPS
    lines = iter(range(1, CALLS + 1))
    steps = [" | ".join(view(next(lines)) for _ in range(concurrent)) for _ in range(CALL_STEPS)]
    script = f"script: {' | step | '.join(steps)} | say done"
    walls: list[float] = []
    bares: list[float] = []
    cpu_s: list[float] = []
    before_mib = after_mib = 0.0
    for _ in range(setting.count(3, 1)):
        with home() as directory, Server(directory, setting.model).run() as running:
            tool = make_file(running)
            async with Client.open(running.address, running.server) as client, client.stream() as stream:
                session = await client.session()
                await stream.until_complete(await client.submit(session, "script: say warm"))
                before_mib, used, start = running.rss_mib, running.cpu_s, time.perf_counter()
                end = await stream.until_complete(await client.submit(await client.session(), script))
                if end.payload["outcome"] != "completed" or len(_results(stream, 0)) != CALLS:
                    raise RuntimeError(f"not all calls were made: {end.payload}")
                walls.append(end.at - start)
                cpu_s.append(running.cpu_s - used)
                after_mib = running.rss_mib
            bare = await bare_run(setting.model, script, tool, [])
            bares.append(bare.ended - bare.began)
    total, own = median(walls), median(bares)
    note = f"{CALL_STEPS} Steps; a bare loop: {own:.2f} s (x{total / own:.1f}); {median(cpu_s):.2f} s of CPU"
    return [
        Line("1,000 tool calls", total, "s", note),
        Line("tool call, excluding model time", (total - own) / CALLS * 1000, "ms", f"{concurrent} concurrent"),
        Line("memory, after 1,000 tool calls", after_mib, "MiB", f"{before_mib:.1f} MiB before"),
    ]


def _results(stream: Stream, start: int) -> list[Frame]:
    return [frame for frame in stream.find("message", start) if frame.payload["role"] == "tool"]


def _between(times: list[float]) -> list[float]:
    return [(later - earlier) * 1000 for earlier, later in pairwise(times)]
