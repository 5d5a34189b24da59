"""Opening a workspace, and finding one of its items by an abbreviated id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar

import click
from msgspec import Struct

from kedge.client.client import Client
from kedge.client.http_transport import NotConnected
from kedge.client.local_server import find_or_start, find_running, open_workspace
from kedge.client.safe_text import one_line
from kedge.errors import KedgeError, NotFound
from kedge.wire.models import SessionBody, WorkspaceBody

#: Limit for releasing the workspace on exit. The server also releases it without this request. Seconds.
RELEASE_S_MAX = 2.0


class OpenWorkspace(Struct, frozen=True):
    client: Client
    workspace: WorkspaceBody

    @property
    def id(self) -> str:
        return self.workspace.id


class HasId(Protocol):
    id: str


T = TypeVar("T", bound=HasId)


def print_progress(text: str) -> None:
    """Print what the command waits for."""
    click.echo(f"kedge: {text} ...", err=True)


def print_config_problem() -> None:
    """Print why a configuration file is not valid, if so. For commands that open no workspace: that reports it."""
    from kedge.cli.config_files import config_problem  # slow to import, and `kedge run` does not need it

    if problem := config_problem():
        print_warning(problem)


def print_warning(text: str) -> None:
    click.echo(f"kedge: {one_line(text, 1000)}", err=True)


@asynccontextmanager
async def opened(
    host: str | None,
    path: str,
    notify: Callable[[str], None] = print_progress,
    warn: Callable[[str], None] = print_warning,
) -> AsyncIterator[OpenWorkspace]:
    """Open this directory on the server at `host`, or on the user's own server, which is started if necessary."""
    async with Client(host) as client:
        client.restart = None if host else partial(find_or_start, notify)
        workspace = await open_workspace(client, path, may_start=host is None, notify=notify)
        if workspace.config_problem:
            warn(workspace.config_problem)
        try:
            yield OpenWorkspace(client, workspace)
        finally:
            with suppress(KedgeError, TimeoutError):  # the server may be gone, and the claim with it
                async with asyncio.timeout(RELEASE_S_MAX):
                    await client.release_workspace(workspace.id)


@asynccontextmanager
async def connected(host: str | None) -> AsyncIterator[Client]:
    """Connect to the server at `host`, or to the user's own server if it is running; else raise NotConnected."""
    if host is None:
        print_config_problem()
    async with Client(host) as client:
        if host is None and await find_running(print_progress) is None:
            raise NotConnected("No server is running.")
        yield client


@asynccontextmanager
async def connected_or_started(host: str | None) -> AsyncIterator[Client]:
    """Connect to the server at `host`, or to the user's own server, which is started if necessary."""
    if host is None:
        print_config_problem()
    async with Client(host or await find_or_start(print_progress)) as client:
        # The server may exit before the first request, if it was idle.
        client.restart = None if host else partial(find_or_start, print_progress)
        yield client


async def find_session(opened: OpenWorkspace, prefix: str) -> SessionBody:
    """Return the session of this workspace with this id or unique prefix of an id."""
    return session_by_prefix(prefix, await opened.client.sessions(opened.id), opened.workspace.path)


def session_by_prefix(prefix: str, sessions: Sequence[SessionBody], path: str) -> SessionBody:
    missing = f"Session {prefix!r} not found in {path}. List sessions with: kedge sessions list"
    return by_prefix(prefix, sessions if prefix else (), missing)


def by_prefix(prefix: str, items: Sequence[T], missing: str) -> T:
    """Return the item whose id is `prefix`, or the only one whose id begins with it. `missing` is the error text."""
    matching = [item for item in items if item.id.startswith(prefix)]
    exact = [item for item in matching if item.id == prefix]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if not matching:
        raise NotFound(missing)
    ids = ", ".join(item.id for item in matching[:5])
    raise NotFound(f"{prefix!r} is ambiguous ({ids}). Give more of the id.")
