"""The sandbox of a workspace: which paths are writable, protected, hidden and reachable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from kedge.config.schema import Config
from kedge.core.approvals import Confinement
from kedge.tools.tool_failed import ToolFailed
from kedge.warden.base import Sandbox
from kedge.warden.sandbox_paths import is_below

#: Sockets of daemons that run programs for this user. Sockets in use when a command starts are hidden wherever they
#: are; these paths are also hidden if the socket is created later, or by a program outside of this container.
DAEMONS = (
    "/run/user",
    "/run/dbus",
    "/run/screen",
    "/run/docker",
    "/run/docker.sock",
    "/run/containerd",
    "/run/podman",
    "/run/crio",
    "/run/libvirt",
    "/run/lxd.socket",
    "/var/lib/lxd/unix.socket",
    "/var/lib/incus/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/run/systemd/private",
    "/run/snapd.socket",
    "/run/snapd-snap.socket",
    "/tmp/.X11-unix",
    "/tmp/.ICE-unix",
)


#: Entries of a home directory with keys and passwords.
HOME_CREDENTIALS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".git-credentials",
)


#: The temporary directory of commands that write nothing else: in memory, and private. `sort` needs one, and so does
#: git for a converted file. Linux systems have this directory for files in memory.
SCRATCH = "/dev/shm"


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
    #: The program itself: processes of the server run from there, outside of the sandbox.
    program: tuple[str, ...] = ()

    def server_sockets(self) -> tuple[str, ...]:
        """Return where the server listens: also hidden from commands without a sandbox."""
        return tuple(map(os.path.realpath, (self.runtime_dir, *self.sockets)))


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The sandbox of one workspace. The fields are those of `warden.base.ProcessSpec`."""

    writable: tuple[str, ...] | None = None
    protected: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()
    network: bool = True
    scratch: str = ""


def sandbox_limits(
    config: Config,
    workspace: str,
    own: OwnFiles,
    environment: Mapping[str, str] = os.environ,
    confinement: Confinement = "configured",
    guarded: tuple[str, ...] = (),
) -> SandboxLimits:
    """`guarded`: further paths that the confinement "workspace" protects."""
    if confinement == "configured" and config.sandbox.mode == "off":
        return SandboxLimits(hidden=own.server_sockets())
    home = os.path.realpath(os.path.expanduser("~"))
    temporary = _first_real_path(temporary_directory(environment))
    configured: tuple[str, ...] = ()
    if confinement != "read_only":
        configured = tuple(_first_real_path(os.path.expanduser(path)) for path in config.sandbox.writable)
    daemons = [
        path
        for path in _daemons(environment)
        if not any(is_below(path, directory) for directory in configured)
        # A variable may name a home directory or a path that is needed: its sockets are hidden anyway.
        and not any(is_below(needed, path) for needed in (workspace, temporary, home))
    ]
    network = config.sandbox.network is not False if confinement == "configured" else bool(config.sandbox.network)
    network = network and confinement != "read_only"
    hidden = (os.path.realpath(own.data_dir), *own.server_sockets(), *daemons)
    if confinement != "configured" and not network:
        hidden += tuple(_home_credentials(home, (workspace, temporary, *configured)))
    if confinement == "read_only":
        scratch = SCRATCH if not is_below(workspace, SCRATCH) else ""
        return SandboxLimits((), (), hidden, (), network=False, scratch=scratch)
    writable = (workspace, temporary, *configured)
    # A socket in the workspace belongs to it, such as that of a test database. This does not hold for a home directory
    # or the shared temporary directory. A command without a network reaches none: its peer may have one.
    reachable = tuple(path for path in (workspace, *configured) if not is_below(home, path))
    if is_below(temporary, workspace) or not network:
        reachable = tuple(path for path in reachable if path != workspace)
    # Outside of writable directories the program is read-only anyway.
    program = (
        path for path in map(os.path.realpath, own.program) if any(is_below(path, directory) for directory in writable)
    )
    protected = (os.path.realpath(own.config), *program, *(guarded if confinement == "workspace" else ()))
    return SandboxLimits(writable, protected, hidden, reachable, network)


