"""A session at the terminal: find a failing test, fix it, run the tests, undo the change.

The repository is a copy of kedge's own core with a one-character bug in the Lane. The server, the command line, the
tools, git and the tests are real. The answers of the model are scripted.

    .venv/bin/python -m tests.real_work.session     # writes docs/session.md and the transcript in README.md
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kedge.testing import HostedEndpoint
from tests.client.process import Home, Server, Terminal

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "session.md"
README = ROOT / "README.md"
#: The transcript in the README.
README_PART = re.compile(r"(?<=<!-- session -->\n).*?(?=<!-- /session -->)", re.DOTALL)

RIGHT = "return run.seq <= self.mark or run.cancelled"
WRONG = "return run.seq < self.mark or run.cancelled"
LANE = "kedge/core/lane.py"
TESTS = "python3 -m unittest"
ANSWER = "Fixed: a cancel now covers the run accepted last. All 4 tests pass."

ASKED = "answer> "
#: The prompt in the document. The scripted model receives its script instead.
PROMPT = "A test fails. Find out why and fix it."

HEAD = """# A session

kedge fixes a one-character bug that was planted in a copy of its own core. Server, command line, tools, git and tests
are real. The answers of the model are scripted, so that the session is the same each time. Ids, times, paths and line
numbers are replaced by fixed ones. `python -m tests.real_work.session` writes this page, and `tests/test_real_work.py`
compares it with a real session.

"""


def make_repository(directory: Path) -> None:
    """Create the repository: everything is committed, and one of the tests fails."""
    shutil.copytree(ROOT / "src/kedge/core", directory / "kedge/core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "src/kedge/errors.py", directory / "kedge/errors.py")
    (directory / "tests").mkdir()
    shutil.copy(ROOT / "tests/real_work/cancel_rules.py", directory / "tests/test_cancel.py")
    for package in ("kedge", "tests"):
        (directory / package / "__init__.py").touch()
    lane = (directory / LANE).read_text()
    assert lane.count(RIGHT) == 1, f"{LANE} does not contain {RIGHT!r} any more: choose another bug"
    (directory / LANE).write_text(lane.replace(RIGHT, WRONG))
    (directory / ".gitignore").write_text("__pycache__/\n")
    git(directory, "init", "--quiet")
    git(directory, "add", ".")
    git(directory, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "The Lane")


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    # Without the configuration of the user.
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def script(workspace: Path) -> str:
    """Return a prompt that makes the scripted model call one tool per Step."""
    above = (workspace / LANE).read_text().partition("def covers")[0].count("\n")
    calls = [
        ("bash", {"command": TESTS, "description": "Run the tests"}),
        ("grep", {"pattern": "def covers", "path": "kedge"}),
        ("view", {"path": LANE, "offset": above - 9, "limit": 20}),
        ("edit", {"path": LANE, "old_string": WRONG, "new_string": RIGHT}),
        ("bash", {"command": TESTS, "description": "Run the tests again"}),
    ]
    steps = " | step | ".join(f"tool {name} {json.dumps(arguments)}" for name, arguments in calls)
    return f"script: say I will run the tests first. | {steps} | say {ANSWER}"


@dataclass
class Played:
    """The output of the session. `asked` has the output before each approval prompt."""

    asked: list[str] = field(default_factory=list)
    shown: str = ""
    code: int = -1
    session_id: str = ""
    run_id: str = ""
    #: After the Run, and after the undo.
    diffs: list[str] = field(default_factory=list)
    undone: str = ""
    tests_again: str = ""


@contextmanager
def served() -> Iterator[Server]:
    """Start a server with the repository as its workspace."""
    with HostedEndpoint() as endpoint, tempfile.TemporaryDirectory(prefix="kedge-") as root:
        home = Home(Path(root), endpoint)
        # The tests of the repository need a Python as new as the one that runs this.
        home.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{home.env.get('PATH', os.defpath)}"
        # Titles would cost tokens at a random time.
        home.config.write_text(home.config.read_text() + "[runs]\ntitles = false\n")
        make_repository(home.workspace)
        server = Server(home).start()
        try:
            yield server
        finally:
            home.close()
            server.stop()


def play(server: Server) -> Played:
    played = Played()
    home, host = server.home, ("--host", server.host)
    terminal = Terminal(home, "run", *host, script(home.workspace))
    for answer in ("s", "y"):
        played.asked.append(terminal.until(ASKED))
        terminal.type(f"{answer}\n")
        played.shown += played.asked[-1]
    played.code, rest = terminal.end()
    played.shown += rest
    (session,) = json.loads(home.kedge("sessions", "list", "--json", *host).out)
    played.session_id = session["id"]
    played.diffs.append(git(home.workspace, "diff"))
    undone = home.kedge("sessions", "undo", *host, played.session_id)
    played.undone = undone.out + undone.err
    played.run_id = re.findall(r"\brun ([\w-]+)", played.undone)[0]
    played.diffs.append(git(home.workspace, "diff"))
    again = home.kedge("run", *host, "-C", f"!{TESTS} 2>&1 | tail -n 1")
    played.tests_again = again.out + again.err
    return played


def seen(text: str) -> str:
    """Return the final text on the screen, without the status line."""
    return re.sub(r"\r[^\r\n]*\x1b\[K", "", text.replace("\r\n", "\n"))


def document(played: Played, workspace: Path) -> str:
    """Return the text of docs/session.md."""
    lines = [
        f'$ kedge run "{PROMPT}"',
        seen(played.shown).rstrip("\n"),
        f"$ kedge sessions undo {played.session_id}",
        played.undone.rstrip("\n"),
        f"$ kedge run -C '!{TESTS} 2>&1 | tail -n 1'",
        played.tests_again.rstrip("\n"),
    ]
    text = "\n".join(lines).replace(str(workspace), "/home/you/lane")
    text = text.replace(played.session_id, "s3f2a").replace(played.run_id, "81c0")
    text = re.sub(r"exit (\d+), \d+\.\d s", r"exit \1, 0.2 s", text)
    # Line numbers change with every edit of the file.
    text = re.sub(r"lines \d+-\d+ of \d+", "lines 113-132 of 361", text)
    text = re.sub(r"@@ -\d+,7 \+\d+,7 @@", "@@ -121,7 +121,7 @@", text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return f"{HEAD}```\n{text}\n```\n"


def readme_part(text: str) -> str:
    """Return the transcript of the document, as it appears in the README."""
    return text.removeprefix(HEAD)


if __name__ == "__main__":
    with served() as server:
        text = document(play(server), server.home.workspace)
    DOCUMENT.write_text(text)
    README.write_text(README_PART.sub(lambda _: readme_part(text), README.read_text()))
