"""Clients that start the server while others stop it: there is one server, and each command ends as expected."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from itertools import count

import pytest

from kedge.client.client import Client
from kedge.client.local_server import find_or_start
from kedge.client.server_process import lock_owner
from proof.figures import proof, size
from tests.client.fixtures import server_pids
from tests.client.process import WAIT_S, Home
from tests.polling import block_until

pytestmark = [pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(300)]

#: Clients that start at the same time. Items.
CLIENTS = 8
TEXT = " ".join(f"w{number}" for number in range(1, 21))
INTERRUPTED = r"kedge: the run was interrupted \(.*\); continue with: kedge run -s s\w+ \.\.\.\n"
#: The server was stopped while the command waited for a reply or for its Run, and no other command started one.
UNREACHABLE = r"kedge: (No server is listening at|The server at .* closed the connection before answering).*\n"
NOT_IDLE = r"kedge: .*(Runs or commands are active).*\n"


def run_outcome(code: int, out: str, err: str) -> str:
    match code:
        case 0 if out == f"{TEXT}\n":
            return "completed"
        case 1 if re.search(INTERRUPTED, err) and TEXT.startswith(out.strip()):
            return "interrupted"
        case 4 if re.search(UNREACHABLE, err) and TEXT.startswith(out.strip()):
            return "unreachable"
    return f"exit {code}: {out!r} {err!r}"


def stop_outcome(code: int, out: str, err: str) -> str:
    match code:
        case 0 if out in ("stopped\n", "no server is running\n"):
            return out.strip()
        case 1 if re.fullmatch(NOT_IDLE, err):
            return "refused"
    return f"exit {code}: {out!r} {err!r}"


def is_only_server(home: Home, pid: int | None) -> bool:
    return server_pids(home) == [pid]


async def recorded(in_home: Home) -> Counter[str]:
    """Start a server, wait for the ends of all Runs, and return their outcomes."""
    outcomes = Counter[str]()
    async with Client(await find_or_start()) as client:
        workspace = await client.create_workspace(str(in_home.workspace))
        for session in await client.sessions(workspace.id):
            for run in await client.session_runs(workspace.id, session.id):
                ended = await client.wait_run(workspace.id, run.run_id, WAIT_S)
                assert ended.outcome, ended
                outcomes[ended.outcome] += 1
    return outcomes


async def test_clients_that_start_and_stop_share_one_server(in_home: Home) -> None:
    rounds = size(1, 6)
    runs, stops = Counter[str](), Counter[str]()
    with proof("G8", "commands that start a server while others stop it", "ended unexpectedly") as figure:
        for _ in range(rounds):
            prompt = "script: pause 5 | words 20"
            commands = [in_home.start_kedge("run", "--reconnect", "3", prompt) for _ in range(CLIENTS)]
            for number in count():
                if all(command.poll() is not None for command in commands):
                    break
                done = in_home.kedge("stop", *(["--force"] if number % 2 else []))
                stops[stop_outcome(done.code, done.out, done.err)] += 1
            for command in commands:
                out, err = command.communicate(timeout=WAIT_S)
                runs[run_outcome(command.returncode, out, err)] += 1
            async with Client(await find_or_start()) as client:
                pid = (await client.version()).pid
            assert lock_owner() == (True, pid)
            block_until(partial(is_only_server, in_home, pid), WAIT_S)
        assert set(runs) <= {"completed", "interrupted", "unreachable"}, runs
        assert set(stops) <= {"stopped", "no server is running", "refused"}, stops
        ends = await recorded(in_home)
        assert set(ends) <= {"completed", "interrupted"}, ends
        # A command that lost its server may have submitted its Run, which the next server continues.
        assert runs["completed"] <= ends["completed"] <= runs["completed"] + runs["unreachable"]
        assert runs["interrupted"] <= ends["interrupted"] <= runs["interrupted"] + runs["unreachable"]
        figure.count = runs.total() + stops.total()
        figure.notes |= {f"runs {name}": number for name, number in runs.items()}
        figure.notes |= {f"recorded as {name}": number for name, number in ends.items()}
        figure.notes |= {f"stops, {name}": number for name, number in stops.items()}
