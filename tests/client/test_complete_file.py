"""Files that appear under their names only when they are complete."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from kedge.client.client import Client
from kedge.client.complete_file import complete_file
from kedge.errors import Unreachable
from tests.client.standin import Asked, StandIn


@pytest.mark.found(
    "fault 11",
    "an export was in memory before it was written; it is copied to a file that gets its name when it is complete",
)
async def test_incomplete_export_leaves_no_file(tmp_path: Path) -> None:
    async def break_off(asked: Asked, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 X\r\ncontent-type: text/markdown\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"4\r\nhalf\r\n")

    target = tmp_path / "talk.md"
    target.write_text("before")

    async def export(client: Client) -> None:
        with complete_file(target) as file:
            async for piece in client.export_pieces("w", "s"):
                file.write(piece)

    async with StandIn(break_off) as standin, Client(standin.host) as client:
        with pytest.raises(Unreachable, match="aborted its reply"):
            await export(client)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_complete_file_keeps_mode_and_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    with complete_file(link) as file:
        file.write(b"after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert target.stat().st_mode & 0o777 == 0o640


def test_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with complete_file(pipe) as file:
        file.write(b"text")
    reader.join()
    assert (read, pipe.is_fifo()) == ([b"text"], True)
