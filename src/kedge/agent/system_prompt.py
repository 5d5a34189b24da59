"""The system prompt: the agent's role, its environment, and the instruction files of the repository.

Instruction files are AGENTS.md and its equivalents, from the repository's root down to the workspace, the nearest last.
In each directory AGENTS.md is used, or else the first equivalent. They must be regular files inside the
repository, have a size limit, and are marked with their paths. The functions here read files: call them in a thread.
"""

from __future__ import annotations

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
from kedge.core.extensions import AgentDefinition
from kedge.errors import Invalid
from kedge.tools import file_threads
from kedge.tools.credentials import is_credential
from kedge.tools.workspace_paths import guards, is_below, subject_of

if TYPE_CHECKING:
    from kedge.core.records import RunRecord
    from kedge.engine.workspace import Workspace

Agent = Literal["main", "explore", "agent"]

#: In order of precedence: the first that exists in a directory is used.
INSTRUCTION_NAMES = (
    "AGENTS.md",
    "KEDGE.md",
    "CLAUDE.md",
    "CRUSH.md",
    "GEMINI.md",
    ".cursorrules",
    ".github/copilot-instructions.md",
)
#: One instruction file, and all of them: they are part of every request, and cost money. Bytes.
INSTRUCTION_BYTES_MAX = 64 * 1024
INSTRUCTIONS_BYTES_MAX = 256 * 1024
#: Instruction files tried in one repository: dozens of levels with dozens of links each could take minutes. Items.
INSTRUCTION_FILES_MAX = 100
#: Entries in the listing of the workspace: enough to see what it is. Items.
LISTED_MAX = 100
#: Entries scanned for the listing: a directory may have millions. Items.
SCANNED_MAX = 5000
#: A branch name, and the files that lead to it. Bytes.
GIT_BYTES_MAX = 4096


class Facts(Struct, frozen=True):
    """Facts about the machine and the day, from the caller."""

    #: Such as "2025-11-16".
    today: str
    #: Such as "Linux 6.8".
    system: str
    #: The directory of the user's own AGENTS.md, if any.
    config_dir: Path | None = None


class InstructionFile(Struct, frozen=True):
    path: Path
    text: str
    #: The text is truncated.
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
        defined = run.options.agent
        agent: Agent = "agent" if defined else "explore" if run.options.parent_run_id else "main"
        args = (workspace.root, workspace.config, facts, agent, run.options.deny)
        text = await workspace.files.run(system_prompt, *args, limit_s=file_threads.READ_S)
        return f"{text}\n{_definition(defined)}\n" if defined else text


@cache
def prompt(name: Literal["system", "explore", "agent", "title", "summary"]) -> str:
    """Return one of our own texts: prompts/NAME.md."""
    return (Path(__file__).parent / "prompts" / f"{name}.md").read_text("utf-8").strip()


def system_name() -> str:
    uname = os.uname()
    return f"{uname.sysname} {uname.release}"


def system_prompt(
    workspace: Path, config: Config, facts: Facts, agent: Agent = "main", deny: tuple[str, ...] = ()
) -> str:
    """Return the system prompt. `deny`: rules of this Run, in addition to the configured ones."""
    text = [prompt("system" if agent == "main" else agent), _environment(workspace, facts)]
    for file in instruction_files(workspace, config, facts.config_dir, deny):
        # A file must not be able to close its own tag and continue as if it were our text.
        inside = re.sub(r"<(?=/?instructions\b)", "&lt;", file.text, flags=re.IGNORECASE)
        cut = "\n[truncated: the file is longer]" if file.is_cut else ""
        text.append(f'<instructions path="{_plain(str(file.path))}">\n{inside}{cut}\n</instructions>')
    return "\n\n".join(text) + "\n"


def _definition(agent: AgentDefinition) -> str:
    """Return the instructions of a defined agent. It cannot close its own tag."""
    inside = re.sub(r"<(?=/?agent_definition\b)", "&lt;", agent.prompt, flags=re.IGNORECASE)
    return f'<agent_definition name="{_plain(agent.name)}">\n{inside}\n</agent_definition>'


