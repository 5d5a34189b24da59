"""Commands in the background, the jobs tool, and the text they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kedge.tools.background import BACKGROUND_MAX, Background, Running
from kedge.tools.base import Output, Place, ToolFailed
from kedge.tools.shell import LookTool
from kedge.tools.tail import KEPT_BYTES_MAX, HeadTail
from tests.tools.place import call, make_place
from tests.tools.sessions import SessionProcesses, of_session


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    processes = SessionProcesses()
    yield make_place(tmp_path, processes=processes)
    processes.close()


async def add(place: Place, command: str) -> str:
    process = await place.processes.start(("bash", "-c", command), place.root)
    return place.background.add(Running(process, command))


async def look(place: Place, **given: Any) -> Output:
    return await call(LookTool(), place, **given)


async def test_they_are_listed_with_how_they_stand(place: Place) -> None:
    assert (await look(place, action="list")).content == "No commands in the background."
    await add(place, "sleep 1000")
    failed = await add(place, "exit 2")
    await place.background.get(failed).wait(30)
    listed = (await look(place, action="list")).content
    assert listed == "b1  is running  $ sleep 1000\nb2  is over (Exit code 2)  $ exit 2"
    await place.background.end_all()


async def test_output_is_what_is_new_since_the_last_look(place: Place) -> None:
    id_ = await add(place, "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two")
    first = await look(place, action="output", id=id_, wait_s=30)
    assert first.content == "b1 is running. Its output since the last look:\none\n"
    assert (await look(place, action="output", id=id_)).content.endswith("(no output)")
    (place.root / "go").touch()
    assert (await look(place, action="output", id=id_, wait_s=30)).content.endswith("two\n")
    await place.background.get(id_).wait(30)
    over = await look(place, action="output", id=id_, wait_s=30)  # it is over: there is nothing to wait for
    assert over.content.startswith("b1 is over (Exit code 0).")


async def test_a_look_waits_for_the_end_of_a_silent_command(place: Place) -> None:
    id_ = await add(place, "while [ ! -e go ]; do sleep 0.02; done")
    looking = asyncio.create_task(look(place, action="output", id=id_, wait_s=30))
    await asyncio.sleep(0)
    (place.root / "go").touch()
    assert "is over" in (await looking).content


async def test_one_is_killed_with_all_it_started(place: Place) -> None:
    id_ = await add(place, "sleep 1000 & echo up; sleep 1000")
    await place.background.get(id_).wait_for_news(30)
    killed = await look(place, action="kill", id=id_)
    assert killed.content == "b1 was ended. Its output since the last look:\nup\n"
    assert of_session(place.background.get(id_).process.pid) == []
    assert "was over already" in (await look(place, action="kill", id=id_)).content


@pytest.mark.parametrize("action", ["output", "kill"])
async def test_an_unknown_one_is_told_with_those_there_are(place: Place, action: str) -> None:
    with pytest.raises(ToolFailed, match="no background command 'b7'; those of this run: there are none"):
        await look(place, action=action, id="b7")
    await add(place, "sleep 1000")
    with pytest.raises(ToolFailed, match="those of this run: b1"):
        await look(place, action=action, id="")
    await place.background.end_all()


async def test_all_end_at_once_and_no_task_is_left(place: Place) -> None:
    before = asyncio.all_tasks()
    for command in ("sleep 1000", "trap '' TERM; while :; do sleep 0.05; done", "yes", "true"):
        await add(place, command)
    assert await place.background.end_all(0.1) == ()
    assert asyncio.all_tasks() == before
    assert all(of_session(running.process.pid) == [] for running in place.background.list().values())
    assert await place.background.end_all() == ()


async def test_those_that_are_over_make_room(place: Place) -> None:
    for _ in range(BACKGROUND_MAX):
        await place.background.get(await add(place, "true")).wait(30)
    assert await add(place, "true") == f"b{BACKGROUND_MAX + 1}"
    assert next(iter(place.background.list())) == "b2"
    assert len(place.background.list()) == BACKGROUND_MAX
    await place.background.end_all()


async def test_what_a_background_command_leaves_behind_is_ended(place: Place) -> None:
    id_ = await add(place, "sleep 1000 & echo up")
    running = place.background.get(id_)
    assert await running.wait(30)
    assert running.strays == 1
    assert of_session(running.process.pid) == []


def test_pids_that_are_left_are_kept() -> None:
    background = Background()
    background.left((3, 1))
    background.left(())
    assert background.left_pids == {1, 3}


# --- head and tail ---


def kept(*pieces: bytes, chars_max: int = 100) -> str:
    text = HeadTail()
    for piece in pieces:
        text.add(piece)
    return text.text(chars_max)


def test_a_short_text_is_whole() -> None:
    assert kept(b"a\n", b"b") == "a\nb"
    assert kept() == ""
    assert kept("é€".encode()[:3], "é€".encode()[3:]) == "é€"


def test_a_long_text_says_what_is_left_out_between_whole_lines() -> None:
    lines = [f"line {number:04}\n".encode() for number in range(1000)]
    text = kept(*lines)
    head, marker, tail = text.partition("... 991 lines (")
    assert head == "line 0000\nline 0001\nline 0002\nline 0003\nline 0004\n"
    assert marker
    assert tail.endswith("bytes) left out ...\nline 0996\nline 0997\nline 0998\nline 0999\n")


def test_one_long_line_is_cut_inside() -> None:
    text = kept(b"a" * 1_000_000 + b"b" * 10)
    assert text.startswith("a" * 50 + "\n... 0 lines (")
    assert text.endswith("\n" + "a" * 40 + "b" * 10)


def test_memory_stays_bounded_whatever_is_written() -> None:
    text = HeadTail()
    for number in range(2000):
        text.add(b"%d" % number + b"x" * 50_000)
    assert text.bytes_total > 100_000_000
    assert len(text._head) + len(text._tail) <= 3 * KEPT_BYTES_MAX
    assert not text.is_whole
    assert text.last_lines(5, 100) == "x" * 100


def test_last_lines_reach_back_into_the_beginning() -> None:
    text = HeadTail()
    text.add(b"first\n" + b"\n".join(b"%d" % number for number in range(30)))
    assert text.last_lines(3, 4000) == "27\n28\n29"
    assert text.last_lines(100, 4000).startswith("first\n0\n")
    text.add(b"\n" + b"y" * KEPT_BYTES_MAX)
    assert text.last_lines(2, 10) == "y" * 10


class Lost:
    """A process of whose end nobody can tell any more."""

    pid = 1

    def __init__(self) -> None:
        self.ended = 0

    async def read(self) -> bytes:
        return b""

    async def wait(self) -> int:
        raise ToolFailed("the keeper was lost")

    async def alive(self) -> int:
        raise ToolFailed("the keeper was lost")

    async def end(self, grace_s: float) -> tuple[int, ...]:
        self.ended += 1
        return (77,)


async def test_a_command_whose_keeper_was_lost_is_over_and_its_tree_is_looked_for(place: Place) -> None:
    lost = Lost()
    running = Running(lost, "sleep 1000")
    with pytest.raises(ToolFailed):
        await running.wait(30)
    place.background.add(running)
    assert (running.is_over, running.is_gone) == (True, False)
    assert await place.background.end_all() == (77,)
    assert lost.ended == 1
