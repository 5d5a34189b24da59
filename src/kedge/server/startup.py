"""A server process: its parts, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from kedge import paths
from kedge.agent.assembly import make_engine
from kedge.agent.model_choice import Models, needs_tls
from kedge.agent.system_prompt import WrittenPrompts
from kedge.config.plugins import PluginStore
from kedge.config.reload import UserConfig, WorkspaceConfig
from kedge.config.schema import Config
from kedge.config.trust import FILE_NAME as TRUST_FILE
from kedge.config.trust import TrustList
from kedge.engine.engine import Engine
from kedge.engine.sandbox import OwnFiles
from kedge.engine.tool_processes import WardenMachine
from kedge.engine.workspace import Workspace
from kedge.errors import BadConfig, KedgeError, StoreUnavailable
from kedge.extensions.part import ExtensionHost, HookErrors
from kedge.extensions.workspace_extensions import WorkspaceExtensions
from kedge.server.auth import Gate, make_token, write_token
from kedge.server.browsers import FILE_NAME as BROWSERS_FILE
from kedge.server.browsers import Browsers
from kedge.server.http_server import BACKLOG, listen
from kedge.server.known_users import KnownUsers
from kedge.server.log import flush_log, start_log
from kedge.server.membership import RESTARTED, NodeOptions, host_id, open_store, url_of
from kedge.server.routes import make_app
from kedge.server.socket_watch import SocketWatch
from kedge.server.sockets import bind, socket_files, socket_paths, unlink_sockets
from kedge.server.system import RandomIds, SystemClock
from kedge.server.watchdog import Watchdog
from kedge.server.web_listeners import WebListeners
from kedge.struct_types import build_struct_types
from kedge.tools.registry import all_tools
from kedge.warden.warden import Warden
from kedge.wire import frames

log = logging.getLogger("kedge.server")

#: The time after which a busy thread releases the interpreter lock. The default is five times as long, and with several
#: busy tool threads the event loop would wait for each of them. Seconds.
SWITCH_S = 0.001

#: The pause between two attempts of a restarted node to open its store. Seconds.
STORE_AGAIN_S = 1.0

#: The time between two passes that forget workspaces. Seconds.
FORGET_EACH_S = 3600.0


def serve(
    *,
    hosts: list[str] | None = None,
    data_dir: str | None = None,
    store: str | None = None,
    allow_remote: bool = False,
    exit_when_idle: bool = False,
    node: str = "",
    node_url: str = "",
    roots: tuple[str, ...] = (),
    lease_s: float = 0.0,
) -> int:
    """Run a server until it is stopped, and return the exit code. Without a Unix socket in `hosts`, it also listens on
    the user's own, where commands on this machine find it."""
    sys.setswitchinterval(SWITCH_S)
    if data_dir:
        os.environ["KEDGE_DATA_DIR"] = str(Path(data_dir).absolute())
    start_log()
    build_struct_types()  # before the first thread that decodes
    options = NodeOptions(node, node_url, roots, lease_s)
    own = [] if any(host.startswith("unix:") for host in hosts or ()) else [paths.default_host()]
    try:
        while True:
            try:
                with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                    runner.run(_serve([*(hosts or ()), *own], store, allow_remote, exit_when_idle, options))
                return 0
            except StoreUnavailable as error:
                if RESTARTED not in os.environ:
                    raise
                log.warning("waiting for the store: %s", error)
                time.sleep(STORE_AGAIN_S)
    except (KedgeError, OSError) as error:
        print(f"kedge: {error}", file=sys.stderr)
        return 1
    finally:
        flush_log()


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    hosts: list[str], store_url: str | None, allow_remote: bool, exit_when_idle: bool, node: NodeOptions
) -> None:
    user = UserConfig(paths.config_file(), PluginStore(paths.config_file().parent, paths.data_dir()))
    config, trust, hook_errors = user.config, TrustList(paths.data_dir() / TRUST_FILE), HookErrors()
    models = Models()
    clock = SystemClock()
    guarded = (paths.config_file(), paths.data_dir(), paths.runtime_dir())
    machine = WardenMachine(Warden(), _own_files(hosts))
    store, member = open_store(store_url, node)
    users = KnownUsers(store.users, clock.now_ms, is_shared=member is not None)

    engine = make_engine(
        store,
        clock,
        RandomIds(),
        frames,
        models,
        config,
        tools=all_tools(guarded),
        machine=machine,
        prompts=WrittenPrompts(clock.today, paths.config_file().parent),
        make_source=lambda path, strict: WorkspaceConfig(user, path, trust, strict=strict),
        make_extensions=partial(_extensions, machine, trust, guarded, hook_errors),
        placement=member.placement if member else None,
        has_users=lambda: users.has_any,
    )
    token = make_token()
    browsers = Browsers(paths.data_dir() / BROWSERS_FILE)
    names = [socket.gethostname().lower()] if allow_remote else []
    gate = Gate(token, names, remote=allow_remote, browsers=browsers, users=users)
    cluster = member.join(engine, machine, gate) if member else None
    stopping = asyncio.Event()
    watchdog = Watchdog(lambda: engine.is_busy)
    sockets: list[socket.socket] = []
    web = WebListeners(gate, sockets)
    app = make_app(engine, gate, str(paths.data_dir()), stopping.set, watchdog, web.listen, cluster)

    async def bind_sockets() -> None:
        await users.load()
        sockets.extend(bind(host, allow_remote) for host in hosts)
        for sock in sockets:
            sock.listen(BACKLOG)
        if any(sock.family != socket.AF_UNIX for sock in sockets):
            write_token(token)
        if cluster is not None:
            await cluster.node.start(url_of(sockets), host_id(paths.data_dir()))

    # Store, sockets, Runs, in this order. The lock of the store makes this the only server of the data directory, and a
    # server that cannot listen must not resume Runs that it would have to interrupt. Runs are recovered while requests
    # are served, so a client does not wait for those of other workspaces.
    await engine.open(bind_sockets)
    watch = SocketWatch(socket_files(hosts), all(sock.family == socket.AF_UNIX for sock in sockets), stopping.set)
    warm_up = asyncio.create_task(_warm_up(models, config))
    upkeep = asyncio.create_task(_upkeep(engine))
    watchdog.start()
    try:
        await listen(app, engine, sockets, watch, stopping, exit_when_idle, web)
    finally:
        unlink_sockets(watch.files)
        upkeep.cancel()
        await warm_up
        await engine.close()
        await browsers.close()
        watchdog.close()


