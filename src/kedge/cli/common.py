"""What the commands share: exit codes, options, opening a workspace, finding a session, printing data."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from kedge.errors import KedgeError, NotFound

if TYPE_CHECKING:
    from kedge.client.client import Client
    from kedge.wire.models import SessionBody, WorkspaceBody

# Part of the contract with scripts: `kedge run --help` and the README list them.
EXIT_COMPLETED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_APPROVAL = 3
EXIT_UNREACHABLE = 4
EXIT_TIMEOUT = 124
EXIT_CANCELLED = 130

#: Letting go of a workspace on the way out is a courtesy; nobody waits long for it. Seconds.
RELEASE_S_MAX = 2.0

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def host_option(command: F) -> F:
    return click.option(
        "--host", metavar="URL", help="The server: unix:///path.sock or tcp://127.0.0.1:PORT. Default: your own."
    )(command)


def cwd_option(command: F) -> F:
    return click.option(
        "--cwd",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, resolve_path=True),
        default=".",
        help="The workspace's directory. Default: this one.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def examples(*lines: str) -> str:
    """The end of a command's help. `\\b` keeps click from joining the lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class Opened(Struct, frozen=True):
    client: Client
    workspace: WorkspaceBody

    @property
    def id(self) -> str:
        return self.workspace.id


@asynccontextmanager
async def opened(host: str | None, path: str) -> AsyncIterator[Opened]:
    """This directory's workspace, on the server at `host` or on the user's own, which is started if need be."""
    from kedge.client.client import Client
    from kedge.client.spawn import open_workspace

    async with Client(host) as client:
        workspace = await open_workspace(client, path, may_start=host is None)
        try:
            yield Opened(client, workspace)
        finally:
            with suppress(KedgeError, TimeoutError):  # it may be gone, and its claims with it
                async with asyncio.timeout(RELEASE_S_MAX):
                    await client.release_workspace(workspace.id)


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def find_session(opened: Opened, given: str) -> SessionBody:
    """The session of this workspace with this id or unique beginning of an id."""
    return one_of(given, await opened.client.sessions(opened.id), opened.workspace.path)


def one_of(given: str, sessions: list[SessionBody], where: str) -> SessionBody:
    matching = [session for session in sessions if session.id.startswith(given)]
    exact = [session for session in matching if session.id == given]
    if len(exact or matching) == 1 and given:
        return (exact or matching)[0]
    if not matching or not given:
        raise NotFound(f"no session {given!r} in {where}: `kedge sessions list` shows those there are")
    shown = ", ".join(session.id for session in matching[:5])
    raise NotFound(f"{given!r} is the beginning of {len(matching)} sessions ({shown}): write more of the id")


def print_json(data: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as needed; the last one is cut to the terminal's width, or left whole without a terminal."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    columns = _columns()
    for row in (head, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(line if columns is None or len(line) <= columns else line[: columns - 1] + "…")


def _columns() -> int | None:
    try:
        return os.get_terminal_size(1).columns or None
    except OSError:
        return None


def ago(then_ms: int) -> str:
    """How long since, in the unit that fits."""
    seconds = max(0, int(time.time() - then_ms / 1000))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