def instruction_files(
    workspace: Path, config: Config, config_dir: Path | None = None, deny: tuple[str, ...] = ()
) -> list[InstructionFile]:
    """Return the instruction files: the user's own, then those from the root down. Files hidden by a deny rule are left
    out."""
    files: list[InstructionFile] = []
    seen: set[str] = set()
    left = INSTRUCTIONS_BYTES_MAX
    for path, content in _contents(workspace, config, config_dir, deny):
        text = content[: min(INSTRUCTION_BYTES_MAX, left)].decode("utf-8", "replace").replace("\0", "\ufffd").strip()
        if not text or text in seen:  # often a copy of, or a link to, another file
            continue
        is_cut = len(content) > min(INSTRUCTION_BYTES_MAX, left)
        left -= min(len(content), INSTRUCTION_BYTES_MAX, left)
        seen.add(text)
        files.append(InstructionFile(path, text, is_cut))
        if left == 0:
            break
    return files


def _contents(
    workspace: Path, config: Config, config_dir: Path | None, deny: tuple[str, ...]
) -> Iterator[tuple[Path, bytes]]:
    """Yield each readable file with up to one byte more than the limit."""
    if config_dir is not None:
        own = config_dir / INSTRUCTION_NAMES[0]
        try:
            content = read_regular(own, INSTRUCTION_BYTES_MAX + 1)
        except OSError:
            content = None
        if content is not None:
            yield own, content
    try:
        directories, trusted = repository_directories(workspace), trusted_owners(workspace)
    except OSError:
        return
    further = tuple(config.context.files)
    try:
        rules = config.permissions.rules(deny=deny)
    except Invalid:  # without the rules it is unknown which files are hidden
        return
    own_files = (config_dir,) if config_dir is not None else ()

    def may_be_read(path: Path) -> bool:
        real, lexical = path.resolve(), Path(os.path.normpath(path))
        names = {name for one in (real, lexical) for name in (subject_of(one, workspace), str(one))}
        if is_below(real, own_files) or guards(real) or is_credential(subject_of(real, workspace)):
            return False  # a repository must not be able to have secrets read
        return not any(is_hidden(rules, name) for name in names)

    tries = iter(range(INSTRUCTION_FILES_MAX))
    for directory in directories:
        first = next(_readable(directory, INSTRUCTION_NAMES, directories[0], trusted, may_be_read, tries), None)
        if first is not None:
            yield first
        yield from _readable(directory, further, directories[0], trusted, may_be_read, tries)


def _readable(
    directory: Path,
    names: tuple[str, ...],
    root: Path,
    trusted: frozenset[int],
    may_be_read: Callable[[Path], bool],
    tries: Iterator[int],
) -> Iterator[tuple[Path, bytes]]:
    """Yield the readable files among `names`. Each existing file uses up one of the `tries`."""
    for name in names:
        if not os.path.lexists(directory / name):
            continue
        if next(tries, None) is None:
            return
        try:
            if not may_be_read(directory / name):
                continue
            content = read_inside(directory / name, root, trusted, INSTRUCTION_BYTES_MAX + 1)
        except (OSError, RuntimeError, ValueError, UntrustedFile):
            continue
        if content is not None:
            yield directory / name, content


def _environment(workspace: Path, facts: Facts) -> str:
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
        lines.append(f"Git repository: yes{at}; {_plain(branch)} when this run started")
    lines += [f"System: {_plain(facts.system)}", f"Date: {_plain(facts.today)}"]
    return "# Environment\n\n" + "\n".join(lines) + f"\n\nIn the directory:\n{_listing(workspace)}"


def git_branch(root: Path, trusted: frozenset[int] | None = None) -> str | None:
    """Return "branch NAME" or "no branch"; None if this is not a repository, or its owner is not `trusted`."""
    git_dir = root / ".git"
    try:
        if git_dir.is_file():  # a worktree or a submodule: the file has the path
            text = (read_regular(git_dir, GIT_BYTES_MAX, trusted) or b"").decode("utf-8", "replace")
            git_dir = root / text.removeprefix("gitdir:").strip()
        elif not git_dir.is_dir():
            return None
        head = (read_regular(git_dir / "HEAD", GIT_BYTES_MAX, trusted) or b"").decode("utf-8", "replace").strip()
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
        return "(not readable)"
    if not names:
        return "(empty)"
    more = ["(and more)"] if len(names) > LISTED_MAX else []
    return "\n".join([*names[:LISTED_MAX], *more])


def _plain(text: str) -> str:
    """Replace characters that could break out of a line or an attribute: a file name may contain anything."""
    return "".join(character if character.isprintable() and character not in '"<>' else "?" for character in text)
