"""Faults around a server process that cost no Run: the clock is set, the process is paused, it gets few files or little
memory, or its database file is emptied."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest

from proof.figures import proof, size
from tests.conformance.harness import Endpoint, Json, Peer, Server, Stream, results_of, unique
from tests.conformance.raw import connect, submit
from tests.conformance.rounds import Ends
from tests.conformance.test_g_crash import check_ended_once
from tests.conformance.test_i_agent import call
from tests.conformance.watching import words

pytestmark = [pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(300)]

#: Longer than any wait while other proofs run. Seconds.
LOAD_S = 120.0


async def ended(stream: Stream, run_ids: Iterable[str]) -> list[Json]:
    """Wait for the ends of these Runs, check that there is one of each, and return them."""
    ends, expected = Ends(stream), list(run_ids)
    await stream.until(lambda _: all(ends.of(run_id) for run_id in expected), LOAD_S)
    assert {len(ends.of(run_id)) for run_id in expected} == {1}
    assert stream.positions == sorted(set(stream.positions))
    return [ends.of(run_id)[0] for run_id in expected]


# --- the clock --------------------------------------------------------------------------------------------------------

#: A library that adds the seconds in a file to the wall clock of a process. The monotonic clock is left alone, as by an
#: administrator who sets the time.
SHIFTED_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    char text[32] = "";
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *result) {
    static int (*original)(clockid_t, struct timespec *);
    if (!original) original = dlsym(RTLD_NEXT, "clock_gettime");
    int code = original(clock, result);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) result->tv_sec += shift();
    return code;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    result->tv_sec = now.tv_sec;
    result->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""
#: Backwards by a day, forwards by a year, back, and backwards by ten minutes. Seconds.
SHIFTS_S = (-86_400, 365 * 86_400, 0, -600)


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let servers have a wall clock that the test shifts."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("shifting the clock of one process requires a C compiler")
    source, library, shift = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "shift"
    source.write_text(SHIFTED_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("SHIFTED_CLOCK", str(shift))

    def set_to(shift_s: int) -> None:
        (tmp_path / "new").write_text(str(shift_s))
        (tmp_path / "new").rename(shift)

    set_to(0)
    return set_to


async def test_runs_outlast_a_clock_that_is_set(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, set_clock: Callable[[int], None]
) -> None:
    runs = size(2, 10)
    server = own_server("[server]\nheartbeat_s = 0.5")
    with proof("G1", "Runs in which the clock was set", "lost, doubled or out of order") as figure:
        async with server.peer(workspace) as peer, peer.stream() as stream:
            sessions, starts_ms = [await peer.session() for _ in range(runs)], list[int]()
            run_ids: dict[str, list[str]] = {session: [] for session in sessions}
            for number, shift_s in enumerate(SHIFTS_S):
                tag, key = unique("tag"), unique("key")
                for index, session in enumerate(sessions):
                    bash = call(
                        "bash", command=f"touch ready-{number}-{index}; until [ -e go-{number} ]; do sleep 0.1; done"
                    )
                    wait = f"tag {tag} | say a | hold {key}" if index % 2 else bash
                    receipt = await peer.submit(session, f"script: {wait} | say done", mode="yolo")
                    run_ids[session].append(receipt["run_id"])
                    later = await peer.submit(session, "script: say later", run_id=unique("run"))
                    run_ids[session].append(later["run_id"])
                await endpoint.wait_open(tag, runs // 2)
                while len(list(workspace.glob(f"ready-{number}-*"))) < runs - runs // 2:
                    await peer.call("GET", "/runs")
                set_clock(shift_s)
                (workspace / f"go-{number}").touch()
                endpoint.release(key)
                completes = await ended(stream, [run_id for ids in run_ids.values() for run_id in ids])
                assert {end["outcome"] for end in completes} == {"completed"}
                starts_ms.append((await peer.run(run_ids[sessions[0]][-1]))["started_at"])
            # Check that the server had these clocks: a day back, a year forward, a year back, ten minutes back.
            hours = [round((after - before) / 3_600_000) for before, after in pairwise(starts_ms)]
            assert hours == [366 * 24, -365 * 24, 0]
            server.kill()
        server.start()
        async with server.peer(workspace) as peer:
            await check_ended_once(peer, [run_id for ids in run_ids.values() for run_id in ids])
            for session, expected in run_ids.items():
                order = [message["run_id"] for message in await peer.messages(session)]
                assert list(dict.fromkeys(order)) == expected
        figure.count = sum(map(len, run_ids.values()))


# --- a pause ----------------------------------------------------------------------------------------------------------


@pytest.mark.found(
    "SIGSTOP of the server for 90 s",
    "a command that ended during the pause was reported as still running, or as killed at its time limit: the timer "
    "ran before the end was read",
)
async def test_runs_continue_after_a_long_pause(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    """Longer than each deadline of a connection. Most of this test is idle."""
    pause_s, count, key = size(5, 90), 5_000, unique("key")
    server = own_server()
    with proof("G8", "Runs and requests during a pause of the server", "lost or refused") as figure:
        async with server.peer(workspace) as peer, peer.stream(deltas=1) as stream, connect(server.url) as late:
            bash = call("bash", command="touch ready; until [ -e go ]; do sleep 0.1; done; echo came")
            scripts = (f"words 100 | hold {key} | words {count}", f"{bash} | say done")
            sessions = [await peer.session() for _ in scripts]
            run_ids = [
                (await peer.submit(session, f"script: {script}", mode="yolo"))["run_id"]
                for session, script in zip(sessions, scripts, strict=True)
            ]
            await stream.until(lambda stream: stream.of("delta"))
            while not (workspace / "ready").exists():
                await peer.call("GET", "/runs")
            pause = f"kill -STOP {server.pid}; echo stopped; sleep {pause_s}; kill -CONT {server.pid}"
            pausing = await asyncio.create_subprocess_exec("sh", "-c", pause, stdout=asyncio.subprocess.PIPE)
            assert pausing.stdout is not None
            assert await pausing.stdout.readline() == b"stopped\n"
            (workspace / "go").touch()
            endpoint.release(key)
            fields = {"session_id": sessions[1], "prompt": "script: say sent", "run_id": unique("run")}
            await late.send(submit(server.token, peer.workspace, fields))
            assert await pausing.wait() == 0
            status, receipt = await late.reply()
            assert (status, receipt["run_id"]) == (202, fields["run_id"])
            completes = await ended(stream, [*run_ids, fields["run_id"]])
            assert [end["outcome"] for end in completes] == ["completed"] * 3
            text = f"{words(100)} {words(count)}"
            assert [end["text"] for end in completes] == [text, "done", "sent"]
            assert stream.text(completes[0]["message_id"]) == text
            (result,) = results_of(await peer.messages(sessions[1]))
            assert result["content"] == "came"
        figure.count = 3
        figure.notes["pause"] = f"{pause_s} s"


# --- few files, little memory -----------------------------------------------------------------------------------------


async def test_few_open_files_fail_calls_but_no_run(own_server: Callable[..., Server], workspace: Path) -> None:
    runs, calls = size(4, 20), 12
    server = own_server()
    server.kill()
    server.start(files_max=64)
    with proof("G8", "calls of a server with 64 open files", "without a result") as figure:
        async with server.peer(workspace) as peer, peer.stream() as stream:
            sessions = [await peer.session() for _ in range(runs)]
            echo = " | ".join(call("bash", command=f"echo {number}-here") for number in range(calls))
            prompt = f"script: {echo} | say done"
            receipts = [await peer.submit(session, prompt, mode="yolo") for session in sessions]
            completes = await ended(stream, [receipt["run_id"] for receipt in receipts])
            assert {(end["outcome"], end["text"]) for end in completes} == {("completed", "done")}
            expected, outcomes = {f"{number}-here" for number in range(calls)}, Counter[str]()
            for session in sessions:
                contents = [result["content"] for result in results_of(await peer.messages(session))]
                right = [content for content in contents if content in expected]
                assert len(right) == len(set(right))
                outcomes.update("right" if content in expected else content for content in contents)
            assert all(text == "right" or "Too many open files" in text for text in outcomes), outcomes
            assert "Traceback" not in server.log
            assert outcomes.total() == runs * calls
        figure.count = runs * calls
        figure.notes["calls that had a process"] = outcomes["right"]


def status_kb(pid: int, name: str) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split(f"{name}:")[1].split()[0])


async def until_ended_or_dead(peer: Peer, run_ids: list[str]) -> bool:
    """Return False if the server died before these Runs ended."""
    try:
        for run_id in run_ids:
            await peer.wait(run_id)
    except httpx2.TransportError:
        return False
    return True


async def test_little_memory_fails_runs_but_not_the_store(own_server: Callable[..., Server], workspace: Path) -> None:
    """A C extension that is refused memory may end the process. So a crash is allowed, a lost Run is not."""
    runs, count, spare_mb = 8, size(20_000, 120_000), size(12, 24)
    server = own_server()
    server.checks_stalls = False
    with proof("G1", "Runs of a server without memory", "lost, doubled or damaged") as figure:
        async with server.peer(workspace) as peer:
            sessions = [await peer.session() for _ in range(runs)]
            receipts = [await peer.submit(session, "script: say before") for session in sessions]
            before = [receipt["run_id"] for receipt in receipts]
            assert await until_ended_or_dead(peer, before)
            limit = status_kb(server.pid, "VmSize") * 1024 + spare_mb * 1024 * 1024
            resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, limit))
            accepted = list[str]()
            with suppress(httpx2.TransportError):
                for session in sessions:
                    accepted.append((await peer.submit(session, f"script: words {count}"))["run_id"])
            has_survived = await until_ended_or_dead(peer, accepted)
            if has_survived:
                run = await peer.wait((await peer.submit(sessions[0], "script: say next"))["run_id"])
                assert (run["outcome"], run["text"]) == ("completed", "next")
        server.kill()
        server.start()
        async with server.peer(workspace) as peer:
            ends = [await peer.wait(run_id) for run_id in accepted]
            await check_ended_once(peer, [*before, *accepted])
            assert {(await peer.run(run_id))["text"] for run_id in before} == {"before"}
        figure.count = len(accepted)
        figure.notes |= Counter(f"Runs that {run['outcome']}" for run in ends)
        figure.notes["server"] = "survived" if has_survived else "died"


# --- an emptied database ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stopped", "killed", "checkpointed"])
async def test_emptied_database_is_served_whole_or_refused(
    own_server: Callable[..., Server], workspace: Path, how: str
) -> None:
    """While the server runs, the WAL has all pages, and a normal stop writes them. After a kill, SQLite would remove
    the WAL of an empty database. After a checkpoint, the pages are gone."""
    server = own_server()
    with proof("G12", "databases that were emptied under a server", "partly served") as figure:
        async with server.peer(workspace) as peer:
            session = await peer.session()
            run_ids = [(await peer.wait((await peer.submit(session, "script: say first"))["run_id"]))["run_id"]]
        if how == "checkpointed":
            server.terminate()
            server.start()
        os.truncate(server.data_dir / "kedge.db", 0)
        async with server.http() as http:
            peer = Peer(http, workspace)
            if how == "checkpointed":
                error = await peer.call(
                    "POST", "/workspaces", {"path": str(workspace), "client_id": peer.client_id}, expect=500
                )
                assert error["code"] == "store_damaged"
            else:
                await peer.open()
                run_ids.append((await peer.submit(session, "script: say second"))["run_id"])
                assert (await peer.wait(run_ids[-1]))["text"] == "second"
        if how == "stopped":
            assert server.terminate() == 0
            server.start()
            async with server.peer(workspace) as peer:
                await check_ended_once(peer, run_ids)
        else:
            server.kill()
            files = {path.name: path.read_bytes() for path in server.data_dir.glob("kedge.db*")}
            with pytest.raises(AssertionError, match=r"kedge\.db is damaged: acknowledged transactions are lost"):
                server.start()
            assert {path.name: path.read_bytes() for path in server.data_dir.glob("kedge.db*")} == files
        figure.count = 1
