"""A process that has loaded all that is not ours, and forks one child for each mutant.

Most of what a mutant takes, tried in a process of its own, would go into loading libraries: they are loaded once. Of
our package nothing is loaded before the fork, so a child imports all of it with the fault in place.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from _pytest.config import default_plugins

from proof.mutants.apply import ROOT, SRC, Mutant, copy_with
from proof.mutants.finders import OUTPUT, PLUGINS, SCHEDULES_MAX, find

#: A mutant that takes longer is no find but an error: on a busy machine two thousand simulations take minutes. Seconds.
MUTANT_S_MAX = 900.0
#: Tests of which one hangs end here. That is an error, too. Seconds.
TESTS_S_MAX = 600.0
#: The process that forks ends when nobody is there to ask it, unless a child is at work: then both are killed. Seconds.
STOP_S_MAX = 5.0
#: What is told of the output of a child that breaks: its end says why.
OUTPUT_CHARACTERS_MAX = 10_000
#: What a child tells last: by what its mutant was found, or nothing.
TOLD = "told"
#: What our package and its tests import, as far as it is not ours. A name that is missing here costs time, no more.
LIBRARIES = (
    *("apsw", "httptools", "httpx2", "hypothesis", "hypothesis.stateful", "msgspec", "uvicorn", "uvloop"),
    *("pytest", *PLUGINS, *(f"_pytest.{name}" for name in default_plugins)),
)

#: The mutant, within how many simulations, where its copy and output lie, and whether where it was found comes first.
Task = tuple[Mutant, int, Path, bool]


class Forks:
    """Tries mutants, one at a time. Whatever a child leaves running ends with its try."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory()
        self._link, self._process = _start()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        self._directory.cleanup()

    def find(self, mutant: Mutant, schedules: int = SCHEDULES_MAX, *, recorded_first: bool = False) -> str:
        """By what it was found, in one line; empty: it has survived."""
        with TemporaryDirectory(dir=self._directory.name) as name:
            directory = Path(name)
            if mutant.finder == "tests":
                copy_with(mutant, self._package(), directory)
            code = self._try((mutant, schedules, directory, recorded_first))
            told, output = directory / TOLD, directory / OUTPUT
            # A child that breaks has found nothing.
            if code != 0 or not told.exists():
                printed = output.read_text("utf-8", "replace")[-OUTPUT_CHARACTERS_MAX:] if output.exists() else ""
                raise RuntimeError(f"mutant {mutant.name}: its process ended with {code}\n{printed}")
            return told.read_text("utf-8")

    def _try(self, task: Task) -> int | None:
        """How the child ended. None: not in time, or the process that forks is lost; then there is a new one."""
        try:
            self._link.send(task)
            if self._link.poll(TESTS_S_MAX if task[0].finder == "tests" else MUTANT_S_MAX):
                return int(self._link.recv())
        except (EOFError, OSError):
            pass
        self._stop()
        self._link, self._process = _start()
        return None

    def _stop(self) -> None:
        self._link.close()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _package(self) -> Path:
        """A copy of our package, of which those with a fault are made: links within one directory are cheap."""
        copy = Path(self._directory.name) / "kedge"
        if not copy.exists():
            shutil.copytree(SRC / "kedge", copy)
        return copy


@cache
def contained() -> tuple[str, ...]:
    """What to put before a command so that all it starts ends with it: a faulty warden lets processes go that start
    themselves anew for ever. Empty where the machine has no such thing."""
    for user in ((), ("--user", "--map-root-user")):
        command = ("unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc")
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return ()


def _start() -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = Pipe()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KEDGE_")}
    with theirs:
        process = subprocess.Popen(
            [*contained(), sys.executable, "-m", "proof.mutants.forks", str(theirs.fileno())],
            cwd=ROOT,
            env=environment,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return ours, process


def serve(link: Connection) -> None:
    for library in LIBRARIES:
        import_module(library)
    assert "kedge" not in sys.modules
    gc.collect()
    gc.freeze()  # or the first collection of each child would write to all that it shares with us
    while True:
        try:
            mutant, schedules, directory, recorded_first = link.recv()
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            link.close()
            _end_with(partial(find, mutant, schedules, directory, recorded_first=recorded_first), directory)
        status = os.waitpid(child, 0)[1]
        _end_what_is_left()
        link.send(os.waitstatus_to_exitcode(status))


def _end_with(tried: Callable[[], str], directory: Path) -> None:
    """Never returns. Nothing is cleaned up: tasks frozen by the simulator would complain on their way out."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(directory / OUTPUT, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        (directory / TOLD).write_text(tried(), "utf-8")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_what_is_left() -> None:
    """As the first process of a namespace we see to all that is in it, and to nothing else."""
    if os.getpid() != 1:
        return
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
