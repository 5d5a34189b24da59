"""The files that an agent has read, and may therefore change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.tools import known_files as module
from kedge.tools.base import ToolFailed
from kedge.tools.known_files import KnownFiles, bind, digest

A, B = Path("/a"), Path("/b")


def test_unread_or_changed_file_is_refused() -> None:
    known_files = KnownFiles()
    with pytest.raises(ToolFailed, match=r"^a exists and was not read yet; view it first$"):
        known_files.check(A, digest(b"1"), "a")
    known_files.note(A, digest(b"1"))
    known_files.check(A, digest(b"1"), "a")
    with pytest.raises(ToolFailed, match=r"^a changed since you read it; view it again$"):
        known_files.check(A, digest(b"2"), "a")


def test_only_content_of_our_tools_is_ours() -> None:
    known_files = KnownFiles()
    known_files.note(A, "1")
    assert not known_files.wrote(A, "1")
    known_files.note(A, "2", is_ours=True)
    assert known_files.wrote(A, "2")
    assert not known_files.wrote(A, "1")
    known_files.note(A, "2")  # viewing our own content does not make it foreign
    assert known_files.wrote(A, "2")
    known_files.note(A, "3")
    assert not known_files.wrote(A, "2")


def test_least_recently_used_files_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_FILES_MAX", 2)
    known_files = KnownFiles()
    known_files.note(A, "1")
    known_files.note(B, "1")
    known_files.note(A, "1")
    known_files.note(Path("/c"), "1")
    known_files.check(A, "1", "a")
    with pytest.raises(ToolFailed, match="not read yet"):
        known_files.check(B, "1", "b")


async def test_one_lock_per_path_while_it_is_held() -> None:
    known_files = KnownFiles()
    order: list[int] = []

    async def hold(number: int) -> None:
        async with known_files.lock(A):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(hold(1), hold(2), hold(3))
    assert order == [1, 1, 2, 2, 3, 3]
    assert len(known_files._locks) == 0
    async with known_files.lock(A):
        assert not known_files.lock(B).locked()


def test_binding_separates_its_parts() -> None:
    assert bind("ab", "c") != bind("a", "bc")
    assert bind("a", "") != bind("a")
