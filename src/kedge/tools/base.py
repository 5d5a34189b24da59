"""The contract between the engine and a tool.

A call has two phases. `prepare` checks the input and states exactly what the call would do (an Intent) without doing
it. The engine then applies rules and approvals. `Prepared.run` does what was stated and nothing else, and checks again
what the approval was bound to: a file that changed while the approval was pending is not written.

Everything a call starts ends with it, or belongs to its Run and ends with that (`BackgroundCommands`), or is a command
that the session keeps with the user's permission (`KeptCommands`). The engine stops
a call by cancelling `run`, which cleans up before it returns.

A tool describes itself (title, summary, display, for whom it is), so that front ends need no table of tool names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from kedge.core.approvals import Confinement, Intent
from kedge.core.extensions import AgentDefinition
from kedge.core.modes import Mode
from kedge.core.records import Todo
from kedge.core.transcript import CallEnd, Display
from kedge.tools.background import BackgroundCommands, KeptCommands, NoKeptCommands
from kedge.tools.known_files import KnownFiles
from kedge.tools.process_port import Processes
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.tool_threads import ToolThreads

__all__ = [
    "OUTPUT_CHARS_MAX",
    "Prepared",
    "Question",
    "QuestionOption",
    "Tool",
    "ToolContext",
    "ToolFailed",
    "ToolHost",
    "ToolOutput",
    "WrittenFile",
    "count_of",
]

#: Limit of the text that one call returns to the model. More fills the model's context with unread text. Characters.
OUTPUT_CHARS_MAX = 30_000


class WrittenFile(Struct, frozen=True):
    """A file that a call wrote."""

    #: Absolute, symlinks resolved.
    path: Path
    #: None: it did not exist.
    before: bytes | None
    after: bytes


class ToolOutput(Struct, frozen=True):
    """The result of a call."""

    #: For the model.
    content: str
    #: For front ends: {"diff": ...}, {"exit_code": 0, ...}.
    metadata: dict[str, Any] = field(default_factory=dict)
    #: Data URLs of pictures for the model.
    images: tuple[str, ...] = ()
    is_error: bool = False
    #: One line for users: "exit 1, 0.2 s", "+3 -1". Empty when the content is short enough to stand for itself.
    summary: str = ""
    end: CallEnd = "returned"
    #: For language servers.
    written: tuple[WrittenFile, ...] = ()


class Prepared(Struct, frozen=True):
    """A checked call: what it would do, and the function that does it."""

    intent: Intent
    run: Callable[[], Awaitable[ToolOutput]]
    #: Held while it runs. A call that waits for it has not begun.
    slot: asyncio.Semaphore | None = None


class QuestionOption(Struct, frozen=True):
    label: str
    description: str = ""


class Question(Struct, frozen=True):
    question: str
    options: tuple[QuestionOption, ...] = ()
    #: The user may choose several options.
    multiple: bool = False


class ToolHost(Protocol):
    """The services that the engine offers to one call."""

    #: The confinement of the processes that the call starts, as its permission decided. Set before `Prepared.run`.
    confinement: Confinement
    #: True if the user approved exactly this call, and not a rule, a grant or a mode. Set before `Prepared.run`.
    was_asked: bool

    async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
        """Store the content of a file (None: it does not exist) and the digest of its next content. Durable on return,
        so call it before the file is written."""
        ...

    async def put_todos(self, todos: tuple[Todo, ...]) -> None: ...

    async def ask_user(self, questions: tuple[Question, ...]) -> list[str] | None:
        """Return one answer per question, or None if the user declines. ToolFailed if no user is available."""
        ...

    async def leave_plan_mode(self, mode: Mode) -> Mode:
        """Switch from plan mode to the mode that the user chose. Return the session's mode, which a client may have
        switched meanwhile."""
        ...

    async def run_agent(self, prompt: str, title: str, name: str = "") -> str:
        """Return the answer of an agent in a child session: the defined one of this name, else a read-only one.
        ToolFailed if it has none."""
        ...

    def if_cut_off(self, output: Callable[[], ToolOutput]) -> None:
        """Set the result of the call if it is stopped before it returns one."""
        ...

    def progress(self, text: str) -> None:
        """Publish the current activity of the call: a line, or the end of its output. Not stored."""
        ...


class ToolContext(Struct, frozen=True):
    """The surroundings of one call, and the services it may use."""

    #: The workspace: absolute, symlinks resolved.
    root: Path
    session_id: str
    run_id: str
    call_id: str
    todos: tuple[Todo, ...]
    known_files: KnownFiles
    background: BackgroundCommands
    #: For all blocking work, file access above all.
    threads: ToolThreads
    processes: Processes
    host: ToolHost
    #: The binding of an approval that an earlier process requested for this call. Empty: none.
    shown_before: str = ""
    kept_commands: KeptCommands = NoKeptCommands()
    #: Whether a deny rule hides a file, given by its subject, from view. Searches omit such files.
    is_hidden: Callable[[str], bool] = lambda subject: False
    #: Whether there is such a rule.
    hides_files: bool = False


class Tool(Protocol):
    #: The name that models call and rules use.
    name: str
    #: The instructions for the model.
    description: str
    #: The typed input. The model receives its JSON Schema.
    input: type[msgspec.Struct]
    #: The JSON Schema to send instead, for a tool of an extension. Its `input` then takes any object.
    schema: str = ""
    #: The tool changes nothing.
    read_only: bool = False
    #: Child agents may use the tool. They must be read-only, so this requires `read_only`.
    for_children: bool = False
    #: Offered in plan mode, and in no other.
    only_in_plan: bool = False
    #: How front ends show a call beside its title and summary.
    display: Display = "compact"

    def title(self, args: Any) -> str:
        """A line for users: "$ pytest -q", "view src/app.py". `args` is an instance of `input`. Only its first line is
        shown, cut and with invisible characters escaped. Must be pure and fast: it runs on the event loop."""
        ...

    def for_agent(self, agent: AgentDefinition) -> Tool | None:
        """Return what an agent with a list of tools gets; None: nothing."""
        return self if agent.has_tool(self.name) else None

    async def prepare(self, args: Any, context: ToolContext) -> Prepared:
        """Check the call. `args` is an instance of `input`. ToolFailed when the call cannot work."""
        ...


def count_of(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 file", "3 matches"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