def _extensions(
    machine: WardenMachine,
    trust: TrustList,
    guarded: tuple[Path, ...],
    hook_errors: HookErrors,
    workspace: Workspace,
) -> WorkspaceExtensions:
    feed, files = workspace.feed, workspace.files
    host = ExtensionHost(
        root=workspace.root,
        files=files,
        processes=lambda: machine.processes(workspace.config, workspace.record.path, files),
        announce=lambda state: feed.announce(frames.extension(state), to_later=False),
        config_dir=paths.config_file().parent,
        data_dir=paths.data_dir(),
        trust=trust,
        guarded=guarded,
        hook_errors=hook_errors,
    )
    return WorkspaceExtensions(host)


async def _upkeep(engine: Engine) -> None:
    """Free the space of removed workspaces, and forget those that hold nothing and whose directory is gone."""
    engine.known_workspaces.start_purge()
    while True:
        try:
            await engine.known_workspaces.forget_gone()
        except KedgeError as error:
            log.warning("unused workspaces were not forgotten: %s", error)
        await asyncio.sleep(FORGET_EACH_S)


async def _warm_up(models: Models, config: Config) -> None:
    """Create the connection pools of the configured providers: loading certificates takes a while."""
    for tls in {needs_tls(provider) for provider in config.providers.values()}:
        try:
            await models.pool(tls=tls)
        except BadConfig as error:
            log.warning("%s", error)  # a request to such a model fails with the same error


def _own_files(hosts: list[str]) -> OwnFiles:
    """Return the server's own files, which the sandbox hides from tools."""
    return OwnFiles(
        config=str(paths.protected_config_path()),
        config_is_file=bool(os.environ.get("KEDGE_CONFIG")),
        data_dir=str(paths.data_dir()),
        runtime_dir=str(paths.runtime_dir()),
        sockets=tuple(os.path.abspath(path) for path in socket_paths(hosts)),
        program=paths.program(),
    )
