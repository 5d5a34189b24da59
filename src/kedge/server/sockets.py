"""The listening sockets: bind them, and remove their files at the end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from kedge import paths
from kedge.errors import Invalid
from kedge.wire.server_record import write_record

#: Inode and time of creation of a socket file.
FileIdentity = tuple[int, int]


def bind(host: str, allow_remote: bool) -> socket.socket:
    url = urlsplit(host)
    if url.scheme == "unix":
        return bind_unix(Path(host.removeprefix("unix://")))
    if url.scheme == "tcp" and url.hostname is not None:
        return bind_tcp(url.hostname, url.port or 0, allow_remote)
    raise Invalid(f"{host} is not a valid address. Use unix:///path.sock or tcp://127.0.0.1:PORT.")


def bind_unix(path: Path) -> socket.socket:
    is_default = path == paths.socket_file()
    if len(os.fsencode(path)) > paths.SOCKET_PATH_BYTES_MAX:
        remedy = "Set KEDGE_DATA_DIR to a shorter path." if is_default else "Choose a shorter path."
        raise Invalid(f"{path} is too long for a socket path. {remedy}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = path.parent.stat()
    if directory.st_uid != os.getuid():
        raise Invalid(f"{path.parent} belongs to another user. Remove it, or set XDG_RUNTIME_DIR to another directory.")
    if stat.S_IMODE(directory.st_mode) & 0o077 and is_default:
        path.parent.chmod(0o700)
    if path.exists() and not path.is_socket():
        raise Invalid(f"{path} exists and is not a socket. Remove it or choose another path.")
    if _is_alive(path):
        raise Invalid(f"Another server is listening on {path}. Stop it first.")
    path.unlink(missing_ok=True)
    if is_default:
        write_record(paths.server_record(), paths.data_dir())  # before a client can connect
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Linux creates the file with the mode of the socket. Not by the umask, which all threads share.
    os.fchmod(sock.fileno(), 0o600)
    sock.bind(str(path))
    path.chmod(0o600)
    return sock


def _is_alive(path: Path) -> bool:
    """Return True if a server accepts connections. The socket file of a dead server refuses them and is stale."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return path.is_socket()
    return True


def bind_tcp(name: str, port: int, allow_remote: bool) -> socket.socket:
    literal = "127.0.0.1" if name == "localhost" else name
    try:
        address = ip_address(literal)
    except ValueError:
        raise Invalid(f"{name} is not an IP address. Use one, such as 127.0.0.1.") from None
    if not address.is_loopback and not allow_remote:
        raise Invalid(f"Other machines can reach {name}. Add --allow-remote to allow that.")
    sock = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((literal, port))
    except OSError as error:
        sock.close()
        raise Invalid(f"Cannot listen on {name}:{port}: {error.strerror}.") from None
    return sock


def socket_paths(hosts: list[str]) -> list[Path]:
    return [Path(host.removeprefix("unix://")) for host in hosts if host.startswith("unix://")]


def socket_files(hosts: list[str]) -> dict[Path, FileIdentity]:
    """Return our socket files with their identity: when we exit, the path may belong to another server."""
    return {path: file_identity(path) for path in socket_paths(hosts)}


def unlink_sockets(files: dict[Path, FileIdentity]) -> None:
    for path, identity in files.items():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if file_identity(path) == identity:
                path.unlink()


def file_identity(path: Path) -> FileIdentity:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns  # the inode number alone is reused for the next new file


def socket_url(sock: socket.socket) -> str:
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix://{name}"
    return f"tcp://[{name[0]}]:{name[1]}" if sock.family == socket.AF_INET6 else f"tcp://{name[0]}:{name[1]}"
