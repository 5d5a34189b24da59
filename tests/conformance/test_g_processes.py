"""B9 and G2 against processes that do not want to go: a cancel, and a `kill -9` of the server, leave none of them.

The kinds are those of the warden's own tests. Here each is started as a command of a Run on a real server.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conformance.harness import Peer, Server, Stream, results_of, unique
from tests.conformance.test_i_agent import call
from tests.warden.nasty import KINDS
from tests.warden.support import marked, until

#: Four at a time, for the two seconds that a stubborn one is given are the same for all of them.
GROUPS = (
    ("ignores SIGTERM", "starts a new one on SIGTERM", "new session", "daemon"),
    ("stopped as a whole", "closed streams", "child holds the pipes", "tracer"),
    ("respawner", "fork bomb", "subreaper of its own", "endless output"),
)
KILLED_IN_CI = ("ignores SIGTERM", "daemon", "respawner", "subreaper of its own")
#: Those that wait for a word on standard input, which a command of a tool does not have, are left out.
ALL = tuple(kind for kind in KINDS if "overseer" not in kind)
#: A look at /proc can miss what forks while it is looked at; nobody is lucky so often. Items.
LOOKS = 5


def command(kind: str, mark: str) -> str:
    """Some of them leave at once and go on behind; so the command itself stays."""
    return f"export KEDGE_MARK={mark}; {shlex.join(KINDS[kind])}; sleep 1000"


async def start(kedge: Peer, stream: Stream, kind: str, mark: str) -> tuple[str, str]:
    """(session, run) of a command that has become what its name says."""
    session = await kedge.session()
    script = f"script: {call('bash', command=command(kind, mark))} | say never"
    run_id = (await kedge.submit(session, script, yolo=True))["run_id"]

    def has_written(stream: Stream) -> bool:
        """The first progress is the command as it was given; what comes then is its output."""
        told = [frame.payload["text"] for frame in stream.of("progress") if frame.payload["run_id"] == run_id]
        return any(not text.startswith("$ ") for text in told)

    await stream.until(lambda stream: has_written(stream) or stream.completes(run_id))
    assert not stream.completes(run_id), f"{kind}: {results_of(await kedge.messages(session))}"
    assert await asyncio.to_thread(marked, mark), kind
    return session, run_id


async def cancel_one(kedge: Peer, stream: Stream, kind: str) -> None:
    mark = unique("mark")
    session, run_id = await start(kedge, stream, kind, mark)
    covered = (await kedge.cancel(session))["covered"]
    assert [run["run_id"] for run in covered] == [run_id], kind
    (complete,) = await stream.until_complete(run_id)
    left = [await asyncio.to_thread(marked, mark) for _ in range(LOOKS)]
    assert left == [[]] * LOOKS, f"{kind}: alive after the end of their run"
    assert (complete["outcome"], complete["cleanup"]) == ("cancelled", "clean"), f"{kind}: {complete}"
    (result,) = results_of(await kedge.messages(session))
    assert "cut off" in result["content"], kind


async def cancel_all(kedge: Peer, kinds: Sequence[str]) -> None:
    async with kedge.stream(deltas=1) as stream:
        await asyncio.gather(*(cancel_one(kedge, stream, kind) for kind in kinds))
    session = await kedge.session()
    after = await kedge.wait((await kedge.submit(session, f"script: {call('ls')} | say fine"))["run_id"])
    assert (after["outcome"], after["text"]) == ("completed", "fine")


@pytest.mark.parametrize("kinds", GROUPS, ids=", ".join)
async def test_b9_a_cancel_ends_every_kind_of_process_before_the_run_is_over(
    kedge: Peer, kinds: tuple[str, ...]
) -> None:
    await cancel_all(kedge, kinds)


@pytest.mark.long
async def test_b9_a_cancel_ends_every_kind_of_process_however_often(kedge: Peer) -> None:
    for _ in range(30):
        await cancel_all(kedge, ALL)


async def kill_one(server: Server, workspace: Path, kind: str) -> None:
    mark = unique("mark")
    async with server.peer(workspace) as kedge, kedge.stream(deltas=1) as stream:
        await start(kedge, stream, kind, mark)
        server.kill()
    for _ in range(LOOKS):
        await until(lambda: not marked(mark))


@pytest.mark.parametrize("kind", KILLED_IN_CI)
async def test_g2_a_killed_server_takes_every_kind_of_process_along(
    own_server: Callable[..., Server], workspace: Path, kind: str
) -> None:
    await kill_one(own_server(), workspace, kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL)
async def test_g2_a_killed_server_takes_every_kind_of_process_along_however_often(
    own_server: Callable[..., Server], workspace: Path, kind: str
) -> None:
    server = own_server('[runs]\non_crash = "end"\n')
    for _ in range(5):
        await kill_one(server, workspace, kind)
        server.start()
