"""Processes that carry a mark, and a look at the machine from outside: who is alive with this mark?"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from kedge.warden.base import MechanismChoice, ProcessSpec
from kedge.warden.warden_process import WardenProcess

MECHANISMS: tuple[MechanismChoice, ...] = ("pid namespace", "user namespace", "subreaper")
PYTHON = (sys.executable, "-I", "-S", "-c")
PATH = os.environ.get("PATH", os.defpath)


def new_mark() -> str:
    return f"mark-{uuid.uuid4().hex}"


def spec(*argv: str, mark: str = "", **more: object) -> ProcessSpec:
    given: dict[str, object] = {"cwd": "/", "env": {"PATH": PATH, **({"KEDGE_MARK": mark} if mark else {})}, **more}
    return ProcessSpec(argv, **given)  # type: ignore[arg-type]


def marked(mark: str) -> list[int]:
    """Return the live processes with this mark in environment or command line. (Zombies have neither.)"""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        for file in ("environ", "cmdline"):
            try:
                if mark.encode() in Path(f"/proc/{entry}/{file}").read_bytes():
                    found.append(int(entry))
                    break
            except OSError:
                continue
    return found


def is_alive(pid: int) -> bool:
    try:
        return state_of(pid) not in "ZX"
    except OSError:
        return False


def state_of(pid: int) -> str:
    """ "R" runs, "S" sleeps, "Z" is a zombie."""
    return _stat(pid)[0]


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def read_until(process: WardenProcess, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        data = await process.read()
        assert data, f"the stream ended after {seen!r}"
        seen += data
    return seen


async def read_all(process: WardenProcess) -> bytes:
    seen = b""
    while data := await process.read():
        seen += data
    return seen
