"""Steps and tool calls: what the server adds to the model's own time, and how that grows with the history."""

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

#: Steps with a call each, in the measure of one Step. Items.
STEPS = 8
#: Messages that such a Run leaves: its prompt, two for each Step, its answer. Items.
RUN_MESSAGES = 2 * STEPS + 2
#: Messages of history: a new session, a long one, one four times as long. Items.
HISTORIES = (1, 200, 800)
#: As so many calls in so many Steps. Items.
CALLS, CALL_STEPS = 1_000, 50
#: Of the file that is looked at. Items.
FILE_LINES = 2_000

LOOKED_AT = "looked-at.txt"


def look(line: int) -> str:
    """A directive: a cheap call, and never the same one, for a model that repeats itself is stopped."""
    return f"tool view {json.dumps({'path': LOOKED_AT, 'offset': line, 'limit': 1})}"


def make_file(running: Running) -> Callable[[str, Json], str]:
    """The file, and the bare way to look at it."""
    path = running.server.workspace / LOOKED_AT
    path.write_text("".join(f"line {number}\n" for number in range(1, FILE_LINES + 1)))

    def make(name: str, given: Json) -> str:
        return f"{given['offset']}\t{path.read_text().splitlines()[given['offset'] - 1]}"

    return make


@dataclass
class Steps:
    """Of Runs with so much history."""

    through_ms: list[float] = field(default_factory=list)
    bare_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def over_ms(self) -> float:
        return median(self.through_ms) - median(self.bare_ms)


async def step_overhead(setting: Setting) -> list[Line]:
    """From one tool result to the next: a request to the model, its call, the call's result, all of it written down."""
    make, rounds = make_file(setting.running), setting.count(8, 3)
    found = {messages: Steps() for messages in HISTORIES}
    script = f"script: {' | step | '.join(look(number) for number in range(1, STEPS + 1))} | say done"
    async with setting.client() as client, client.stream() as stream:
        histories: dict[int, list[Json]] = {1: []}
        sessions: dict[int, str] = {}
        for messages in HISTORIES[1:]:
            # Each Run makes the history longer; so it begins with as much less as it is too long at the end.
            before = messages - rounds * RUN_MESSAGES // 2
            sessions[messages] = await client.session()
            for _ in range(before // RUN_MESSAGES):
                start = len(stream.frames)
                await stream.until_complete(await client.submit(sessions[messages], script), start)
            example = (await bare_run(setting.model, script, make, [])).messages
            histories[messages] = (example * (messages // len(example) + 1))[: messages // RUN_MESSAGES * RUN_MESSAGES]
        for number in range(rounds + 1):
            for messages, steps in found.items():
                session = sessions.get(messages) or await client.session()
                start, used = len(stream.frames), setting.running.cpu_s
                run_id = await client.submit(session, script)
                await stream.until_complete(run_id, start)
                cpu_s = setting.running.cpu_s - used
                bare = await bare_run(setting.model, script, make, histories[messages])
                if number:  # the first round warms both sides
                    steps.cpu_ms.append(cpu_s / STEPS * 1000)
                    steps.through_ms += _between([frame.at for frame in _results(stream, start)])
                    steps.bare_ms += _between(bare.stepped)
    return _step_lines(found)


def _step_lines(found: dict[int, Steps]) -> list[Line]:
    new, long, longer = (found[messages] for messages in HISTORIES)
    cpu = {messages: median(steps.cpu_ms) for messages, steps in found.items()}
    lines = [
        Line(
            name,
            steps.over_ms,
            "ms",
            f"{median(steps.through_ms):.1f} ms through the server, {median(steps.bare_ms):.1f} ms in a bare loop "
            f"(x{median(steps.through_ms) / median(steps.bare_ms):.1f}); {median(steps.cpu_ms):.1f} ms of CPU",
        )
        for name, steps in (
            ("a Step, over the model's time", new),
            ("a Step with 200 messages of history, over the model's time", long),
            ("a Step with 800 messages of history, over the model's time", longer),
        )
    ]
    first_us, then_us = (cpu[200] - cpu[1]) / 200 * 1000, (cpu[800] - cpu[200]) / 600 * 1000
    note = (
        f"{first_us:.0f} us each of the first 200, {then_us:.0f} us each of the next 600; what grows as the square: x5"
    )
    lines.append(Line("CPU per Step and message of history, growth", then_us / first_us, "x", note))
    return lines


async def tool_calls(setting: Setting) -> list[Line]:
    """1,000 looks at a file, 20 in each Step side by side, on a server of their own for the sake of its memory."""
    at_once = CALLS // CALL_STEPS
    lines = iter(range(1, CALLS + 1))
    steps = [" | ".join(look(next(lines)) for _ in range(at_once)) for _ in range(CALL_STEPS)]
    script = f"script: {' | step | '.join(steps)} | say done"
    walls: list[float] = []
    bares: list[float] = []
    cpu_s: list[float] = []
    before_mib = after_mib = 0.0
    for _ in range(setting.count(3, 1)):
        with home() as directory, Server(directory, setting.model).run() as running:
            make = make_file(running)
            async with Client.open(running.address, running.server) as client, client.stream() as stream:
                session = await client.session()
                await stream.until_complete(await client.submit(session, "script: say warm"))
                before_mib, used, begun = running.rss_mib, running.cpu_s, time.perf_counter()
                end = await stream.until_complete(await client.submit(await client.session(), script))
                if end.payload["outcome"] != "completed" or len(_results(stream, 0)) != CALLS:
                    raise RuntimeError(f"not all calls were made: {end.payload}")
                walls.append(end.at - begun)
                cpu_s.append(running.cpu_s - used)
                after_mib = running.rss_mib
            bare = await bare_run(setting.model, script, make, [])
            bares.append(bare.ended - bare.began)
    total, own = median(walls), median(bares)
    note = f"{CALL_STEPS} Steps; a bare loop: {own:.2f} s (x{total / own:.1f}); {median(cpu_s):.2f} s of CPU"
    return [
        Line("1,000 tool calls", total, "s", note),
        Line("a tool call, over the model's time", (total - own) / CALLS * 1000, "ms", f"{at_once} side by side"),
        Line("memory, after 1,000 tool calls", after_mib, "MiB", f"{before_mib:.1f} MiB before"),
    ]


def _results(stream: Stream, start: int) -> list[Frame]:
    return [frame for frame in stream.find("message", start) if frame.payload["role"] == "tool"]


def _between(times: list[float]) -> list[float]:
    return [(later - earlier) * 1000 for earlier, later in pairwise(times)]
