"""The models dialog: its columns, the search, and the effect of a choice."""

from __future__ import annotations

from textual.widgets import Input

from kedge.client.client import Client
from kedge.tui.screens.models_screen import ModelsScreen, offers
from kedge.wire import models as m
from tests.client.process import CONFIG, Home, Server
from tests.tui.rig import Rig, rig

MORE = """
[providers.hub]
type = "openai"
base_url = "http://127.0.0.1:1/v1"
api_key = "secret-canary-key"
models = [
    { id = "wide", context_window = 200000, input_price = 3, output_price = 15, images = true },
    { id = "narrow", context_window = 4000, input_price = 0.05, output_price = 0.4, images = false },
    { id = "\\u001b[31m大きいモデル", context_window = 1000000 },
]
"""


def configured(home: Home) -> Home:
    home.config.write_text(CONFIG.format(url=home.endpoint.url) + MORE)
    return home


def row(r: Rig, name: str) -> str:
    return next(line for line in r.lines if name in line)


async def session_model(r: Rig, client: Client) -> str:
    return (await client.session(r.app.connection.id, r.app.session_id)).model


async def test_models_show_limits_prices_and_the_current_one(own_server: Server) -> None:
    configured(own_server.home)
    async with rig(own_server) as r:
        await r.press("ctrl+l")
        await r.shows("(configured default) local/fake-large", "hub/wide", "kedge/offline")
        assert row(r, "hub/wide").split()[-6:-1] == ["hub/wide", "200k", "3.00", "15.00", "yes"]
        assert row(r, "hub/narrow").split()[-6:-1] == ["hub/narrow", "4k", "0.05", "0.40", "no"]
        assert "●" in row(r, "(configured default)")
        assert r.text.count("●") == 1
        assert "\x1b" not in r.text
        assert "\\u{1b}[31m大きいモデル" in r.text
        assert "secret-canary-key" not in r.text


async def test_typing_finds_a_model_and_enter_chooses_it(own_server: Server, own_client: Client) -> None:
    configured(own_server.home)
    async with rig(own_server) as r:
        await own_client.create_workspace(str(own_server.home.workspace))
        await r.press("ctrl+l")
        await r.shows("hub/wide")
        await r.press(*"HUB", "space", *"narr")
        await r.shows_no("hub/wide")
        await r.press("enter")
        await r.until(lambda: "hub/narrow" in r.lines[0])
        assert await session_model(r, own_client) == "hub/narrow"
        await r.press("ctrl+l")
        await r.shows("hub/wide")
        assert "●" in row(r, "hub/narrow  ")
        await r.press("pageup", "enter")  # the first entry: the configured default
        await r.until(lambda: "local/fake-large" in r.lines[0])
        assert await session_model(r, own_client) == ""


async def test_tab_changes_the_effort(server: Server, client: Client) -> None:
    async with rig(server) as r:
        await client.create_workspace(str(server.home.workspace))
        await r.press("ctrl+l")
        await r.shows("effort: default", "kedge/offline")
        await r.press("shift+tab")
        await r.shows("effort: high")
        await r.press("tab", "tab")
        await r.shows("effort: low")
        await r.press("enter")
        await r.until(lambda: "effort low" in r.lines[0])
        session = await client.session(r.app.connection.id, r.app.session_id)
        assert (session.model, session.effort) == ("", "low")
        await r.press("ctrl+l")
        await r.shows("effort: low", "kedge/offline")
        await r.press("shift+tab", "escape")
        await r.shows_no("Model of this session")
        assert "effort low" in r.lines[0]


async def test_esc_closes_the_dialog_and_stops_nothing(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: hold never-said | say x")
        await r.shows("working")
        await r.press("ctrl+l")
        await r.shows("Model of this session")
        await r.press("down", "escape")
        await r.shows_no("Model of this session")
        active = r.app.view.active(r.app.session_id)
        assert active is not None
        assert not active.stopping
        session = r.app.view.session(r.app.session_id)
        assert session is not None
        assert session.model == ""
        await r.press("escape")
        await r.shows("■ cancelled")


async def test_unlisted_model_can_be_typed(server: Server) -> None:
    async with rig(server) as r:
        await r.press("ctrl+l")
        await r.shows("kedge/offline")
        await r.press(*"local/of-tomorrow")
        await r.shows("use local/of-tomorrow")
        await r.press("enter")
        await r.until(lambda: "local/of-tomorrow" in r.lines[0])
        await r.press("ctrl+l")
        await r.shows("kedge/offline")
        assert "●" in row(r, "  local/of-tomorrow") or "●" in row(r, "● local/of-tomorrow")


async def test_search_without_match_chooses_nothing(server: Server) -> None:
    async with rig(server) as r:
        await r.press("ctrl+l")
        await r.shows("kedge/offline")
        await r.press(*"zzz")
        await r.shows_no("kedge/offline")
        await r.press("enter")
        assert isinstance(r.app.screen, ModelsScreen)


async def test_dialog_explains_how_to_add_a_provider(own_server: Server) -> None:
    own_server.home.config.write_text("")
    for size in ((100, 30), (60, 16)):
        async with rig(own_server, size=size) as r:
            await r.press("ctrl+l")
            await r.shows("kedge/offline", "No provider is configured", "config.toml", "OPENAI_API_KEY")
            assert "(configured default) kedge/offline" in r.text


async def test_dialog_fits_a_small_screen_and_resizes(own_server: Server) -> None:
    configured(own_server.home)
    async with rig(own_server, size=(60, 16)) as r:
        await r.press("ctrl+l")
        await r.shows("hub/wide", "200k")
        assert row(r, "hub/wide").split()[-6:-1] == ["hub/wide", "200k", "3.00", "15.00", "yes"]
        await r.pilot.resize_terminal(100, 30)
        await r.until(lambda: row(r, "hub/wide").index("200k") > 60)


async def test_click_chooses_a_model(own_server: Server) -> None:
    configured(own_server.home)
    async with rig(own_server) as r:
        await r.press("ctrl+l")
        await r.shows("hub/wide")
        y = next(index for index, line in enumerate(r.lines) if "hub/wide" in line)
        await r.pilot.click(offset=(r.lines[y].index("hub/wide"), y))
        await r.until(lambda: "hub/wide" in r.lines[0])


async def test_models_load_when_the_server_is_back(own_server: Server) -> None:
    async with rig(own_server) as r:
        own_server.kill()
        await r.press("ctrl+l")
        await r.until(lambda: isinstance(r.app.screen, ModelsScreen))
        assert r.app.screen.query_one(Input).has_focus
        own_server.start()
        await r.shows("(configured default)")


def test_default_is_first_and_current_model_is_listed() -> None:
    models = [m.ModelBody(model="a/x", provider="a"), m.ModelBody(model="a/y", provider="a", is_default=True)]
    assert list(offers(models, "gone/z", "")) == ["", "gone/z", "a/x", "a/y"]
    assert list(offers(models, "", "Y a")) == ["", "a/y"]
    assert list(offers(models, "", "b/q")) == ["b/q"]
    assert list(offers(models, "", "q")) == []
