"""A process that has loaded all libraries, and forks one child for each mutant.

Loading libraries would take most of the time of a mutant, so they are loaded once. kedge itself is not imported before
the fork: each child imports it with the fault.
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

#: A mutant that takes longer is an error, not a find: on a busy machine two thousand simulations take minutes. Seconds.
MUTANT_S_MAX = 900.0
#: The same for tests. Seconds.
TESTS_S_MAX = 600.0
#: The forking process ends when its connection closes, unless a child runs: then both are killed. Seconds.
STOP_S_MAX = 5.0
#: The end of a failed child's output that is shown. Characters.
OUTPUT_CHARACTERS_MAX = 10_000
#: The file with a child's result.
RESULT = "result"
#: The libraries that kedge and its tests import. A missing name only costs time.
LIBRARIES = [
    "apsw",
    "httptools",
    "httpx2",
    "hypothesis",
    "hypothesis.stateful",
    "msgspec",
    "uvicorn",
    "uvloop",
    "pytest",
    *PLUGINS,
    *(f"_pytest.{name}" for name in default_plugins),
]

#: The mutant, the number of simulations, the directory of its copy and output, and: try the recorded seed first?
Task = tuple[Mutant, int, Path, bool]


class Forks:
    """Runs mutants, one at a time. Processes that a child leaves running are killed after it."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory()
        self._link, self._process = _start()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        self._directory.cleanup()

    def find(self, mutant: Mutant, schedules: int = SCHEDULES_MAX, *, recorded_first: bool = False) -> str:
        """Return one line on what found the mutant, or "" if it survived."""
        with TemporaryDirectory(dir=self._directory.name) as name:
            directory = Path(name)
            if mutant.finder == "tests":
                copy_with(mutant, self._package(), directory)
            code = self._run((mutant, schedules, directory, recorded_first))
            result, output = directory / RESULT, directory / OUTPUT
            # A child that fails has found nothing.
            if code != 0 or not result.exists():
                printed = output.read_text("utf-8", "replace")[-OUTPUT_CHARACTERS_MAX:] if output.exists() else ""
                raise RuntimeError(f"mutant {mutant.name}: its process ended with {code}\n{printed}")
            return result.read_text("utf-8")

    def _run(self, task: Task) -> int | None:
        """Return the exit code of the child. None: a timeout or the loss of the forking process, which is replaced."""
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
        """Return a copy of the package, from which the faulty copies are linked."""
        copy = Path(self._directory.name) / "kedge"
        if not copy.exists():
            shutil.copytree(SRC / "kedge", copy)
        return copy


@cache
def contained() -> tuple[str, ...]:
    """Return a command prefix that kills all processes of a command with it, or () if the machine has none: a faulty
    warden leaks processes that restart themselves."""
    for user in ((), ("--user", "--map-root-user")):
        command = ("unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc")
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return ()


def _start() -> tuple[Connection, subprocess.Popen[bytes]]:
    own_end, child_end = Pipe()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KEDGE_")}
    with child_end:
        process = subprocess.Popen(
            [*contained(), sys.executable, "-m", "proof.mutants.forks", str(child_end.fileno())],
            cwd=ROOT,
            env=environment,
            pass_fds=(child_end.fileno(),),
            start_new_session=True,
        )
    return own_end, process


def serve(link: Connection) -> None:
    for library in LIBRARIES:
        import_module(library)
    assert "kedge" not in sys.modules
    gc.collect()
    gc.freeze()  # otherwise the first collection of each child would copy all shared pages
    while True:
        try:
            mutant, schedules, directory, recorded_first = link.recv()
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            link.close()
            _run_and_exit(partial(find, mutant, schedules, directory, recorded_first=recorded_first), directory)
        status = os.waitpid(child, 0)[1]
        _kill_leftovers()
        link.send(os.waitstatus_to_exitcode(status))


def _run_and_exit(run: Callable[[], str], directory: Path) -> None:
    """Run and exit, without clean-up: frozen tasks of the simulator would print warnings. Never returns."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(directory / OUTPUT, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        (directory / RESULT).write_text(run(), "utf-8")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _kill_leftovers() -> None:
    """Kill all other processes of this PID namespace. Only its first process may do that."""
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
