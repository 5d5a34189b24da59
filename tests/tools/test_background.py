"""Background commands, the jobs tool, and the excerpts of their output."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kedge.tools.background import BACKGROUND_MAX, BackgroundCommands, RunningCommand
from kedge.tools.base import ToolContext, ToolFailed, ToolOutput
from kedge.tools.head_tail import KEPT_BYTES_MAX, HeadTail
from kedge.tools.jobs import JobsTool
from tests.tools.contexts import call, make_context
from tests.tools.sessions import SessionProcesses, of_session


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ToolContext]:
    processes = SessionProcesses()
    yield make_context(tmp_path, processes=processes)
    processes.close()


async def add(context: ToolContext, command: str) -> str:
    process = await context.processes.start(("bash", "-c", command), context.root)
    return context.background.add(RunningCommand(process, command))


async def look(context: ToolContext, **given: Any) -> ToolOutput:
    return await call(JobsTool(), context, **given)


async def test_list_shows_states(context: ToolContext) -> None:
    assert (await look(context, action="list")).content == "No background commands."
    await add(context, "sleep 1000")
    failed = await add(context, "exit 2")
    await context.background.get(failed).wait(30)
    listed = (await look(context, action="list")).content
    assert listed == "b1  is running  $ sleep 1000\nb2  has ended (Exit code 2)  $ exit 2"
    await context.background.end_all()


async def test_output_is_new_since_the_last_call(context: ToolContext) -> None:
    id_ = await add(context, "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two")
    first = await look(context, action="output", id=id_, wait_s=30)
    assert first.content == "b1 is running. Its output since the last call:\none\n"
    assert (await look(context, action="output", id=id_)).content.endswith("(no output)")
    (context.root / "go").touch()
    assert (await look(context, action="output", id=id_, wait_s=30)).content.endswith("two\n")
    await context.background.get(id_).wait(30)
    over = await look(context, action="output", id=id_, wait_s=30)  # it has ended: nothing to wait for
    assert over.content.startswith("b1 has ended (Exit code 0).")


async def test_output_waits_for_the_end_of_a_silent_command(context: ToolContext) -> None:
    id_ = await add(context, "while [ ! -e go ]; do sleep 0.02; done")
    looking = asyncio.create_task(look(context, action="output", id=id_, wait_s=30))
    await asyncio.sleep(0)
    (context.root / "go").touch()
    assert "has ended" in (await looking).content


async def test_kill_ends_the_process_tree(context: ToolContext) -> None:
    id_ = await add(context, "sleep 1000 & echo up; sleep 1000")
    await context.background.get(id_).wait_for_output(30)
    killed = await look(context, action="kill", id=id_)
    assert killed.content == "b1 was ended. Its output since the last call:\nup\n"
    assert of_session(context.background.get(id_).process.pid) == []
    assert "had already ended" in (await look(context, action="kill", id=id_)).content


@pytest.mark.parametrize("action", ["output", "kill"])
async def test_unknown_id_lists_the_known_ones(context: ToolContext, action: str) -> None:
    with pytest.raises(ToolFailed, match="background command 'b7' not found; commands of this run: none"):
        await look(context, action=action, id="b7")
    await add(context, "sleep 1000")
    with pytest.raises(ToolFailed, match="commands of this run: b1"):
        await look(context, action=action, id="")
    await context.background.end_all()


async def test_end_all_leaves_no_task(context: ToolContext) -> None:
    before = asyncio.all_tasks()
    for command in ("sleep 1000", "trap '' TERM; while :; do sleep 0.05; done", "yes", "true"):
        await add(context, command)
    assert await context.background.end_all(0.1) == ()
    assert asyncio.all_tasks() == before
    assert all(of_session(running.process.pid) == [] for running in context.background.list().values())
    assert await context.background.end_all() == ()


async def test_ended_commands_are_evicted(context: ToolContext) -> None:
    for _ in range(BACKGROUND_MAX):
        await context.background.get(await add(context, "true")).wait(30)
    assert await add(context, "true") == f"b{BACKGROUND_MAX + 1}"
    assert next(iter(context.background.list())) == "b2"
    assert len(context.background.list()) == BACKGROUND_MAX
    await context.background.end_all()


async def test_strays_of_a_background_command_are_ended(context: ToolContext) -> None:
    id_ = await add(context, "sleep 1000 & echo up")
    running = context.background.get(id_)
    assert await running.wait(30)
    assert running.strays == 1
    assert of_session(running.process.pid) == []


def test_surviving_pids_are_recorded() -> None:
    background = BackgroundCommands()
    background.add_survivors((3, 1))
    background.add_survivors(())
    assert background.survivors == {1, 3}


# --- head and tail ---


def kept(*pieces: bytes, chars_max: int = 100) -> str:
    text = HeadTail()
    for piece in pieces:
        text.add(piece)
    excerpt = text.excerpt(chars_max)
    assert excerpt.is_cut == ("left out ..." in excerpt.text)
    return excerpt.text


def test_short_output_is_complete() -> None:
    assert kept(b"a\n", b"b") == "a\nb"
    assert kept() == ""
    assert kept("é€".encode()[:3], "é€".encode()[3:]) == "é€"


def test_long_output_is_cut_at_line_ends() -> None:
    lines = [f"line {number:04}\n".encode() for number in range(1000)]
    text = kept(*lines)
    head, marker, tail = text.partition("... 991 lines (")
    assert head == "line 0000\nline 0001\nline 0002\nline 0003\nline 0004\n"
    assert marker
    assert tail.endswith("bytes) left out ...\nline 0996\nline 0997\nline 0998\nline 0999\n")


@pytest.mark.found(
    "issue 20",
    "a complete output with kedge's own words about a cut looked cut to the model; a note names kedge's own",
)
def test_output_with_the_words_of_a_cut_is_not_reported_as_cut() -> None:
    words = "... 7 lines (90 bytes) left out ..."
    output = HeadTail()
    output.add(f"{words}\n".encode())
    excerpt = output.excerpt(100)
    assert not excerpt.is_cut
    assert excerpt.for_model.startswith(f"{words}\n\nThis is the complete output")
    output.add(b"x\n" * 1000)
    cut = output.excerpt(100)
    assert cut.is_cut
    (note,) = re.findall(r'Only this line is a note of kedge: "(.*)"', cut.note)
    assert (note != words, cut.text.count(note)) == (True, 1)


def test_single_long_line_is_cut() -> None:
    text = kept(b"a" * 1_000_000 + b"b" * 10)
    assert text.startswith("a" * 50 + "\n... 0 lines (")
    assert text.endswith("\n" + "a" * 40 + "b" * 10)


def test_memory_of_output_is_bounded() -> None:
    text = HeadTail()
    for number in range(2000):
        text.add(b"%d" % number + b"x" * 50_000)
    assert text.bytes_total > 100_000_000
    assert len(text._head) + len(text._tail) <= 3 * KEPT_BYTES_MAX
    assert text.excerpt(10**9).is_cut
    assert text.last_lines(5, 100) == "x" * 100


def test_last_lines_include_the_beginning() -> None:
    text = HeadTail()
    text.add(b"first\n" + b"\n".join(b"%d" % number for number in range(30)))
    assert text.last_lines(3, 4000) == "27\n28\n29"
    assert text.last_lines(100, 4000).startswith("first\n0\n")
    text.add(b"\n" + b"y" * KEPT_BYTES_MAX)
    assert text.last_lines(2, 10) == "y" * 10


class Lost:
    """A process whose keeper is lost."""

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

    async def withhold(self) -> str:
        return ""


async def test_lost_command_is_ended_by_its_tree(context: ToolContext) -> None:
    lost = Lost()
    running = RunningCommand(lost, "sleep 1000")
    with pytest.raises(ToolFailed):
        await running.wait(30)
    context.background.add(running)
    assert (running.has_ended, running.is_gone) == (True, False)
    assert await context.background.end_all() == (77,)
    assert lost.ended == 1
