"""A tool that ends its overseer and the keeper above it gains nothing: the server adopts it, and ends it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from kedge.warden.warden import Warden
from tests.polling import until
from tests.warden.support import PATH, PYTHON, is_alive, marked, new_mark, read_all, spec

ROOT = Path(__file__).parents[2]
#: Leaves its session, becomes an orphan, writes down its pid, stops and kills the keeper and its overseer, and forks.
ESCAPE = """
import os, signal, sys
def parent_of(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
overseer = os.getppid()
keeper = parent_of(overseer)
if os.fork():
    signal.pause()
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "w") as told:
    told.write(str(os.getpid()))
for number in (signal.SIGSTOP, signal.SIGKILL):
    for pid in (keeper, overseer):
        os.kill(pid, number)
for _ in range(500):  # hard to catch, and some stay; at last
    if os.fork():
        os._exit(0) if os.getpid() % 8 else signal.pause()
signal.pause()
"""
#: A process that adopts orphans as a server does. It had a child before, and starts another during the sweep.
SERVER = """
import asyncio, json, os, subprocess, sys
from kedge import children
from kedge.warden import orphans
from kedge.warden.base import WardenFailed
from kedge.warden.warden import Warden
from tests.warden.support import PYTHON, spec

async def main(escape, told, mark):
    inherited = subprocess.Popen(["sleep", "1000"])
    orphans.adopt()
    own = await children.start("sleep", "1000")
    warden = Warden("subreaper")
    await warden.start()
    process = await warden.run(spec(*PYTHON, escape, told, mark=mark))
    later = asyncio.create_task(children.start("sleep", "1000"))
    try:
        await process.wait()
        lost = ""
    except WardenFailed as error:
        lost = str(error)
    left = await process.end(0)
    again = await (await warden.run(spec("true"))).wait()
    spared = [inherited.poll(), own.returncode, (await later).returncode]
    for child in (inherited, own, await later):
        child.kill()
    await warden.close()
    print(json.dumps({"lost": lost, "left": left, "again": again.code, "spared": spared}), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
#: Its keeper is given up sooner than usual; the tool stops the keeper again and again.
PATIENCE = """
import asyncio
from kedge.warden import keeper_client, orphans
from kedge.warden.warden import Warden
from tests.warden.support import PYTHON, read_until, spec

STOP = '''
import os, signal, sys
keeper = int(sys.argv[1])
os.fork()
print("stopped", flush=True)
while True:
    try:
        os.kill(keeper, signal.SIGSTOP)
    except ProcessLookupError:
        signal.pause()
'''

async def main():
    orphans.adopt()
    keeper_client.CLOSE_S_MAX = 0.5
    warden = Warden("subreaper")
    await warden.start()
    process = await warden.run(spec(*PYTHON, STOP, str(warden.keeper_pid)))
    await read_until(process, b"stopped")
    print(await process.end(0), (await (await warden.run(spec("true"))).wait()).code)
    await warden.close()

asyncio.run(main())
"""


@pytest.mark.found(
    "attack 10",
    "without namespaces, a command that killed its overseer and the keeper survived, and nothing was reported as left; "
    "the server now adopts what a lost keeper leaves, kills it, and reports what is left",
)
async def test_nothing_survives_the_keeper_that_it_killed(tmp_path: Path) -> None:
    mark = new_mark()
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVER,
        ESCAPE,
        str(tmp_path / "told"),
        mark,
        env={"PATH": PATH, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    told = json.loads(await server.stdout.readline())
    await server.wait()
    survivors = marked(mark)
    while left := marked(mark):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert survivors == []
    assert not is_alive(int((tmp_path / "told").read_text()))
    assert "keeper was lost" in told.pop("lost")
    assert told == {"left": [], "again": 0, "spared": [None, None, None]}


async def test_a_keeper_that_is_kept_stopped_is_given_up() -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PATIENCE,
        env={"PATH": PATH, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await server.communicate()
    assert said == b"() 0\n"


@pytest.mark.timeout(20)
@pytest.mark.found(
    "attacks on the fix of attack 10",
    "without namespaces, a command could stop the keeper, and no tree was ended any more; the server wakes the keeper "
    "with each message",
)
async def test_a_stopped_keeper_goes_on_when_it_is_needed(warden: Warden) -> None:
    process = await warden.run(spec(*PYTHON, "import signal; signal.pause()"))
    os.kill(warden.keeper_pid, signal.SIGSTOP)
    assert await process.alive() == 1
    os.kill(warden.keeper_pid, signal.SIGSTOP)
    assert await process.end(0) == ()
    assert not is_alive(process.pid)


#: Prints the pids of its keeper, an overseer and a tool, and runs until it is killed.
KILLED = """
import asyncio, sys
from kedge.warden import orphans
from kedge.warden.warden import Warden
from tests.warden.support import parent_of, spec

async def main():
    orphans.adopt()
    warden = Warden("subreaper")
    await warden.start()
    process = await warden.run(spec("sleep", "1000"))
    print(warden.keeper_pid, parent_of(process.pid), process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.timeout(20)
@pytest.mark.found(
    "attack round 2: sandbox",
    "without namespaces, a stopped keeper let all that it ran live on when the server was killed; the kernel wakes the "
    "keeper and the overseers now when their parent ends",
)
async def test_a_stopped_keeper_ends_with_its_server() -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        KILLED,
        env={"PATH": PATH, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    keeper, overseer, tool = pids = [int(word) for word in (await server.stdout.readline()).split()]
    for pid in (keeper, overseer):
        os.kill(pid, signal.SIGSTOP)
    server.kill()
    await server.wait()
    try:
        await until(lambda: not any(map(is_alive, pids)))
    finally:
        for pid in filter(is_alive, (tool, overseer, keeper)):
            os.kill(pid, signal.SIGKILL)


#: Attaches a debugger to the process named, as a user without privileges would: root gives up CAP_SYS_PTRACE.
DEBUG = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
head, sets = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
libc.capget(head, sets)
effective, *rest = struct.unpack("6I", sets.raw)
libc.capset(head, struct.pack("6I", effective & ~(1 << 19), *rest))
print(libc.ptrace(0x4206, int(sys.argv[1]), None, None), ctypes.get_errno())  # PTRACE_SEIZE
"""


@pytest.mark.found(
    "attack round 2: sandbox",
    "without namespaces, a command could attach a debugger to the keeper and have it report anything; the keeper is "
    "closed to debuggers",
)
async def test_a_tool_cannot_debug_the_keeper() -> None:
    warden = Warden("subreaper")
    await warden.start()
    process = await warden.run(spec(*PYTHON, DEBUG, str(warden.keeper_pid)))
    assert await read_all(process) == f"-1 {errno.EPERM}\n".encode()
    await process.end(0)
    await warden.close()
