"""What a model is told before the conversation begins: who it is, where it is, and how this repository wants to be
worked on.

Instruction files are AGENTS.md and its cousins, from the repository's root down to the workspace, the nearest last. In
each directory AGENTS.md counts; a cousin only where there is none. They are bounded, regular files inside the
repository, and marked with their paths. All functions here read files: call them beside the event loop.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from kedge.config.repository import UntrustedFile, read_inside, read_regular, repository_directories, trusted_owners
from kedge.config.schema import Config
from kedge.core.approvals import is_hidden
from kedge.errors import Invalid
from kedge.tools.paths import guards, is_below, subject_of

if TYPE_CHECKING:
    from kedge.core.records import RunRecord
    from kedge.engine.workspaces import Workspace

Agent = Literal["main", "look"]

#: In this order; in each directory the first that is there counts.
NAMES = (
    "AGENTS.md",
    "KEDGE.md",
    "CLAUDE.md",
    "CRUSH.md",
    "GEMINI.md",
    ".cursorrules",
    ".github/copilot-instructions.md",
)
#: Of one instruction file, and of all: a model reads them at every Step, and people pay for it. Bytes.
FILE_BYTES_MAX = 64 * 1024
ALL_BYTES_MAX = 256 * 1024
#: Looked into in one repository: dozens of levels with dozens of names each, all links, could take minutes. Items.
FILES_MAX = 100
#: Of the workspace's listing: enough to see what it is. Items.
LISTED_MAX = 100
#: Looked at to make it: a directory may hold millions. Items.
SCANNED_MAX = 5000
#: Of a branch's name and what leads to it. Bytes.
GIT_BYTES_MAX = 4096


class Facts(Struct, frozen=True):
    """What the caller knows of the machine and the day."""

    #: Such as "2025-11-16".
    today: str
    #: Such as "Linux 6.8".
    system: str
    #: Where the user's own AGENTS.md is; None: nowhere.
    config_dir: Path | None = None


class InstructionFile(Struct, frozen=True):
    path: Path
    text: str
    #: There is more of it than is shown.
    is_cut: bool = False


class Prompts(Protocol):
    """The instructions for models, beside the conversation."""

    #: For the small model: how to name a session. For any model: how to summarise one.
    title: str
    summary: str

    async def system(self, workspace: Workspace, run: RunRecord) -> str: ...


class NoPrompts:
    """Prompts for an engine whose models need no instructions."""

    title, summary = "Write a title.", "Summarize the conversation."

    async def system(self, workspace: Workspace, run: RunRecord) -> str:
        return ""


class WrittenPrompts:
    """The texts in prompts/, with the instruction files of the repository."""

    def __init__(self, today: Callable[[], str], config_dir: Path) -> None:
        self._today = today
        self._config_dir = config_dir
        self.title, self.summary = prompt("title"), prompt("summary")

    async def system(self, workspace: Workspace, run: RunRecord) -> str:
        facts = Facts(self._today(), system_name(), self._config_dir)
        agent: Agent = "look" if run.options.parent_run_id else "main"
        return await asyncio.to_thread(system_prompt, workspace.root, workspace.config, facts, agent, run.options.deny)


@cache
def prompt(name: Literal["system", "look", "title", "summary"]) -> str:
    """One of our own texts: prompts/NAME.md."""
    return (Path(__file__).parent / "prompts" / f"{name}.md").read_text("utf-8").strip()


def system_name() -> str:
    about = os.uname()
    return f"{about.sysname} {about.release}"


def system_prompt(
    workspace: Path, config: Config, facts: Facts, agent: Agent = "main", deny: tuple[str, ...] = ()
) -> str:
    """`deny`: rules of this Run alone, over the configured ones."""
    text = [prompt("system" if agent == "main" else "look"), _surroundings(workspace, facts)]
    for file in instruction_files(workspace, config, facts.config_dir, deny):
        # A file cannot end its own mark and go on as if it were us.
        inside = re.sub(r"<(?=/?instructions\b)", "&lt;", file.text, flags=re.IGNORECASE)
        cut = "\n[cut here: the file is longer]" if file.is_cut else ""
        text.append(f'<instructions path="{_plain(str(file.path))}">\n{inside}{cut}\n</instructions>')
    return "\n\n".join(text) + "\n"


def instruction_files(
    workspace: Path, config: Config, config_dir: Path | None = None, deny: tuple[str, ...] = ()
) -> list[InstructionFile]:
    """Those that count, in the order in which they are told: the user's own, then from the root down. What a deny rule
    keeps from being viewed is not among them, by whatever name it goes."""
    found: list[InstructionFile] = []
    seen: set[str] = set()
    left = ALL_BYTES_MAX
    for path, content in _contents(workspace, config, config_dir, deny):
        text = content[: min(FILE_BYTES_MAX, left)].decode("utf-8", "replace").replace("\0", "\ufffd").strip()
        if not text or text in seen:  # one is often a copy of the other, or a link to it
            continue
        is_cut = len(content) > min(FILE_BYTES_MAX, left)
        left -= min(len(content), FILE_BYTES_MAX, left)
        seen.add(text)
        found.append(InstructionFile(path, text, is_cut))
        if left == 0:
            break
    return found


def _contents(
    workspace: Path, config: Config, config_dir: Path | None, deny: tuple[str, ...]
) -> Iterator[tuple[Path, bytes]]:
    """(path, one byte more than may be shown) of each file that is there. What cannot be read is as if it were not."""
    if config_dir is not None:
        own = config_dir / NAMES[0]
        try:
            content = read_regular(own, FILE_BYTES_MAX + 1)
        except OSError:
            content = None
        if content is not None:
            yield own, content
    try:
        places, trusted = repository_directories(workspace), trusted_owners(workspace)
    except OSError:
        return
    further = tuple(config.context.files)
    try:
        rules = config.permissions.rules(deny=deny)
    except Invalid:  # what is kept from being viewed is not known then
        return
    own_files = (config_dir,) if config_dir is not None else ()

    def may_be_read(path: Path) -> bool:
        real, lexical = path.resolve(), Path(os.path.normpath(path))
        if is_below(real, own_files) or guards(real):
            return False  # no repository may have keys read out
        names = {name for one in (real, lexical) for name in (subject_of(one, workspace), str(one))}
        return not any(is_hidden(rules, name) for name in names)

    tries = iter(range(FILES_MAX))
    for place in places:
        first = next(_readable(place, NAMES, places[0], trusted, may_be_read, tries), None)
        if first is not None:
            yield first
        yield from _readable(place, further, places[0], trusted, may_be_read, tries)


def _readable(
    place: Path,
    names: tuple[str, ...],
    root: Path,
    trusted: frozenset[int],
    may_be_read: Callable[[Path], bool],
    tries: Iterator[int],
) -> Iterator[tuple[Path, bytes]]:
    """Each that is there takes one of the `tries`."""
    for name in names:
        if not os.path.lexists(place / name):
            continue
        if next(tries, None) is None:
            return
        try:
            if not may_be_read(place / name):
                continue
            content = read_inside(place / name, root, trusted, FILE_BYTES_MAX + 1)
        except (OSError, RuntimeError, ValueError, UntrustedFile):
            continue
        if content is not None:
            yield place / name, content


def _surroundings(workspace: Path, facts: Facts) -> str:
    lines = [f"Directory: {_plain(str(workspace))}"]
    try:
        root = repository_directories(workspace)[0]
    except OSError:
        root = workspace
    try:
        branch = git_branch(root, trusted_owners(workspace))
    except OSError:
        branch = None
    if branch is None:
        lines.append("Git repository: no")
    else:
        at = "" if root == workspace else f", its root is {_plain(str(root))}"
        lines.append(f"Git repository: yes{at}; {_plain(branch)} when this conversation went on")
    lines += [f"System: {_plain(facts.system)}", f"Date: {_plain(facts.today)}"]
    return "# Where you are\n\n" + "\n".join(lines) + f"\n\nIn the directory:\n{_listing(workspace)}"


def git_branch(root: Path, trusted: frozenset[int] | None = None) -> str | None:
    """ "branch NAME" or "no branch"; None if this is not a repository, or that of a user who is not `trusted`."""
    place = root / ".git"
    try:
        if place.is_file():  # a worktree or a submodule: the file says where
            said = (read_regular(place, GIT_BYTES_MAX, trusted) or b"").decode("utf-8", "replace")
            place = root / said.removeprefix("gitdir:").strip()
        elif not place.is_dir():
            return None
        head = (read_regular(place / "HEAD", GIT_BYTES_MAX, trusted) or b"").decode("utf-8", "replace").strip()
    except UntrustedFile:
        return None
    except (OSError, ValueError):
        return "no branch"
    name = head.removeprefix("ref: refs/heads/")
    return f"branch {name}" if name != head and name else "no branch"


def _listing(workspace: Path) -> str:
    try:
        with os.scandir(workspace) as entries:
            names = sorted(
                _plain(entry.name) + ("/" if entry.is_dir(follow_symlinks=False) else "")
                for entry in islice(entries, SCANNED_MAX)
            )
    except OSError:
        return "(it cannot be read)"
    if not names:
        return "(nothing)"
    more = ["(and more)"] if len(names) > LISTED_MAX else []
    return "\n".join([*names[:LISTED_MAX], *more])


def _plain(text: str) -> str:
    """On one line: a file's name may hold line breaks, and with them anything."""
    return "".join(character if character.isprintable() and character not in '"<>' else "?" for character in text)
