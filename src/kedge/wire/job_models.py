"""Bodies of kept commands: commands of the agent that continue after their Run."""

from __future__ import annotations

from msgspec import Struct

from kedge.core.kept_commands import KeptState


class JobBody(Struct, kw_only=True):
    """A kept command of a session."""

    id: str
    #: One line, cut.
    command: str
    #: The Run that started it.
    run_id: str
    #: exited: without a request. ended: on request. server_stopped: with its server.
    state: KeptState
    started_at: int
    ended_at: int | None = None
    #: Minus the number of a signal. Null: it runs, or its exit code is not known.
    exit_code: int | None = None


class JobOutput(Struct, kw_only=True):
    """A kept command with its recent output."""

    job: JobBody
    #: At most the last 64 KiB.
    output: str
    #: The output had more than this; it is empty once the server has dropped it.
    is_cut: bool


class JobOutputEvent(Struct, kw_only=True):
    """The end of the output of a kept command, at most twice in a second. Not stored."""

    session_id: str
    id: str
    text: str
