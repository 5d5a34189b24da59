"""One process: what it gets, what comes back, and what it costs the server and the keeper."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kedge.warden.base import ExitStatus, ProcessFailed, ProcessSpec, WardenFailed
from kedge.warden.warden import Warden
from kedge.warden.warden_process import WardenProcess
from tests.polling import until
from tests.warden.support import MECHANISMS, PATH, PYTHON, is_alive, marked, new_mark, read_all, read_until, spec


async def output_of(warden: Warden, *argv: str, **more: Any) -> str:
    process = await warden.run(spec(*argv, **more))
    seen = await read_all(process)
    await process.end(0)
    return seen.decode(errors="surrogateescape")


async def test_the_environment_is_exactly_the_given_one(warden: Warden) -> None:
    given = {"PATH": PATH, "NAME": "a value\nof two lines", "ODD": os.fsdecode(b"\xff\xfe"), "EMPTY": ""}
    seen = await output_of(warden, "env", "-0", env=given)
    assert sorted(seen.split("\0")) == sorted(["", *(f"{name}={value}" for name, value in given.items())])


async def test_the_keeper_itself_has_no_environment_a_tool_could_read(warden: Warden) -> None:
    assert Path(f"/proc/{warden.keeper_pid}/environ").read_bytes() == b""


async def test_a_process_gets_three_descriptors_and_its_directory(warden: Warden, tmp_path: Path) -> None:
    program = "import os; print(os.getcwd(), *sorted(os.listdir('/proc/self/fd')))"
    # The fourth is the listing itself.
    assert await output_of(warden, *PYTHON, program, cwd=str(tmp_path)) == f"{tmp_path} 0 1 2 3\n"
    assert await output_of(warden, "readlink", "/proc/self/fd/0") == "/dev/null\n"


@pytest.mark.found(
    "attack: a directory that is swapped for a link and back",
    "a search, or a command's directory, was entered by its path after it had been judged: one that was a link just "
    "then led elsewhere, and the look afterwards saw nothing of it; no link is followed on the way now",
)
@pytest.mark.parametrize("below", ["", "/deeper"])
async def test_a_directory_that_has_become_a_link_is_not_entered(warden: Warden, tmp_path: Path, below: str) -> None:
    (tmp_path / "outside" / "deeper").mkdir(parents=True)
    (tmp_path / "judged").symlink_to("outside")
    directory = f"{tmp_path}/judged{below}"
    with pytest.raises(ProcessFailed, match=f"the directory {directory} cannot be entered: Not a directory"):
        await output_of(warden, "pwd", cwd=directory)


#: Signals 32 and 33 belong to the C library, whose posix_spawn ignores them in the child. No program can set them.
C_LIBRARY_SIGNALS = 0b11 << 31


async def test_a_process_begins_with_a_clean_slate(warden: Warden) -> None:
    fields = dict(
        line.split(":\t", 1)
        for line in (await output_of(warden, "cat", "/proc/self/status")).splitlines()
        if "\t" in line
    )
    signals = {name: int(fields[name], 16) & ~C_LIBRARY_SIGNALS for name in ("SigBlk", "SigIgn", "SigCgt")}
    assert set(signals.values()) == {0}
    assert fields["NoNewPrivs"] == "0"
    before = os.umask(0o22)
    os.umask(before)
    assert fields["Umask"] == f"{before:04o}"
    limits = await output_of(warden, "cat", "/proc/self/limits")
    assert next(line for line in limits.splitlines() if "core file" in line).split()[4:6] == ["0", "0"]


async def test_a_process_leads_its_own_session_without_a_terminal(warden: Warden) -> None:
    program = "import os; print(os.getsid(0) == os.getpid() == os.getpgrp()); open('/dev/tty')"
    seen = await output_of(warden, *PYTHON, program)
    assert "True\n" in seen
    assert "No such device or address" in seen


async def test_the_pid_is_the_one_the_server_sees(warden: Warden) -> None:
    mark = new_mark()
    process = await warden.run(spec("sleep", "1000", mark=mark))
    assert marked(mark) == [process.pid]
    os.kill(process.pid, signal.SIGINT)
    assert await process.wait() == ExitStatus(None, signal.SIGINT)


async def test_proc_inside_is_that_of_the_process(warden: Warden) -> None:
    assert (
        await output_of(warden, *PYTHON, "import os; print(os.readlink('/proc/self') == str(os.getpid()))") == "True\n"
    )


async def test_output_and_error_keep_their_order(warden: Warden) -> None:
    script = "for i in 1 2 3; do echo out$i; echo err$i >&2; done"
    assert await output_of(warden, "sh", "-c", script) == "out1\nerr1\nout2\nerr2\nout3\nerr3\n"


async def test_standard_input_is_nothing_or_a_file_or_a_pipe(warden: Warden, tmp_path: Path) -> None:
    assert await output_of(warden, "cat") == ""
    large = "line\n" * 100_000
    (tmp_path / "large").write_text(large)
    with open(tmp_path / "large", "rb") as file:  # noqa: ASYNC230
        assert await output_of(warden, "cat", stdin=file) == large
        assert file.tell() == len(large)  # it is the same open file, and still ours

    process = await warden.run(spec("cat", stdin="pipe"))
    writing = asyncio.create_task(process.write(large.encode()))  # more than both pipes hold
    await read_until(process, b"line\n" * 1000)
    seen = asyncio.create_task(read_all(process))
    await writing
    process.close_stdin()
    assert (await seen).endswith(b"line\n")
    assert await process.wait() == ExitStatus(0, None)


async def test_writing_to_one_that_does_not_read_is_refused(warden: Warden) -> None:
    process = await warden.run(spec("true", stdin="pipe"))
    await process.wait()
    with pytest.raises(ProcessFailed):
        await process.write(b"x" * 1_000_000)
    with pytest.raises(ProcessFailed):
        await (await warden.run(spec("true"))).write(b"x")


async def test_how_it_ended(warden: Warden) -> None:
    for script, status in (("exit 7", ExitStatus(7, None)), ("kill -9 $$", ExitStatus(None, 9))):
        process = await warden.run(spec("sh", "-c", script))
        assert await process.wait() == status
        assert await process.wait() == status
    process = await warden.run(spec("sleep", "1000"))
    await process.end(0)
    assert await process.wait() == ExitStatus(None, signal.SIGKILL)


async def test_wait_ignores_background_processes(warden: Warden) -> None:
    process = await warden.run(spec("sh", "-c", "sleep 1000 & sleep 1000 & echo started"))
    assert await process.wait() == ExitStatus(0, None)
    assert await process.read() == b"started\n"
    assert await process.alive() == 2
    assert await process.end(1.0) == ()
    assert await process.alive() == 0
    assert await process.read() == b""


async def test_empty_tree_ends_and_its_output_stays(warden: Warden) -> None:
    process = await warden.run(spec("echo", "still here"))
    while await process.alive():
        pass
    assert await process.read() == b"still here\n"
    assert await process.read() == b""


async def test_grace_lets_a_process_say_goodbye(warden: Warden) -> None:
    process = await warden.run(spec("bash", "-c", "trap 'echo bye; exit 3' TERM; echo ready; sleep 1000 & wait"))
    await read_until(process, b"ready\n")
    assert await process.end(10.0) == ()
    assert await process.read() == b"bye\n"
    assert await process.wait() == ExitStatus(3, None)


async def test_less_grace_can_be_given_later(warden: Warden) -> None:
    process = await warden.run(spec("bash", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"))
    await read_until(process, b"ready\n")
    patient = asyncio.create_task(process.end(1000.0))
    await asyncio.sleep(0)
    assert not patient.done()
    assert await process.end(0.0) == ()
    assert await patient == ()


async def test_an_end_goes_on_when_nobody_waits_for_it_any_more(warden: Warden) -> None:
    mark = new_mark()
    process = await warden.run(spec("bash", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done", mark=mark))
    await read_until(process, b"ready\n")
    ending = asyncio.create_task(process.end(0.05))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await until(lambda: not marked(mark))
    assert await process.end(0.05) == ()


async def test_a_cancelled_start_leaves_nothing_behind(warden: Warden) -> None:
    mark = new_mark()
    for steps in range(0, 12, 3):
        starting = asyncio.create_task(warden.run(spec("sleep", "1000", mark=mark)))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        (started,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(started, WardenProcess):  # a keeper that is quick may have answered by then
            await started.end(0)
        else:
            assert isinstance(started, asyncio.CancelledError)
        # At once: what its Run writes next is its end.
        assert marked(mark) == []


async def test_a_process_nobody_reads_from_waits_and_costs_no_memory(warden: Warden) -> None:
    process = await warden.run(spec("head", "-c", "10000000000", "/dev/zero"))
    assert len(await process.read()) <= 256 * 1024

    def is_waiting() -> bool:
        return "pipe" in Path(f"/proc/{process.pid}/wchan").read_text()

    if Path(f"/proc/{process.pid}/wchan").read_text() != "0":  # not every kernel says
        await until(is_waiting)
    assert await process.end(1.0) == ()
    rest = await read_all(process)
    assert len(rest) <= 1024 * 1024
    assert (await process.wait()).signal == signal.SIGTERM


async def test_a_loud_process_does_not_keep_the_loop_to_itself(warden: Warden) -> None:
    process = await warden.run(spec("yes"))
    reads = 0

    async def read() -> None:
        nonlocal reads
        while await process.read():
            reads += 1

    reading = asyncio.create_task(read())
    while reads < 100:
        before = reads
        await asyncio.sleep(0)
        assert reads <= before + 2
    await process.end(0)
    await reading


async def test_what_cannot_be_started_says_why_in_one_line(warden: Warden, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    refused = [
        (spec("no-such-program"), "no-such-program: not found"),
        (spec("true", cwd="/no/such"), "the directory /no/such cannot be entered: No such file or directory"),
        (spec(str(plain)), f"{plain}: Permission denied"),
        (spec("true", "x" * 200_000), "true: Argument list too long"),
        (spec("true", "x" * 20_000_000), "true: Argument list too long"),
        (spec("true", "a\0b"), "A command needs at least one word, and its words cannot contain NUL characters."),
        (spec(), "A command needs at least one word, and its words cannot contain NUL characters."),
    ]
    for wanted, why in refused:
        with pytest.raises(ProcessFailed) as caught:
            await warden.run(wanted)
        assert caught.value.message == why
    assert await output_of(warden, "echo", "and on") == "and on\n"


async def test_large_commands_are_carried_over(warden: Warden) -> None:
    words = [str(number) * 10_000 for number in range(10)] * 5
    assert await asyncio.gather(*(output_of(warden, "echo", *words) for _ in range(5))) == [" ".join(words) + "\n"] * 5


async def test_a_hundred_at_once(warden: Warden) -> None:
    processes = await asyncio.gather(*(warden.run(spec("/bin/true")) for _ in range(100)))
    assert {await process.wait() for process in processes} == {ExitStatus(0, None)}


def open_descriptors(pid: int) -> int:
    """Return the number of open descriptors without TCP connections.

    Those belong to the scripted endpoint in this process, and servers of other tests may connect or disconnect."""
    tcp = {f"socket:[{line.split()[9]}]" for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{pid}/fd/{name}") not in tcp
    return count


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def use_many(warden: Warden, times: int) -> None:
    async def one(number: int) -> None:
        try:
            with open(os.devnull, "rb") as nothing:  # noqa: ASYNC230
                process = await warden.run(
                    spec(
                        "true" if number % 5 else "nope",
                        stdin=(None, nothing, "pipe")[number % 3],
                    )
                )
        except ProcessFailed:
            return
        await process.wait()
        if number % 2:
            await process.end(0)

    await one(1)
    await until(lambda: not children_of(warden.keeper_pid))
    before = open_descriptors(os.getpid()), open_descriptors(warden.keeper_pid)
    for number in range(times):
        await one(number)
    await until(lambda: (open_descriptors(os.getpid()), open_descriptors(warden.keeper_pid)) == before)
    await until(lambda: not children_of(warden.keeper_pid))  # zombies would be among them


async def test_many_in_sequence_leave_no_descriptor_and_no_zombie(warden: Warden) -> None:
    await use_many(warden, 60)


@pytest.mark.long
async def test_a_thousand_processes_leave_no_descriptor_or_zombie(warden: Warden) -> None:
    await use_many(warden, 1000)


@pytest.mark.parametrize("wanted", MECHANISMS)
def test_uvloop_does_it_as_well(wanted: Any) -> None:
    async def use() -> None:
        warden = Warden(wanted)
        try:
            await warden.start()
        except WardenFailed as error:
            pytest.skip(str(error))
        process: WardenProcess = await warden.run(spec("cat", stdin="pipe"))
        writing = asyncio.create_task(process.write(b"x" * 1_000_000))
        seen = 0
        while seen < 1_000_000:
            seen += len(await process.read())
        await writing
        silent = asyncio.create_task(process.read())  # waits in the loop when the descriptor is closed
        await asyncio.sleep(0)
        assert await process.end(0) == ()
        assert await silent == b""
        await asyncio.gather(*(output_of(warden, "echo", "x" * 10_000) for _ in range(50)))
        keeper = warden.keeper_pid
        os.kill(keeper, signal.SIGKILL)
        await until(lambda: not is_alive(keeper))
        assert await output_of(warden, "echo", "again") == "again\n"
        await warden.close()
        assert not is_alive(keeper)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use())


async def test_a_warden_that_was_not_started_says_so() -> None:
    with pytest.raises(WardenFailed, match="not started"):
        await Warden().run(ProcessSpec(("true",), "/", {}))
    await Warden().close()


async def test_the_best_mechanism_of_the_machine_is_found_by_itself() -> None:
    warden = Warden()
    await warden.start()
    assert warden.mechanism in ("pid namespace", "subreaper")
    assert warden.sandbox.name.startswith("landlock ABI") or warden.sandbox.name in ("bubblewrap", "none")
    assert await output_of(warden, "echo", "hello") == "hello\n"
    await warden.close()
