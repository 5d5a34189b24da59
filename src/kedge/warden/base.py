"""The contract: what the server asks of the warden, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal

from kedge.errors import KedgeError
from kedge.warden.landlock import SCOPES_ABI_MIN

#: How trees of processes are held together on this machine, best first.
Mechanism = Literal["pid namespace", "subreaper"]

#: A mechanism can be asked for, by tests above all. "user namespace" is a pid namespace as users without privileges
#: get it: inside a user namespace of its own.
MechanismChoice = Literal["any", "pid namespace", "user namespace", "subreaper"]


#: The same for the sandbox. "any": all layers this machine has.
SandboxChoice = Literal["any", "landlock", "mounts", "bubblewrap"]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The layers that hold a process with `writable` on this machine, found out by trying."""

    #: The ABI of Landlock; 0: not used.
    landlock: int = 0
    #: Read-only mounts in the tree's own mount namespace.
    mounts: bool = False
    bubblewrap: bool = False

    @property
    def is_available(self) -> bool:
        return bool(self.landlock or self.mounts or self.bubblewrap)

    @property
    def can_subtract(self) -> bool:
        """Whether paths inside of a writable place can be protected or hidden. Landlock cannot."""
        return self.mounts or self.bubblewrap

    @property
    def name(self) -> str:
        layers = [f"landlock ABI {self.landlock}"] if self.landlock else []
        layers += ["read-only mounts"] if self.mounts else []
        layers += ["bubblewrap"] if self.bubblewrap else []
        return " + ".join(layers) or "none"

    @property
    def description(self) -> str:
        """What it keeps a command from, and what not, in sentences."""
        if not self.is_available:
            return ""
        if not self.can_subtract:
            held = "The contents of files outside of the writable paths cannot be changed."
            open_ = ["modes, owners, times and attributes of files", "Unix sockets of other programs"]
            open_[:0] = ["System V shared memory"]
        else:
            held = (
                "Files outside of the writable paths cannot be changed, nor their modes, owners, times or attributes."
            )
            held += " kedge's own files cannot be changed anywhere. The Unix sockets of running programs are covered."
            open_ = ["Unix sockets made later or with a relative name"]
            open_ += [] if self.landlock else ["FIFOs"]
        if self.landlock >= SCOPES_ABI_MIN:
            held += " Abstract Unix sockets and signals to processes outside are blocked."
        else:
            open_.append("abstract Unix sockets")
        return f"{held} Not restricted: reading, the network, {', '.join(open_)}."


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
    #: None: /dev/null. A file: this one, open for reading. "pipe": the caller writes (`WardenProcess.write`).
    stdin: BinaryIO | Literal["pipe"] | None = None
    #: Standard output and error in one stream, in order; or "apart", in two.
    output: Literal["joined", "apart"] = "joined"
    #: The paths that may be written (with some devices); everything may be read. None: no sandbox.
    writable: tuple[str, ...] | None = None
    #: Read-only in the sandbox even if they lie in `writable`. Like `hidden` and `reachable`: absolute, without links,
    #: and held only where `Sandbox.can_subtract`; elsewhere the caller has to refuse.
    protected: tuple[str, ...] = ()
    #: Directories that the process finds empty, and sockets it cannot connect to; with and without a sandbox.
    hidden: tuple[str, ...] = ()
    #: The sandbox covers the sockets of running programs, but not those in these directories.
    reachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Exactly one of the two is set."""

    code: int | None
    signal: int | None
