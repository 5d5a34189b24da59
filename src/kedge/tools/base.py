"""The tool port: what the engine asks of a tool, and what a tool may use.

A call has two halves. `prepare` understands the input, looks, and says exactly what would happen (an Intent), without
doing it; the engine sees to rules and approvals; `Prepared.run` then does that and nothing else. What an approval was
bound to is checked again there: a file that changed while people thought it over is not written.

Everything a call starts ends with it, or belongs to its Run and ends with that (`Background`). Cancelling `run` is how
a call is stopped: it cleans up before it lets go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct, field

from kedge.core.approvals import Intent
from kedge.core.records import Todo
from kedge.tools.background import BackgroundCommands
from kedge.tools.known_files import KnownFiles
from kedge.tools.processes import Processes, ToolFailed
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
]

#: Of what one call tells the model. More fills the model's context with what it does not read. Characters.
OUTPUT_CHARS_MAX = 30_000


class ToolOutput(Struct, frozen=True):
    """What a call gave."""

    #: For the model.
    content: str
    #: For people's screens: {"diff": ...}, {"exit_code": 0, ...}.
    metadata: dict[str, Any] = field(default_factory=dict)
    #: Data URLs of pictures for the model.
    images: tuple[str, ...] = ()
    is_error: bool = False


class Prepared(Struct, frozen=True):
    """A call that was understood: what it would do, and how to do it."""

    intent: Intent
    run: Callable[[], Awaitable[ToolOutput]]
    #: One line for people while it runs: "$ pytest -q", "edit src/app.py".
    title: str


class QuestionOption(Struct, frozen=True):
    label: str
    description: str = ""


class Question(Struct, frozen=True):
    question: str
    options: tuple[QuestionOption, ...] = ()
    #: Several options may be chosen.
    multiple: bool = False


class ToolHost(Protocol):
    """What tools need of the engine, each at the one door."""

    async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
        """Durable before the file is written: what it was (None: not there), and the digest of what it will be."""
        ...

    async def put_todos(self, todos: tuple[Todo, ...]) -> None: ...

    async def ask_user(self, questions: tuple[Question, ...]) -> list[str] | None:
        """Their answer to each; None when they would rather not. ToolFailed when there is nobody to ask."""
        ...

    async def run_agent(self, prompt: str, title: str) -> str:
        """The answer of a read-only agent in a child session. ToolFailed says how it ended if it gave none."""
        ...

    def progress(self, text: str) -> None:
        """What the call is doing right now, for people: a line, or the end of its output. Passing."""
        ...


class ToolContext(Struct, frozen=True):
    """Where one call happens and what it may use."""

    #: The workspace: absolute, links resolved.
    root: Path
    session_id: str
    run_id: str
    call_id: str
    todos: tuple[Todo, ...]
    known_files: KnownFiles
    background: BackgroundCommands
    #: For everything that blocks: files above all.
    threads: ToolThreads
    processes: Processes
    host: ToolHost
    #: Not empty: people were asked about this call before, by a process that is gone; this is what it was bound to.
    shown_before: str = ""
    #: Files that a deny rule keeps from being viewed, by their subject: a search leaves them out.
    is_hidden: Callable[[str], bool] = lambda subject: False


class Tool(Protocol):
    #: As the model calls it.
    name: str
    #: The typed input, a msgspec Struct; its JSON Schema is what the model gets.
    input: type[msgspec.Struct]
    #: look: it changes nothing, a read-only agent may have it.
    kind: Literal["look", "change"]

    async def prepare(self, given: Any, context: ToolContext) -> Prepared:
        """`given` is an instance of `input`. ToolFailed when the call cannot work."""
        ...


@cache
def description(name: str) -> str:
    """What the model is told of a tool: tools/descriptions/NAME.md."""
    return (Path(__file__).parent / "descriptions" / f"{name}.md").read_text("utf-8").strip()
