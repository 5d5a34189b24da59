"""B9 and G2 with stubborn processes: a cancel, and a `kill -9` of the server, end all of them.

The kinds are those of the warden's tests. Here each is started as a command of a Run on a real server.
"""

from __future__ import annotations

import asyncio
import random
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from proof.figures import IS_LONG, proof, size
from tests.conformance.harness import Endpoint, Peer, Stream, open_http, results_of, unique
from tests.conformance.loops import TOKEN, nest, replay, seeds
from tests.conformance.test_i_agent import call
from tests.warden.nasty import HARD_TO_SEE, KINDS
from tests.warden.newcomers import Newcomers

#: Without the kinds that wait for standard input, which a tool command does not have.
ALL = tuple(kind for kind in KINDS if "overseer" not in kind)
CHOSEN = (
    "ignores SIGTERM",
    "starts a new one on SIGTERM",
    "new session",
    "daemon",
    "stopped as a whole",
    "closed streams",
    "child holds the pipes",
    "tracer",
    "respawner",
    "fork bomb",
    "subreaper of its own",
    "endless output",
)
#: Four at a time: they share the two seconds that stubborn processes get.
AT_ONCE = 4
GROUPS = [
    kinds[first : first + AT_ONCE] for kinds in [ALL if IS_LONG else CHOSEN] for first in range(0, len(kinds), AT_ONCE)
]
#: Scans of /proc: one scan can miss a process that forks meanwhile. Items.
SCANS = 5
#: Kinds of processes per killed server. Items.
KEPT = 2


def command(kind: str, mark: str) -> str:
    """Return the shell command. It waits, since some kinds exit at once and continue in the background."""
    return f"export KEDGE_MARK={mark}; {shlex.join(KINDS[kind])}; sleep 1000"


async def start(kedge: Peer, stream: Stream, kind: str, mark: str) -> tuple[str, str, Newcomers]:
    """Start a command of this kind, and return (session, run, newcomers) once it runs."""
    newcomers = Newcomers(mark)
    session = await kedge.session()
    script = f"script: {call('bash', command=command(kind, mark))} | say never"
    run_id = (await kedge.submit(session, script, mode="yolo"))["run_id"]

    def has_written(stream: Stream) -> bool:
        """Return True once there is output; the first progress is the command itself."""
        reported = [frame.payload["text"] for frame in stream.of("progress") if frame.payload["run_id"] == run_id]
        return any(not text.startswith("$ ") for text in reported)

    await stream.until(lambda stream: has_written(stream) or stream.completes(run_id))
    assert not stream.completes(run_id), f"{kind}: {results_of(await kedge.messages(session))}"
    assert newcomers.alive() or kind in HARD_TO_SEE, kind
    return session, run_id, newcomers


async def cancel_one(kedge: Peer, stream: Stream, kind: str) -> None:
    mark = unique("mark")
    session, run_id, newcomers = await start(kedge, stream, kind, mark)
    covered = (await kedge.cancel(session))["covered"]
    assert [run["run_id"] for run in covered] == [run_id], kind
    (complete,) = await stream.until_complete(run_id)
    left = [newcomers.alive() for _ in range(SCANS)]
    assert left == [[]] * SCANS, f"{kind}: alive after the end of the run"
    assert (complete["outcome"], complete["cleanup"]) == ("cancelled", "clean"), f"{kind}: {complete}"
    (result,) = results_of(await kedge.messages(session))
    assert "cut off" in result["content"], kind


async def cancel_all(kedge: Peer, kinds: Sequence[str]) -> None:
    async with kedge.stream(deltas=1) as stream:
        await asyncio.gather(*(cancel_one(kedge, stream, kind) for kind in kinds))
    session = await kedge.session()
    after = await kedge.wait((await kedge.submit(session, f"script: {call('ls')} | say fine"))["run_id"])
    assert (after["outcome"], after["text"]) == ("completed", "fine")


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("kinds", GROUPS, ids=", ".join)
async def test_b9_a_cancel_ends_every_kind_of_process_first(kedge: Peer, kinds: tuple[str, ...]) -> None:
    with proof("G5", "tools of cancelled runs", "survivors") as figure:
        for _ in range(size(1, 10)):
            await cancel_all(kedge, kinds)
            figure.count += len(kinds)


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("seeds_", seeds(20, 500, each=50 if IS_LONG else 10), ids=str)
async def test_g2_every_kind_of_process_ends_with_a_killed_server(
    endpoint: Endpoint, tmp_path: Path, workspace: Path, seeds_: range
) -> None:
    with proof("G6", "kills of a server with running tools", "left something running") as figure:
        async with nest(tmp_path / "server", endpoint.hosted.url, '[runs]\non_crash = "end"\n') as servers:
            for seed in seeds_:
                kinds = random.Random(seed).sample(ALL, KEPT)
                await servers.start()
                address = await servers.listening()
                assert address is not None
                try:
                    async with open_http(f"http://{address.host}:{address.port}", TOKEN) as http:
                        kedge = await Peer(http, workspace).open()
                        async with kedge.stream(deltas=1) as stream:
                            started = [await start(kedge, stream, kind, unique("mark")) for kind in kinds]
                            servers.signal()
                            took_s = max([await newcomers.until_gone(SCANS) for _, _, newcomers in started])
                except BaseException:
                    print(f"{kinds}; {replay('tests/conformance/test_g_processes.py -k g2', seed)}")
                    raise
                assert await servers.gone() == -9
                figure.count += 1
                figure.notes["gone within 1 s"] = int(figure.notes.get("gone within 1 s", 0)) + (took_s < 1)
