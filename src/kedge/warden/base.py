"""The types of the warden's interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal

from kedge.errors import KedgeError
from kedge.warden.landlock import SCOPES_ABI_MIN

#: Mechanisms that contain process trees, best first.
Mechanism = Literal["pid namespace", "subreaper"]

#: The mechanism to use, chosen mainly by tests. "user namespace" is a pid namespace for users without privileges:
#: inside a user namespace of its own.
MechanismChoice = Literal["any", "pid namespace", "user namespace", "subreaper"]

#: The sandbox layers to use. "any": all layers of this machine.
SandboxChoice = Literal["any", "landlock", "mounts", "bubblewrap"]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox layers of this machine, detected by trying them."""

    #: The ABI of Landlock; 0: not used.
    landlock: int = 0
    #: Read-only mounts in the tree's own mount namespace.
    mounts: bool = False
    bubblewrap: bool = False
    #: How a process without `ProcessSpec.network` is isolated: by a network namespace of its tree, or by a filter of
    #: system calls. None: it cannot be.
    network: Literal["namespace", "filter"] | None = None

    @property
    def is_available(self) -> bool:
        return bool(self.landlock or self.mounts or self.bubblewrap)

    @property
    def can_subtract(self) -> bool:
        """True if paths inside a writable directory can be protected or hidden. Landlock cannot do that."""
        return self.mounts or self.bubblewrap

    @property
    def can_confine(self) -> bool:
        """True if processes can be confined to the workspace or to reading, without a network."""
        return self.can_subtract and self.network is not None

    @property
    def name(self) -> str:
        layers = [f"landlock ABI {self.landlock}"] if self.landlock else []
        layers += ["read-only mounts"] if self.mounts else []
        layers += ["bubblewrap"] if self.bubblewrap else []
        layers += [f"network {self.network}"] if self.network else []
        return " + ".join(layers) or "none"

    @property
    def description(self) -> str:
        """The restrictions and their gaps, in sentences."""
        if not self.is_available:
            return ""
        if not self.can_subtract:
            restrictions = "The contents of files outside of the writable paths cannot be changed."
            gaps = ["modes, owners, times and attributes of files", "Unix sockets of other programs"]
            gaps[:0] = ["System V shared memory"]
        else:
            restrictions = (
                "Files outside of the writable paths cannot be changed, nor their modes, owners, times or attributes."
            )
            restrictions += " kedge's own files cannot be changed anywhere."
            restrictions += " The Unix sockets of running programs are covered."
            gaps = ["Unix sockets made later or with a relative name"]
            gaps += [] if self.landlock else ["FIFOs"]
        if self.landlock >= SCOPES_ABI_MIN:
            restrictions += " Abstract Unix sockets and signals to processes outside are blocked."
        else:
            gaps.append("abstract Unix sockets")
        if self.network is not None:
            restrictions += " Commands can be cut off from the network, and from abstract Unix sockets."
        network = "the network" if self.network is None else "the network by default"
        return f"{restrictions} Not restricted: reading, {network}, {', '.join(gaps)}."


class WardenFailed(KedgeError):
    """The keeper cannot start or was lost, or the machine lacks the requested mechanism."""

    code = "warden_failed"


class ProcessFailed(KedgeError):
    """A process could not be started, or no longer reads its input."""

    code = "process_failed"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    argv: tuple[str, ...]
    #: Absolute. Links in it are not followed: entering it fails.
    cwd: str
    #: The complete environment; nothing is inherited. The program is searched for in its PATH.
    env: Mapping[str, str]
    #: None: /dev/null. A file that is open for reading. "pipe": the caller writes (`WardenProcess.write`).
    stdin: BinaryIO | Literal["pipe"] | None = None
    #: Standard error has a pipe of its own (`WardenProcess.read_stderr`). False: it is merged into the output.
    separate_stderr: bool = False
    #: Writable paths, in addition to some devices; everything is readable. None: no sandbox.
    writable: tuple[str, ...] | None = None
    #: Paths that are read-only in the sandbox even inside `writable`. Like `hidden` and `reachable`: absolute, without
    #: links, and enforced only with `Sandbox.can_subtract`; otherwise the caller must refuse.
    protected: tuple[str, ...] = ()
    #: Directories that appear empty to the process, and sockets that it cannot connect to; also without a sandbox.
    hidden: tuple[str, ...] = ()
    #: Directories whose sockets stay reachable. The sandbox covers all other sockets of running programs.
    reachable: tuple[str, ...] = ()
    #: False: no network, no abstract Unix sockets of other programs, and without mounts no Unix sockets at all.
    #: Requires `writable` and `Sandbox.network`.
    network: bool = True
    #: A directory that is empty, writable and private to the process tree, in memory. Enforced as `protected` is; a
    #: path that does not exist is ignored. Empty: none.
    scratch: str = ""
    #: Limits of each process: memory for data (RLIMIT_DATA), and processor time. 0: none. Bytes and seconds.
    data_bytes_max: int = 0
    cpu_s_max: int = 0


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """The exit code or the signal; the other is None."""

    code: int | None
    signal: int | None
