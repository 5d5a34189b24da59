"""The connection to the server: lost and resumed, with the server restarted or killed, and shared by clients."""

from __future__ import annotations

import asyncio

from kedge.client.client import Client
from tests.client.process import Server
from tests.tui.rig import rig


async def test_server_restart_loses_and_repeats_nothing(own_server: Server) -> None:
    async with rig(own_server) as r:
        await r.send("script: say before the restart")
        await r.shows("before the restart", "enter: send")
        await asyncio.to_thread(own_server.stop)
        await r.shows("connection lost")
        await r.send("script: say after the restart")  # it waits for the server
        await asyncio.to_thread(own_server.start)
        await r.shows("after the restart")
        await r.shows_no("connection lost")
        assert r.text.count("▌ script: say before") == 1
        assert r.text.count("▌ script: say after") == 1


async def test_answer_continues_after_the_server_is_killed(own_server: Server) -> None:
    async with rig(own_server) as r:
        await r.send("script: say one two three | hold k1 | say four five")
        await r.shows("one two three")
        await asyncio.to_thread(own_server.kill)
        await r.shows("connection lost")
        own_server.home.endpoint.release("k1")
        await asyncio.to_thread(own_server.start)
        await r.shows("four five")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        assert r.text.count("▌ script:") == 1


async def test_session_opened_mid_answer_shows_each_word_once(server: Server, client: Client) -> None:
    async with rig(server) as first:
        await first.send("script: say alpha beta | hold k2 | say gamma delta")
        await first.shows("alpha beta")
        async with rig(server) as second:
            await second.shows("alpha beta", "working")
            server.home.endpoint.release("k2")
            for r in (first, second):
                await r.shows("alpha beta gamma delta")
                await r.until(lambda r=r: r.app.view.active(r.app.session_id) is None)  # type: ignore[misc]
                assert r.text.count("gamma") == 2  # in the prompt, and in the answer


async def test_session_opened_before_the_answer_streams_it(server: Server) -> None:
    async with rig(server) as first:
        await first.send("script: hold k3 | say alpha | hold k4 | say beta")
        await first.shows("working")
        async with rig(server) as second:
            await second.shows("working")
            server.home.endpoint.release("k3")
            await second.until(lambda: second.text.count("alpha") == 2)
            server.home.endpoint.release("k4")
            await second.until(lambda: second.text.count("beta") == 2)


async def test_start_shows_the_last_session(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: say remember me")
        await r.shows("enter: send")
        await r.until(lambda: r.text.count("remember me") == 2)
    async with rig(server) as r:
        await r.until(lambda: r.text.count("remember me") == 2)


async def test_two_clients_of_a_session_see_each_other(server: Server) -> None:
    async with rig(server) as first, rig(server) as second:
        assert first.app.session_id == second.app.session_id
        await first.send("script: say from the first")
        await second.shows("from the first")
        await first.shows("2 clients")
