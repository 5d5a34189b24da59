"""Command lines that run without an approval, executed: they change no file, open no connection, print no credential.

They run twice: in the sandbox for read-only commands, and without any sandbox, since the table alone must hold."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kedge.config.schema import Config
from kedge.engine.sandbox import OwnFiles
from kedge.engine.tool_processes import WardenMachine
from kedge.tools.file_threads import FileThreads
from kedge.warden.base import WardenFailed
from kedge.warden.warden import Warden
from proof.figures import IS_LONG, proof, size
from tests.fuzz.random_reads import corpus_lines, make_canary, random_read
from tests.fuzz.seeds import name_of, parts, replay
from tests.tools.test_read_only import around, checked, lines_of

#: Lines that pass, per seed.
EACH = 20
#: Time for the lines of a seed. Seconds.
SEED_S = 120

_STRACE = shutil.which("strace")
_CONNECTION = re.compile(r"socket\(AF_(?!UNIX|NETLINK)|connect\(\d+, \{sa_family=AF_(?!UNIX)")


def state_of(base: Path) -> dict[str, tuple[int, ...]]:
    """Everything about the files below a directory, except for the time of the last reading."""
    state: dict[str, tuple[int, ...]] = {}
    for directory, names, files in os.walk(base):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            info = os.lstat(path)
            state[path] = (info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_uid)
    return state


def run_plainly(texts: list[str], root: Path, trace: Path) -> str:
    """Run lines without a sandbox. Return the network calls that were seen, and the lines that print credentials."""
    output = trace.with_name("output")
    output.unlink(missing_ok=True)
    script = "\n".join(f"( {text}\n) >>{output} 2>&1 </dev/null" for text in texts)
    traced = [_STRACE, "-f", "-qq", "-e", "trace=socket,connect", "-o", str(trace)] if _STRACE else []
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(root.parent), "LC_ALL": "C.UTF-8"}
    subprocess.run([*traced, "bash", "-c", script], cwd=root, env=environment, check=False, timeout=SEED_S)
    calls = trace.read_text() if trace.exists() else ""
    seen = [line for line in calls.splitlines() if _CONNECTION.search(line)]
    return "\n".join([*seen, *(["a credential was printed"] if b"SECRET=1" in output.read_bytes() else [])])


async def run_confined(texts: list[str], root: Path) -> None:
    """Run lines as the server does."""
    own = [root.parent / "own" / name for name in ("config", "data", "run")]
    machine = WardenMachine(Warden(), OwnFiles(str(own[0]), False, str(own[1]), str(own[2])))
    try:
        processes = await machine.processes(Config(), str(root), FileThreads(""))
        script = "\n".join(f"( {text}\n) >/dev/null 2>&1 </dev/null" for text in texts)
        process = await processes.start(("bash", "-c", script), root, confinement="read_only")
        while await process.read():
            pass
        await process.end(0)
    finally:
        await machine.close()


@pytest.mark.proof
@pytest.mark.timeout(3600 if IS_LONG else 240)
@pytest.mark.parametrize("seeds", parts(5, 300, 50), ids=name_of)
async def test_lines_that_pass_change_nothing(tmp_path: Path, seeds: range) -> None:
    base = tmp_path / "base"
    for name in ("own/config", "own/data", "own/run"):
        (base / name).mkdir(parents=True)
    root = make_canary(base)
    corpus = corpus_lines()
    with proof(
        "G14", "read-only command lines that ran without an approval", "wrote, connected or printed a credential"
    ) as figure:
        for seed in seeds:
            rng = random.Random(seed)
            lines: list[tuple[str, str]] = []
            while len(lines) < EACH:
                line = random_read(rng, corpus)
                result = checked(line, around(root))
                if result is not None and all(result.parts):
                    lines.append((line, result.text))
            figure.count += len(lines)
            texts = [text for _, text in lines]
            before = state_of(base)
            connections = run_plainly(texts, root, tmp_path / "trace")
            after = state_of(base)
            if before != after or connections:
                figure.wrong += 1
                changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
                shown = "\n".join(line for line, _ in lines)
                pytest.fail(f"{changed} {connections}\n{shown}\n{replay('test_read_only_lines.py', seed)}")
            try:
                await run_confined(texts, root)
            except WardenFailed:
                continue  # no sandbox on this machine
            figure.notes["also in the sandbox"] = figure.count
            assert state_of(base) == before, replay("test_read_only_lines.py", seed)
        figure.notes["with system calls traced"] = figure.count if _STRACE else 0
    if not _STRACE:
        pytest.skip("strace is not installed: the lines changed nothing, but their connections were not traced")


def test_checked_line_prints_the_same_output(tmp_path: Path) -> None:
    base = tmp_path / "base"
    root = make_canary(base)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(base), "LC_ALL": "C.UTF-8", "GIT_PAGER": "cat"}
    lines = lines_of("lines_that_pass.txt")
    different = []
    for line in random.Random(4).sample(lines, size(60, len(lines))):
        result = checked(line, around(root))
        if result is None or not all(result.parts) or "sleep" in line or "du " in line or "df" in line:
            continue  # the programs of other tests, and figures that change
        if "stash show" in line:
            continue  # without a stash it has another exit code
        outputs = [
            subprocess.run(["bash", "-c", text], cwd=root, env=environment, capture_output=True, check=False, input=b"")
            for text in (line, result.text)
        ]
        # Messages begin with the name of the program, here with its directory.
        plain = [(output.returncode, output.stdout.replace(b"/usr/bin/", b"")) for output in outputs]
        if plain[0] != plain[1]:
            different.append((line, result.text, *outputs))
    assert different == []
