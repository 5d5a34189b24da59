"""Nothing of a tree is left: after `end`, after a `kill -9` of the server, after a `kill -9` of the keeper."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from kedge.warden.base import Wanted, WardenFailed
from kedge.warden.warden import Warden
from tests.warden.nasty import HARD_TO_SEE, KINDS, start
from tests.warden.support import MECHANISMS, PATH, is_alive, marked, new_mark, spec, until

#: Long enough for a process to hear SIGTERM, short enough to wait for those that ignore it.
GRACE_S = 0.03
ROOT = Path(__file__).parents[2]

SERVER = """
import asyncio, sys
from kedge.warden.warden import Warden
from tests.warden.nasty import start

async def main(wanted, kind, mark):
    warden = Warden(wanted)
    await warden.start()
    await start(warden, kind, mark)
    print("keeper", warden.keeper_pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def end_one(warden: Warden, kind: str, grace_s: float) -> None:
    mark = new_mark()
    process = await start(warden, kind, mark)
    assert marked(mark) or kind in HARD_TO_SEE
    assert await process.end(grace_s) == ()
    assert marked(mark) == []
    assert await process.end(grace_s) == ()
    assert await process.alive() == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_of_a_tree_is_alive_after_its_end(warden: Warden, kind: str) -> None:
    for grace_s in (GRACE_S, 0.0):
        await end_one(warden, kind, grace_s)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_of_a_tree_is_alive_after_its_end_however_often(warden: Warden, kind: str) -> None:
    for _ in range(170):
        await end_one(warden, kind, GRACE_S)


async def test_trees_of_all_kinds_end_at_once_and_spare_a_bystander(warden: Warden) -> None:
    bystander = await warden.run(spec("sleep", "1000", mark=new_mark()))
    await asyncio.gather(*(end_one(warden, kind, GRACE_S) for kind in KINDS))
    assert await bystander.alive() == 1
    assert is_alive(bystander.pid)
    assert await bystander.end(0) == ()


@pytest.mark.parametrize("wanted", ["pid namespace", "user namespace"])
async def test_killing_everybody_from_inside_a_namespace_kills_nobody_outside(wanted: Wanted) -> None:
    warden = Warden(wanted)
    try:
        await warden.start()
    except WardenFailed as error:
        pytest.skip(str(error))
    bystander = await warden.run(spec("sleep", "1000"))
    # Python, not a shell: only where pid 1 is the overseer may this ever run.
    program = "import os\nassert os.getppid() == 1\nos.fork()\nos.kill(-1, 9)\nos.kill(1, 9)\nos.kill(1, 19)\n"
    process = await warden.run(spec(sys.executable, "-I", "-S", "-c", program))
    await process.wait()
    assert await process.end(0) == ()
    assert await bystander.alive() == 1
    await warden.close()
    assert not is_alive(bystander.pid)


async def one_dead_server(wanted: Wanted, kind: str) -> None:
    mark = new_mark()
    # The mark is in the command line of the server, too: it counts among those that must go.
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, wanted, kind, mark),
        env={"PATH": PATH, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    word, keeper = (await server.stdout.readline()).split()
    assert word == b"keeper"
    server.kill()
    await server.wait()
    await until(lambda: not marked(mark) and not is_alive(int(keeper)))


@pytest.mark.parametrize("round_", range(7))
async def test_killing_the_server_leaves_nothing_running(mechanism: Wanted, round_: int) -> None:
    """21 deaths, each of another kind."""
    offset = MECHANISMS.index(mechanism) * 7 + round_
    await one_dead_server(mechanism, list(KINDS)[offset % len(KINDS)])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_killing_the_server_leaves_nothing_running_however_often(mechanism: Wanted, kind: str) -> None:
    for _ in range(10):
        await one_dead_server(mechanism, kind)


@pytest.mark.parametrize("kind", ["ignores SIGTERM", "daemon", "fork bomb", "respawner", "stopped child"])
async def test_killing_the_keeper_ends_its_trees_and_the_next_run_has_a_new_one(warden: Warden, kind: str) -> None:
    mark = new_mark()
    process = await start(warden, kind, mark)
    waiting = asyncio.create_task(process.wait())
    before = warden.keeper_pid
    os.kill(before, signal.SIGKILL)
    if kind not in ("daemon", "respawner"):  # of these, the first process has ended long ago
        with pytest.raises(WardenFailed, match="keeper was lost"):
            await waiting
    else:
        await asyncio.wait([waiting])
    assert await process.end(GRACE_S) == ()
    await until(lambda: not marked(mark))

    again = await warden.run(spec("echo", "here"))
    assert warden.keeper_pid != before
    assert await again.read() == b"here\n"
    assert await again.end(0) == ()


async def test_a_keeper_lost_between_runs_is_replaced(warden: Warden) -> None:
    before = warden.keeper_pid
    os.kill(before, signal.SIGKILL)
    while is_alive(before):
        pass  # without a pass of the loop: nobody has heard of it when the next one is started
    process = await warden.run(spec("true"))
    assert (await process.wait()).code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_keeper_ignores_what_a_terminal_or_a_shutdown_sends(warden: Warden, number: int) -> None:
    process = await warden.run(spec("sleep", "1000"))
    before = warden.keeper_pid
    os.kill(before, number)
    assert await process.alive() == 1
    await process.end(0)
    assert warden.keeper_pid == before
    assert (await (await warden.run(spec("true"))).wait()).code == 0


async def test_closing_kills_everything_and_may_be_repeated(mechanism: Wanted) -> None:
    warden = Warden(mechanism)
    await warden.start()
    marks = {kind: new_mark() for kind in KINDS if kind != "endless output"}
    processes = [await start(warden, kind, mark) for kind, mark in marks.items()]
    keeper = warden.keeper_pid
    await asyncio.gather(warden.close(), warden.close())
    assert not is_alive(keeper)
    assert {kind: found for kind, mark in marks.items() if (found := marked(mark))} == {}
    assert [await process.end(1) for process in processes] == [()] * len(processes)
    await warden.close()
    with pytest.raises(WardenFailed, match="closed"):
        await warden.run(spec("true"))
