"""A server process: sockets, token, signals, and the order in which things start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from kedge import paths
from kedge.agent.model_choice import Models, speaks_tls
from kedge.agent.prompts import WrittenPrompts
from kedge.config.reload import UserConfig, WorkspaceConfig
from kedge.config.schema import Config
from kedge.config.trust import FILE_NAME as TRUST_FILE
from kedge.config.trust import Trust
from kedge.core.untrusted_text import visible
from kedge.engine.engine import Engine
from kedge.engine.sandbox import OwnFiles
from kedge.engine.tool_processes import WardenMachine
from kedge.errors import BadConfig, Invalid, KedgeError
from kedge.server.app import App
from kedge.server.auth import Gate
from kedge.server.room import Bounded, make_room
from kedge.server.system import RandomIds, SystemClock
from kedge.server.table import make_app
from kedge.server.watchdog import Watchdog
from kedge.store.base import Store
from kedge.store.memory import MemoryStore
from kedge.store.sqlite import SqliteStore
from kedge.tools.registry import all_tools
from kedge.warden.warden import Warden
from kedge.wire import frames
from kedge.wire.identity import write_record

log = logging.getLogger("kedge.server")

#: Between two looks whether anybody uses the server, whatever `idle_exit_s` is. Seconds.
IDLE_LOOK_S_MIN = 0.05
#: Connections the kernel keeps for us while we are busy. Items.
BACKLOG = 1024


#: A busy thread gives the interpreter's lock back after this time. The default is five times as long, and with several
#: busy threads of tools the event loop would wait for each of them. Seconds.
SWITCH_S = 0.001


class LogFormatter(logging.Formatter):
    """Further lines of an entry are indented: a path or an error of a provider with a newline in it begins no entry."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), mark_ends=False).replace("\n", "\n    ")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Not here: with a stream open uvicorn would wait for ever. `_run` owns the signals and stops in order."""
        yield


def serve(
    *,
    hosts: list[str] | None = None,
    data_dir: str | None = None,
    store: str | None = None,
    allow_remote: bool = False,
    exit_when_idle: bool = False,
) -> int:
    """Run a server until it is told to stop; its exit code."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # These say what we know already, and the first says it for every request to a model.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    sys.setswitchinterval(SWITCH_S)
    if data_dir:
        os.environ["KEDGE_DATA_DIR"] = str(Path(data_dir).absolute())
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(hosts or [paths.default_host()], store, allow_remote, exit_when_idle))
    except (KedgeError, OSError) as error:
        print(f"kedge: {error}", file=sys.stderr)
        return 1
    return 0


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(hosts: list[str], store_url: str | None, allow_remote: bool, exit_when_idle: bool) -> None:
    user = UserConfig(paths.config_file())
    config, trust = user.config, Trust(paths.data_dir() / TRUST_FILE)
    models = Models()
    clock = SystemClock()
    engine = Engine(
        *(_store(store_url), clock, RandomIds(), frames, models, config),
        tools=all_tools((paths.config_file(), paths.data_dir())),
        machine=WardenMachine(Warden(), _own_files(hosts)),
        prompts=WrittenPrompts(clock.today, paths.config_file().parent),
        make_source=lambda path, strict: WorkspaceConfig(user, path, trust, strict=strict),
    )
    token = _token()
    gate = Gate(token, frozenset({socket.gethostname().lower()}) if allow_remote else frozenset(), allow_remote)
    stopping = asyncio.Event()
    watchdog = Watchdog(lambda: engine.is_busy)
    app = make_app(engine, gate, str(paths.data_dir()), stopping.set, watchdog)
    sockets: list[socket.socket] = []

    def take_places() -> None:
        sockets.extend(_bind(host, allow_remote) for host in hosts)
        if any(sock.family != socket.AF_UNIX for sock in sockets):
            _write_token(token)

    # The store before the sockets: its lock is what makes this the only server of this data directory. And the Runs
    # behind them: a server that cannot listen must not begin what it would have to interrupt.
    await engine.open(take_places)
    files = _socket_files(hosts)
    prepared = asyncio.create_task(_prepare(models, config))
    watchdog.start()
    try:
        await _listen(app, engine, sockets, stopping, exit_when_idle)
    finally:
        _unlink_sockets(files)
        await prepared
        await engine.close()
        watchdog.close()


async def _prepare(models: Models, config: Config) -> None:
    for tls in {speaks_tls(provider) for provider in config.providers.values()}:
        try:
            await models.pool(tls=tls)
        except BadConfig as error:
            log.warning("%s", error)  # who asks a model is told, too


async def _listen(
    app: App, engine: Engine, sockets: list[socket.socket], stopping: asyncio.Event, exit_when_idle: bool
) -> None:
    Bounded.connections_max = make_room()
    server = _Server(
        uvicorn.Config(
            app,
            http=Bounded,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # who a client is, is not for a header to say
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=2,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping)
    serving = loop.create_task(server.serve(sockets))
    ready = loop.create_task(server.ready.wait())
    await asyncio.wait({ready, serving}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving  # it could not begin, and says why
        return
    for sock in sockets if sys.stdout is not None else ():  # None: it was closed before we began
        # One write: where Python does not buffer, `print` makes two, and who is killed between them leaves half a line.
        sys.stdout.write(f"listening on {_url(sock)}\n")
        sys.stdout.flush()
    idle = loop.create_task(_watch_idle(engine, stopping)) if exit_when_idle else None
    await asyncio.wait({loop.create_task(stopping.wait()), serving}, return_when=asyncio.FIRST_COMPLETED)
    log.info("shutting down")
    await engine.close()
    server.should_exit = True
    await serving
    if idle is not None:
        idle.cancel()


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        os._exit(130)  # asked twice: somebody is impatient, and everything accepted is on disk
    stopping.set()


async def _watch_idle(engine: Engine, stopping: asyncio.Event) -> None:
    allowed_s = engine.config.server.idle_exit_s
    loop = asyncio.get_running_loop()
    started = loop.time()
    while True:
        since = engine.workspaces.idle_since
        idle_s = loop.time() - max(since, started) if since is not None else 0.0
        if since is not None and idle_s >= allowed_s and engine.refuse_new_if_unused():
            log.info("nothing to do for %g s", allowed_s)
            stopping.set()
            return
        await asyncio.sleep(max(allowed_s - idle_s, allowed_s / 10, IDLE_LOOK_S_MIN))


# --- the store and the token ----------------------------------------------------------------------------------------


def _store(url: str | None) -> Store:
    url = url or os.environ.get("KEDGE_STORE") or ""
    if url == "memory:":
        return MemoryStore()
    if not url:
        return SqliteStore(paths.data_dir())
    if url.startswith("sqlite://"):
        return SqliteStore(Path(url.removeprefix("sqlite://")))
    raise BadConfig(f"Store {url} is not known; use sqlite:///directory or memory:")


def _token() -> str:
    token = os.environ.get("KEDGE_TOKEN") or secrets.token_urlsafe(32)
    if not token.isascii() or not token.isprintable() or len(token) < 16:
        raise BadConfig("KEDGE_TOKEN must have at least 16 printable ASCII characters.")
    return token


def _write_token(token: str) -> None:
    path = paths.token_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A new file under another name, then renamed: never readable by others, never half written.
    new = path.with_name(f".token-{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        file.write(token + "\n")
    os.replace(new, path)


# --- sockets --------------------------------------------------------------------------------------------------------


def _bind(host: str, allow_remote: bool) -> socket.socket:
    url = urlsplit(host)
    if url.scheme == "unix":
        return _bind_unix(Path(host.removeprefix("unix://")))
    if url.scheme == "tcp" and url.hostname is not None:
        return _bind_tcp(url.hostname, url.port or 0, allow_remote)
    raise Invalid(f"host {host} is not understood; write unix:///path.sock or tcp://127.0.0.1:PORT")


def _own_files(hosts: list[str]) -> OwnFiles:
    sockets = tuple(os.path.abspath(host.removeprefix("unix://")) for host in hosts if host.startswith("unix://"))
    is_file = bool(os.environ.get("KEDGE_CONFIG"))
    places = (str(paths.config_place()), is_file, str(paths.data_dir()), str(paths.runtime_dir()))
    return OwnFiles(*places, sockets, paths.program())


def _socket_files(hosts: list[str]) -> dict[Path, tuple[int, int]]:
    """The files of our sockets, and which they are: by the time we leave, the name may be another server's."""
    names = [Path(host.removeprefix("unix://")) for host in hosts if host.startswith("unix://")]
    return {path: _identity(path) for path in names}