def _home_credentials(home: str, needed: Sequence[str]) -> Iterator[str]:
    """Yield the files in a home directory that a command without a network has no use for."""
    for name in HOME_CREDENTIALS:
        path = os.path.realpath(os.path.join(home, name))
        if os.path.exists(path) and not any(is_below(one, path) for one in needed):
            yield path


def temporary_directory(environment: Mapping[str, str]) -> str:
    """Return TMPDIR if it is an absolute path below the root, else /tmp."""
    path = environment.get("TMPDIR", "")
    return path if os.path.isabs(path) and os.path.realpath(path) != "/" else "/tmp"


def check(own: OwnFiles, limits: SandboxLimits, sandbox: Sandbox) -> None:
    """Raise ToolFailed if a sandboxed command could replace kedge's own files."""
    if limits.writable is None:
        return
    for path in (own.config, own.data_dir, own.runtime_dir):
        for link in _links(path):
            if (parent := _writable_parent(link, limits)) and not any(
                is_below(link, path) for path in limits.protected
            ):
                raise ToolFailed(
                    f"Commands cannot run in the sandbox: {link} is a link to kedge's own files in {parent}, where "
                    "commands may write. Name the real path with KEDGE_CONFIG or KEDGE_DATA_DIR."
                )
    for path in (own.config, own.data_dir, own.runtime_dir, *own.program):
        parent = _writable_parent(os.path.realpath(path), limits)
        if parent and not sandbox.can_subtract:
            raise ToolFailed(
                f"Commands cannot run in the sandbox: kedge's own {path} is in {parent}, where commands may write, "
                "and this machine has no mount namespaces to protect it. Use another workspace, move kedge's files "
                "(KEDGE_CONFIG, KEDGE_DATA_DIR) or kedge itself, or set sandbox.mode to off."
            )
    for path in (own.config, own.data_dir, own.runtime_dir):
        if (parent := _writable_parent(os.path.realpath(path), limits)) and not os.path.exists(path):
            # Only existing paths can be protected: a command could create this one.
            _create(path, parent, is_file=path == own.config and own.config_is_file)


def _create(path: str, parent: str, *, is_file: bool) -> None:
    if is_file:
        raise ToolFailed(
            f"Commands cannot run in the sandbox: {path} is missing, and a command could write it, since it is in "
            f"{parent}. Create it (an empty file will do), or unset KEDGE_CONFIG."
        )
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError as error:
        raise ToolFailed(f"Commands cannot run in the sandbox: {path} cannot be created: {error.strerror}.") from None


def _writable_parent(path: str, limits: SandboxLimits) -> str | None:
    return next((directory for directory in limits.writable or () if is_below(path, directory)), None)


def _links(path: str) -> Iterator[str]:
    """Yield the links on the way to `path`, each by its own real path."""
    directory, parts = "/", [part for part in reversed(path.split("/")) if part]
    for _ in range(1000):  # links may point to each other
        if not parts:
            return
        part = parts.pop()
        current = os.path.normpath(os.path.join(directory, part))
        if os.path.islink(current):
            yield current
            target = os.readlink(current)
            parts += [part for part in reversed(target.split("/")) if part]
            directory = "/" if target.startswith("/") else directory
        else:
            directory = current


def _daemons(environment: Mapping[str, str]) -> Sequence[str]:
    tmux = os.path.join(environment.get("TMUX_TMPDIR") or "/tmp", f"tmux-{os.getuid()}")
    docker = environment.get("DOCKER_HOST", "").removeprefix("unix://")
    named = (environment.get("XDG_RUNTIME_DIR", ""), environment.get("SSH_AUTH_SOCK", ""), tmux, docker)
    return [*map(_first_real_path, (*DAEMONS, *filter(os.path.isabs, named)))]


@cache
def _first_real_path(path: str) -> str:
    """Return the real path as of the first use: later a command may have replaced it by a link."""
    return os.path.realpath(path)
