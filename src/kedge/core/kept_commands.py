"""Kept commands: commands of the agent that continue after their Run, such as a development server.

They belong to a session. The session's record lists the last ones, so that each client, and the model in a later Run,
has their states. No process survives its server: a command that is stored as running and is not a command of this
process ended with an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.untrusted_text import one_line

#: Commands of a session, running and ended: a server, a watcher or two, and room to start them again. Each takes up to
#: 230 KB of memory for its output, and a line in each event of the session. Items, the oldest ended are dropped first.
KEPT_PER_SESSION_MAX = 8
#: The text of a command in the record of its session, which each of its events repeats. Characters.
KEPT_COMMAND_CHARS_MAX = 300

#: exited: without a request. ended: by the user, the agent or the deletion of its session. server_stopped: with it.
KeptState = Literal["running", "exited", "ended", "server_stopped"]


class KeptCommand(Struct, frozen=True):
    id: str
    #: One line, cut.
    command: str
    #: The Run that started it.
    run_id: str
    started_at: int
    state: KeptState = "running"
    #: Minus the number of a signal. None: it runs, or its exit code is not known.
    exit_code: int | None = None
    ended_at: int | None = None

    @property
    def is_running(self) -> bool:
        return self.state == "running"


def new_kept(id_: str, command: str, run_id: str, now: int) -> KeptCommand:
    return KeptCommand(id_, one_line(command, KEPT_COMMAND_CHARS_MAX), run_id, now)


def kept_now(stored: Iterable[KeptCommand], own: Mapping[str, KeptCommand]) -> tuple[KeptCommand, ...]:
    """Return the commands of a session, in the order of their start. `own`: those of this process."""
    commands = {entry.id: _after_restart(entry) for entry in stored} | dict(own)
    over = len(commands) - KEPT_PER_SESSION_MAX
    dropped = [entry.id for entry in commands.values() if not entry.is_running][: max(over, 0)]
    return tuple(entry for entry in commands.values() if entry.id not in dropped)


def _after_restart(entry: KeptCommand) -> KeptCommand:
    return replace(entry, state="server_stopped") if entry.is_running else entry


def state_text(entry: KeptCommand) -> str:
    """Return the state for a line: "is running", "has ended (exit code 1)"."""
    match entry.state:
        case "running":
            return "is running"
        case "ended":
            return "was ended"
        case "server_stopped":
            return "ended with its server"
    if entry.exit_code is None:
        return "has ended"
    return f"has ended ({exit_text(entry.exit_code)})"


def exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def kept_prompt(commands: Iterable[KeptCommand]) -> str:
    """Return the section of the system prompt about the kept commands; empty if there are none."""
    lines = [f"- {entry.id} {state_text(entry)}: $ {entry.command}" for entry in commands]
    if not lines:
        return ""
    head = "# Kept commands\n\nCommands that earlier runs of this session kept, when this run started (see jobs):"
    return "\n".join(["", "", head, *lines])