def _unlink_sockets(files: dict[Path, tuple[int, int]]) -> None:
    for path, ours in files.items():
        with contextlib.suppress(FileNotFoundError):
            if _identity(path) == ours:
                path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_ino, about.st_ctime_ns  # the number alone is given to the next new file


def _bind_unix(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > paths.SOCKET_PATH_BYTES_MAX:
        wayout = "set KEDGE_DATA_DIR to a shorter path" if path == paths.socket_file() else "choose a shorter one"
        raise Invalid(f"{path} is too long for a socket; {wayout}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.parent.stat()
    if about.st_uid != os.getuid():
        raise Invalid(f"{path.parent} belongs to somebody else; remove it or set XDG_RUNTIME_DIR")
    if stat.S_IMODE(about.st_mode) & 0o077 and path == paths.socket_file():
        path.parent.chmod(0o700)
    if path.exists() and not path.is_socket():
        raise Invalid(f"{path} is there and is no socket; choose another path or remove it yourself")
    if _is_alive(path):
        raise Invalid(f"a server is listening on {path} already; stop it first")
    path.unlink(missing_ok=True)
    if path == paths.socket_file():
        write_record(paths.server_record())  # before a client can connect
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    return sock


def _is_alive(path: Path) -> bool:
    """Whether a server answers there. A socket file whose server is gone refuses: it is stale and may be replaced."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return path.is_socket()
    return True


def _bind_tcp(name: str, port: int, allow_remote: bool) -> socket.socket:
    address = "127.0.0.1" if name == "localhost" else name
    try:
        literal = ip_address(address)
    except ValueError:
        raise Invalid(f"tcp host {name} must be an address, such as 127.0.0.1") from None
    if not literal.is_loopback and not allow_remote:
        raise Invalid(f"{name} can be reached from other machines; add --allow-remote if that is wanted")
    sock = socket.socket(socket.AF_INET6 if literal.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        raise Invalid(f"cannot listen on {name}:{port}: {error.strerror}") from None
    return sock


def _url(sock: socket.socket) -> str:
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix://{name}"
    return f"tcp://[{name[0]}]:{name[1]}" if sock.family == socket.AF_INET6 else f"tcp://{name[0]}:{name[1]}"
