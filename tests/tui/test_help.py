"""The help: lists all bound keys, on every screen size."""

from __future__ import annotations

import pytest
from textual.containers import VerticalScroll

from kedge.tui.key_bindings import KEYS, QUEUE_KEYS, SESSION_KEYS, TYPED, key_name
from kedge.tui.screens.help_screen import HelpScreen, groups, halves
from tests.client.process import Server
from tests.tui.rig import Rig, rig


async def opened(r: Rig, key: str) -> None:
    await r.press(key)
    await r.until(lambda: isinstance(r.app.screen, HelpScreen))
    await r.shows("Keys and commands")


def test_help_lists_all_keys_and_commands() -> None:
    lines = [line for _, group in groups() for line in group]
    descriptions = {text for _, text in lines}
    assert descriptions >= {key.description for key in KEYS} | {text for _, text in TYPED}
    assert descriptions >= {text for _, _, text in (*QUEUE_KEYS, *SESSION_KEYS)}
    keys = " ".join(key for key, _ in lines)
    assert all(key_name(key) in keys for one in KEYS for key in one.keys.split(","))
    assert all(f"/{key.command}" in keys for key in KEYS if key.command)


def test_columns_contain_each_group_once() -> None:
    left, right = halves(groups())
    assert [*left, *right] == groups()
    assert left
    assert right


@pytest.mark.parametrize("key", ["f1", "question_mark"])
async def test_help_opens_by_its_keys_and_closes_by_esc(server: Server, key: str) -> None:
    async with rig(server) as r:
        await opened(r, key)
        await r.press("escape")
        await r.until(lambda: len(r.app.screen_stack) == 1)
        assert r.prompt == ""


async def test_small_screen_can_scroll_to_all_of_the_help(server: Server) -> None:
    async with rig(server, size=(60, 16)) as r:
        await opened(r, "f1")
        seen = r.text
        box = r.app.screen.query_one(VerticalScroll)
        while box.scroll_offset.y < box.max_scroll_y:
            before = box.scroll_offset.y
            await r.press("pagedown")
            await r.until(lambda before=before: box.scroll_offset.y > before)  # type: ignore[misc]
            seen += r.text
        words = set(seen.split())
        for key in KEYS:
            assert set(key.description.split()) <= words, key.description


async def test_wide_screen_has_two_columns(server: Server) -> None:
    async with rig(server, size=(140, 60)) as r:
        await opened(r, "f1")
        left, right = (column[0][0] for column in halves(groups()))
        assert any(left in line and right in line for line in r.lines)


async def test_click_closes_the_help(server: Server) -> None:
    async with rig(server) as r:
        await opened(r, "f1")
        await r.pilot.click(offset=(50, 15))
        await r.until(lambda: len(r.app.screen_stack) == 1)
