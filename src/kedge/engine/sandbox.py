"""What the sandbox of a workspace keeps open, read-only and hidden."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from kedge.config.schema import Config
from kedge.tools.tool_failed import ToolFailed
from kedge.warden.base import Sandbox
from kedge.warden.sandbox_paths import is_below

#: Where daemons listen that run things for this user. Sockets in use when a command starts are covered wherever they
#: are; these also when they are made later, or by a program outside of this container.
DAEMONS = (
    *("/run/user", "/run/dbus", "/run/screen", "/run/docker", "/run/docker.sock", "/run/containerd", "/run/podman"),
    *("/run/crio", "/run/libvirt", "/run/lxd.socket", "/var/lib/lxd/unix.socket", "/var/lib/incus/unix.socket"),
    *("/var/snap/lxd/common/lxd/unix.socket", "/run/systemd/private", "/run/snapd.socket", "/run/snapd-snap.socket"),
    *("/tmp/.X11-unix", "/tmp/.ICE-unix"),
)


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """kedge's own files: no sandboxed command may write them, and none may talk to the server."""

    #: The directory of the configuration, or the file alone if it has no directory of its own.
    config: str
    config_is_file: bool
    data_dir: str
    runtime_dir: str
    #: The Unix sockets the server listens on.
    sockets: tuple[str, ...] = ()
    #: Where the program itself is: processes of the server run from there, outside of the sandbox.
    program: tuple[str, ...] = ()

    def voice(self) -> tuple[str, ...]:
        """Where the server listens: out of reach for commands without a sandbox, too."""
        return tuple(map(os.path.realpath, (self.runtime_dir, *self.sockets)))


@dataclass(frozen=True, slots=True)
class Limits:
    """The sandbox of one workspace. The fields are those of `warden.base.ProcessSpec`."""

    writable: tuple[str, ...] | None = None
    protected: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()


def limits(config: Config, workspace: str, own: OwnFiles, given: Mapping[str, str] = os.environ) -> Limits:
    if config.sandbox.mode == "off":
        return Limits(hidden=own.voice())
    home = os.path.realpath(os.path.expanduser("~"))
    configured = tuple(_as_it_was(os.path.expanduser(path)) for path in config.sandbox.writable)
    temporary = _as_it_was(temporary_directory(given))
    writable = (workspace, temporary, *configured)
    # A socket in the workspace belongs to it, like that of a database for its tests; not so in a whole home directory,
    # nor in the temporary directory of all programs.
    reachable = tuple(path for path in (workspace, *configured) if not is_below(home, path))
    if is_below(temporary, workspace):
        reachable = tuple(path for path in reachable if path != workspace)
    daemons = [
        path
        for path in _daemons(given)
        if not any(is_below(path, place) for place in configured)
        # A variable that names a whole home directory, or a part of it that is needed: its sockets are covered anyway.
        and not any(is_below(needed, path) for needed in (workspace, temporary, home))
    ]
    hidden = (os.path.realpath(own.data_dir), *own.voice(), *daemons)
    # Elsewhere the program is read-only anyway.
    program = (path for path in map(os.path.realpath, own.program) if any(is_below(path, place) for place in writable))
    return Limits(writable, (os.path.realpath(own.config), *program), hidden, reachable)


def temporary_directory(given: Mapping[str, str]) -> str:
    """TMPDIR, if that is an absolute path of a directory below the root."""
    path = given.get("TMPDIR", "")
    return path if os.path.isabs(path) and os.path.realpath(path) != "/" else "/tmp"


def check(own: OwnFiles, limits: Limits, sandbox: Sandbox) -> None:
    """ToolFailed if a sandboxed command could replace kedge's own files."""
    if limits.writable is None:
        return
    for path in (own.config, own.data_dir, own.runtime_dir):
        for link in _links(path):
            if (place := _place_of(link, limits)) and not any(is_below(link, kept) for kept in limits.protected):
                raise ToolFailed(
                    f"No command can be run in the sandbox: {link} is a link to kedge's own files in {place}, where "
                    "commands may write. Name the real path with KEDGE_CONFIG or KEDGE_DATA_DIR."
                )
    for path in (own.config, own.data_dir, *own.program):
        place = _place_of(os.path.realpath(path), limits)
        if place and not sandbox.can_subtract:
            raise ToolFailed(
                f"No command can be run in the sandbox: kedge's own {path} lies in {place}, where commands may write, "
                "and this machine has no mount namespaces to protect it. Use another workspace, move kedge's files "
                "(KEDGE_CONFIG, KEDGE_DATA_DIR) or kedge itself, or set sandbox.mode to off."
            )
    for path in (own.config, own.data_dir, own.runtime_dir):
        if (place := _place_of(os.path.realpath(path), limits)) and not os.path.exists(path):
            # Only what exists can be protected: a command could make it.
            _make(path, place, is_file=path == own.config and own.config_is_file)


def _make(path: str, place: str, *, is_file: bool) -> None:
    if is_file:
        raise ToolFailed(
            f"No command can be run in the sandbox: {path} is missing, and a command could write it, since it lies in "
            f"{place}. Make it (an empty file will do), or unset KEDGE_CONFIG."
        )
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError as error:
        raise ToolFailed(f"No command can be run in the sandbox: {path} cannot be made: {error.strerror}.") from None


def _place_of(path: str, limits: Limits) -> str | None:
    return next((place for place in limits.writable or () if is_below(path, place)), None)


def _links(path: str) -> Iterator[str]:
    """The links on the way to `path`, each by its own real place."""
    here, parts = "/", [part for part in reversed(path.split("/")) if part]
    for _ in range(1000):  # links may point to each other
        if not parts:
            return
        part = parts.pop()
        there = os.path.normpath(os.path.join(here, part))
        if os.path.islink(there):
            yield there
            target = os.readlink(there)
            parts += [part for part in reversed(target.split("/")) if part]
            here = "/" if target.startswith("/") else here
        else:
            here = there


def _daemons(given: Mapping[str, str]) -> Sequence[str]:
    tmux = os.path.join(given.get("TMUX_TMPDIR") or "/tmp", f"tmux-{os.getuid()}")
    docker = given.get("DOCKER_HOST", "").removeprefix("unix://")
    named = (given.get("XDG_RUNTIME_DIR", ""), given.get("SSH_AUTH_SOCK", ""), tmux, docker)
    return [*map(_as_it_was, (*DAEMONS, *filter(os.path.isabs, named)))]


@cache
def _as_it_was(path: str) -> str:
    """Its real path, when it was first used: later it might be a link that a command has put there."""
    return os.path.realpath(path)
