"""Attacks by command lines on a real server: lines that take long to parse, and programs in the workspace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Server
from tests.conformance.test_attacks_permissions import needed_approval, tried_at_once
from tests.conformance.test_i_agent import call


async def answered_meanwhile(server: Server, workspace: Path, *steps: list[str]) -> int:
    """Count the replies to another client while a Run for each of `steps` calls these commands.

    Parsing a command needs no approval; running it would."""
    async with server.peer(workspace) as kedge, server.http() as other, kedge.stream():
        calls = [[call("bash", command=line) for line in lines] for lines in steps]
        runs = asyncio.gather(*(tried_at_once(kedge, *of_run) for of_run in calls))
        answers = 0
        while not runs.done():
            assert (await other.get("/v1/health")).status_code == 200
            answers += 1
        for results in runs.result():
            assert all(map(needed_approval, results))
    return answers


@pytest.mark.found(
    "attack 2",
    "a command line of 3 kB froze the whole server for 14 s; a long line is read in a process that the kernel ends",
)
async def test_a_long_command_line_does_not_block_the_server(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    line = "env " * 60 + "'-x=y=" + "a=(" * 1000 + " '"
    assert await answered_meanwhile(server, workspace, [line]) > 1
    server.terminate()  # checks the log for stalls


@pytest.mark.found(
    "attack round 2: command lines",
    "short lines of brackets took the grammar 27 ms each, and the event loop waited for several threads in turn, a "
    "third of a second; such lines are parsed in a separate process, other short ones by one thread at a time",
)
async def test_many_short_lines_do_not_block_the_server(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    full, short = "x)" * 145, "x)" * 40 + "a " * 100
    lines = [full + str(number) for number in range(4)] + [short + str(number) for number in range(36)]
    assert await answered_meanwhile(server, workspace, *[lines] * 4) > 1
    server.terminate()


@pytest.mark.found(
    "attack round 2: command lines",
    "fifty commands of 30,000 words each were compared with the deny rules on the event loop, two seconds with a "
    "hundred rules; only as many words are kept as a rule may have",
)
async def test_many_words_and_rules_do_not_block_the_server(own_server: Callable[..., Server], workspace: Path) -> None:
    rules = ", ".join(f'"bash(rm -{number} /)"' for number in range(100))
    server = own_server(f"[permissions]\ndeny = [{rules}]\n")
    line = "find " + "-exec rm " * 49 + "a " * 30_000
    assert await answered_meanwhile(server, workspace, [line]) > 1
    server.terminate()


@pytest.mark.found(
    "attack 9",
    "with an absolute PATH entry in the workspace, its own `ls`, `date` and even `bash` ran without asking; the "
    "shell and such commands are only taken from elsewhere",
)
async def test_programs_of_the_workspace_need_an_approval(
    own_server: Callable[..., Server], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = workspace / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("ls", "date", "bash", "sh", "rg", "echo"):
        (programs / name).write_text("#!/bin/sh\n/bin/touch trapped\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    commands = [call("bash", command=command) for command in ("ls", "date", "echo hi", "pwd", "whoami")]
    async with own_server().peer(workspace) as kedge:
        results = await tried_at_once(kedge, *commands, call("grep", pattern="x"), call("glob", pattern="*"))
    assert [needed_approval(result) for result in results] == [True, True, False, False, False, False, False]
    assert list(workspace.rglob("trapped")) == []
