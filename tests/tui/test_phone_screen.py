"""The dialog that lets a phone in."""

from __future__ import annotations

import httpx2

from kedge.client.client import Client
from kedge.tui.screens.phone_screen import PhoneScreen
from tests.client.process import Server
from tests.tui.rig import rig
from tests.tui.test_sessions import created


async def test_phone_gets_a_code_for_this_session(server: Server, client: Client) -> None:
    session, _ = await created(server, client, "Boats", "Anchors")
    async with rig(server, size=(100, 50), session_id=session.id) as r:
        await r.press("slash", *"phone", "enter")
        await r.until(lambda: isinstance(r.app.screen, PhoneScreen))
        await r.press("ctrl+a", "ctrl+k", *"no.name.invalid", "enter")
        await r.shows("The name 'no.name.invalid' has no address")
        await r.press("ctrl+a", "ctrl+k", *"127.0.0.1", "enter")
        await r.shows("It works once", "http://127.0.0.1:", "▄")
        url, _, ticket = next(line for line in r.text.split() if "#ticket=" in line).partition("/#ticket=")
    async with httpx2.AsyncClient() as http:
        reply = await http.post(f"{url}/v1/web/login", json={"ticket": ticket})
        assert reply.status_code == 200
        key = {"X-Kedge-Key": reply.json()["key"]}
        access = (await http.get(f"{url}/v1/web/access", headers=key)).json()["browser"]
    assert (access["session_id"], access["rights"]) == (session.id, "full")
