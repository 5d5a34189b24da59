"""Processes end without the help of a server that does not report in time: it may be stopped, or its machine was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from kedge.warden.base import ProcessFailed
from kedge.warden.warden import Warden
from tests.polling import block_until, until
from tests.source import ROOT
from tests.warden.support import marked, new_mark, spec

pytestmark = pytest.mark.timeout(60)

#: Starts a process with a mark, allows it to run for the time of its argument, and reports that it runs.
SERVER = """
import asyncio, sys, time
from kedge.warden.warden import Warden
from tests.warden.support import spec

async def main():
    warden = Warden()
    await warden.start()
    await warden.run(spec("sleep", "1000", mark=sys.argv[1]))
    warden.stay_alive(time.clock_gettime(time.CLOCK_BOOTTIME) + 0.5)
    print("running", flush=True)
    while True:
        warden.stay_alive(time.clock_gettime(time.CLOCK_BOOTTIME) + 0.5)
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def test_processes_end_when_the_server_does_not_report(warden: Warden) -> None:
    mark = new_mark()
    running = await warden.run(spec("sleep", "1000", mark=mark))
    warden.stay_alive(boot_time() + 0.2)
    status = await running.wait()
    assert status.signal == signal.SIGKILL or status.code is None
    await until(lambda: marked(mark) == [])
    with pytest.raises(ProcessFailed, match="did not renew its lease"):
        await warden.run(spec("sleep", "1000"))
    warden.stay_alive(boot_time() + 60)  # too late: what it has lost may be served elsewhere
    with pytest.raises(ProcessFailed, match="did not renew its lease"):
        await warden.run(spec("sleep", "1000"))


async def test_processes_run_while_the_server_reports(warden: Warden) -> None:
    warden.stay_alive(boot_time() + 60)
    running = await warden.run(spec("true"))
    assert (await running.wait()).code == 0


def test_processes_of_a_stopped_server_end() -> None:
    mark = new_mark()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    with subprocess.Popen([sys.executable, "-c", SERVER, mark], stdout=subprocess.PIPE, env=environment) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"running\n"
            sleeping = [pid for pid in marked(mark) if pid != server.pid]
            assert sleeping
            os.kill(server.pid, signal.SIGSTOP)
            block_until(lambda: [pid for pid in marked(mark) if pid != server.pid] == [], 30)
        finally:
            server.kill()
