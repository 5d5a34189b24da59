"""What an agent has read: it may change only what it knows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.tools import seen as module
from kedge.tools.base import ToolFailed
from kedge.tools.seen import SeenFiles, bind, digest

A, B = Path("/a"), Path("/b")


def test_a_file_that_was_not_read_or_has_changed_is_refused() -> None:
    seen = SeenFiles()
    with pytest.raises(ToolFailed, match=r"^a exists and was not read yet; read it first with view$"):
        seen.check(A, digest(b"1"), "a")
    seen.note(A, digest(b"1"))
    seen.check(A, digest(b"1"), "a")
    with pytest.raises(ToolFailed, match=r"^a changed since you read it; view it again$"):
        seen.check(A, digest(b"2"), "a")


def test_only_what_the_agents_own_tools_wrote_last_is_ours() -> None:
    seen = SeenFiles()
    seen.note(A, "1")
    assert not seen.wrote(A, "1")
    seen.note(A, "2", is_ours=True)
    assert seen.wrote(A, "2")
    assert not seen.wrote(A, "1")
    seen.note(A, "2")  # viewing our own content does not make it foreign
    assert seen.wrote(A, "2")
    seen.note(A, "3")
    assert not seen.wrote(A, "2")


def test_the_files_longest_not_seen_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_SEEN_MAX", 2)
    seen = SeenFiles()
    seen.note(A, "1")
    seen.note(B, "1")
    seen.note(A, "1")
    seen.note(Path("/c"), "1")
    seen.check(A, "1", "a")
    with pytest.raises(ToolFailed, match="not read yet"):
        seen.check(B, "1", "b")


async def test_a_lock_is_one_per_path_and_forgotten_when_nobody_holds_it() -> None:
    seen = SeenFiles()
    order: list[int] = []

    async def hold(number: int) -> None:
        async with seen.lock(A):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(hold(1), hold(2), hold(3))
    assert order == [1, 1, 2, 2, 3, 3]
    assert len(seen._locks) == 0
    async with seen.lock(A):
        assert not seen.lock(B).locked()


def test_a_binding_keeps_its_parts_apart() -> None:
    assert bind("ab", "c") != bind("a", "bc")
    assert bind("a", "") != bind("a")
