"""The dialog with the grants: what it lists, and what `d` revokes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kedge.client.client import Client
from kedge.core.approvals import Answer
from kedge.tui.app import KedgeApp
from kedge.tui.screens.grants_screen import GrantsScreen
from kedge.wire import models as m
from tests.client.process import Server
from tests.client.standin import Asked, StandIn, json
from tests.tui import story
from tests.tui.rig import Rig, rig
from tests.tui.stage import Stage
from tests.tui.test_approvals import asked_elsewhere, bash, write


async def granted(
    server: Server, client: Client, script: str, answer: Answer, rules: tuple[str, ...] = ()
) -> m.GrantBody:
    """Cause a grant in a session of another client."""
    ask = await asked_elsewhere(server, client, f"script: {script} | say x")
    workspace = await client.create_workspace(str(server.home.workspace))
    await client.answer_permission(workspace.id, ask.id, answer, "", ask.binding, rules)
    return (await client.grants(workspace.id))[-1]


async def opened(r: Rig, *texts: str) -> None:
    await r.press("slash", *"grants", "enter")
    await r.until(lambda: isinstance(r.app.screen, GrantsScreen))
    await r.shows("d: revoke", *texts)


async def test_grants_are_listed_and_revoked(server: Server, client: Client) -> None:
    await granted(server, client, bash("python3 -m unittest"), "allow_always", ("bash(python3 -m unittest *)",))
    kept = await granted(server, client, write(), "allow_session")
    async with rig(server, size=(80, 24), session_id=kept.session_id) as r:
        by = f"now · by client {client.client_id[:4]}"
        await opened(r, f"always · {by}", f"this session · {by}")
        rules = [line.strip("│ ") for line in r.lines if "(" in line and "│" in line]
        assert rules == ["edit(**)", "bash(python3 -m unittest *)"]  # the newest first
        await r.press("down", "d")
        await r.shows("revoked: bash(python3 -m unittest *)", f"revoked · always · {by}")
        await r.press("d", "delete")  # it is revoked already
        await r.until(lambda: not r.app.is_busy)
        assert "already" not in r.text
        assert await client.grants(r.app.connection.id) == [kept]
        await r.press("escape")
        await opened(r, "edit(**)")
        assert "unittest" not in r.text


async def test_grant_revoked_elsewhere_is_reported(server: Server, client: Client) -> None:
    grant = await granted(server, client, write(), "allow_session")
    async with rig(server) as r:
        await r.press("ctrl+n")
        await r.until(lambda: r.app.session_id != grant.session_id)
        await opened(r, "session: ", "edit(**)")
        await client.forget_grant(r.app.connection.id, grant.id)
        await r.press("d")
        await r.shows("already revoked: edit(**)")


async def test_no_grants_is_an_empty_state(server: Server) -> None:
    async with rig(server) as r:
        await opened(r, "no grants")
        await r.press("d", "escape")
        await r.until(lambda: len(r.app.screen_stack) == 1)


class Slow(Stage):
    """A server that withholds the replies about grants and kept commands, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.is_asked, self.may_reply, self._fails = asyncio.Event(), asyncio.Event(), fails

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path.endswith(("/grants", "/jobs/j1")):
            self.is_asked.set()
            await self.may_reply.wait()
        if asked.path.endswith("/grants") and self._fails:
            writer.write(json(500, {"code": "store_damaged", "message": "The store is damaged."}))
            await writer.drain()
        else:
            await super().__call__(asked, writer)

    def _reply(self, asked: Asked) -> Any:
        job = {"id": "j1", "command": "make serve", "run_id": "r1", "state": "running", "started_at": 1}
        match asked.path.split("/")[1:]:
            case ["workspaces", _, "sessions"]:
                return [story.session_body() | {"jobs": [job]}]
            case ["workspaces", _, "sessions", _]:
                return story.session_body() | {"jobs": [job]}
            case [*_, "jobs", "j1"]:
                return {"job": job, "output": "x", "is_cut": False}
        return super()._reply(asked)


@pytest.mark.parametrize("command", ["grants", "jobs"])
async def test_dialog_can_be_closed_while_it_loads(command: str) -> None:
    stage = Slow()
    async with StandIn(stage) as server:
        app = KedgeApp("/w", server.host)
        async with app.run_test(notifications=True) as pilot:
            r = Rig(app, pilot)
            await r.until(lambda: app.is_following and not app.is_busy)
            await r.press("slash", *command, "enter")
            await stage.is_asked.wait()
            await r.press("escape")
            await r.until(lambda: len(app.screen_stack) == 1)
            stage.may_reply.set()
            await r.until(lambda: not app.is_busy)
            assert app.failure is None


async def test_error_is_shown_in_the_dialog() -> None:
    stage = Slow(fails=True)
    stage.may_reply.set()
    async with StandIn(stage) as server:
        app = KedgeApp("/w", server.host)
        async with app.run_test() as pilot:
            r = Rig(app, pilot)
            await r.until(lambda: app.is_following and not app.is_busy)
            await opened(r, "Cannot load the grants: The store is damaged.")
