"""The contract: what the server asks of the warden, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal

from kedge.errors import KedgeError

#: How trees of processes are held together on this machine, best first.
Mechanism = Literal["pid namespace", "subreaper"]

#: A mechanism can be asked for, by tests above all. "user namespace" is a pid namespace as users without privileges
#: get it: inside a user namespace of its own.
Wanted = Literal["any", "pid namespace", "user namespace", "subreaper"]


class WardenFailed(KedgeError):
    """The warden itself is in trouble: it cannot start, was lost, or the machine lacks what was asked for."""

    code = "warden_failed"


class ProcessFailed(KedgeError):
    """A process could not be started, or does not take what is written to it."""

    code = "process_failed"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    argv: tuple[str, ...]
    #: Absolute, without links: one that is in it is not followed.
    cwd: str
    #: Exactly this environment; nothing is inherited. The program is looked for in its PATH.
    env: Mapping[str, str]
    #: None: /dev/null. A file: this one, open for reading. "pipe": the caller writes (`Process.write`).
    stdin: BinaryIO | Literal["pipe"] | None = None
    #: Standard output and error in one stream, in order; or "apart", in two.
    output: Literal["joined", "apart"] = "joined"
    #: The paths that may be written (with some devices); everything may be read. None: no sandbox.
    writable: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Exactly one of the two is set."""

    code: int | None
    signal: int | None
