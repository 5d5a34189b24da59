"""`kedge doctor`: check the installation. It starts no server and changes nothing."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from kedge import __version__, paths
from kedge.cli.config_files import load_config, plugin_store, trusted_files
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import print_findings
from kedge.client.client import Client
from kedge.client.http_transport import NotConnected
from kedge.client.peer_credentials import WrongServer
from kedge.client.server_process import ServerProcess, find_process
from kedge.config.check import Finding, check_config
from kedge.config.schema import Config
from kedge.disk_space import free_bytes, full_disk
from kedge.errors import BadConfig, KedgeError, ShuttingDown, StoreDamaged
from kedge.wire.models import Version

if TYPE_CHECKING:
    from kedge.warden.base import Sandbox

PYTHON_MIN = (3, 11)


@click.command(epilog=examples("kedge doctor", "kedge doctor --json"))
@json_option
@cwd_option
@host_option
def doctor(as_json: bool, cwd: str, host: str | None) -> int:
    """Check this installation. The exit code is 1 if something is broken."""
    workspace = Path(cwd)
    findings = [*_python(), *_data_directory(), *_socket()]
    findings += check_config(paths.config_file(), workspace, trusted_files(), plugins=plugin_store())
    findings += [*_ripgrep(workspace), *asyncio.run(_processes(workspace)), *asyncio.run(_server(host, cwd))]
    return print_findings(findings, as_json=as_json)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= PYTHON_MIN:
        yield Finding("python", "ok", f"{version} ({sys.executable})")
    else:
        yield Finding("python", "fail", f"{version} is too old", f"use Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or later")


def _data_directory() -> Iterator[Finding]:
    directory = paths.data_dir()
    if full := full_disk(directory):
        yield Finding("disk", "fail", full, "the server cannot store anything until then")
    elif (free := free_bytes(directory)) is not None:
        yield Finding("disk", "ok", f"{free // 2**20:,} MB free for {directory}")
    if not directory.exists():
        yield Finding("data directory", "ok", f"{directory} will be created by the first server")
        return
    if not directory.is_dir() or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("data directory", "fail", f"{directory} is not writable", "fix its owner and mode (0700)")
        return
    yield _mode("data directory", directory, 0o700)
    if (token := paths.token_file()).exists():
        yield _mode("token file", token, 0o600)


def _mode(check: str, path: Path, expected: int) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ~expected & 0o077:
        message = f"{path} is accessible to other users (mode {mode:04o})"
        return Finding(check, "warn", message, f"chmod {expected:o} {path}")
    return Finding(check, "ok", f"{path} (mode {mode:04o})")


def _socket() -> Iterator[Finding]:
    file = paths.socket_file()
    if len(os.fsencode(file)) > paths.SOCKET_PATH_BYTES_MAX:
        yield Finding("socket", "fail", f"{file} is too long for a socket path", "set KEDGE_DATA_DIR to a shorter path")
    elif not file.exists():
        yield Finding("socket", "ok", f"{file} will be created when a server starts")
    elif not file.is_socket() or file.stat().st_uid != os.getuid():
        yield Finding("socket", "fail", f"{file} is not a socket that you own", "remove it")
    else:
        yield _mode("socket", file, 0o600)
        yield _mode("runtime directory", file.parent, 0o700)


def _ripgrep(workspace: Path) -> Iterator[Finding]:
    from kedge.tools.ripgrep import find_rg

    if program := find_rg(os.environ.get("PATH", os.defpath), workspace):
        yield Finding("ripgrep", "ok", program)
    else:
        yield Finding("ripgrep", "warn", "not found; the model cannot search files", "install ripgrep (rg)")


async def _processes(workspace: Path) -> list[Finding]:
    """Check how this machine contains the processes of tools, by starting a keeper as a server does."""
    from kedge.warden.base import WardenFailed
    from kedge.warden.warden import Warden

    warden = Warden()
    try:
        await warden.start()
        mechanism, sandbox = warden.mechanism, warden.sandbox
    except WardenFailed as error:
        return [Finding("processes", "fail", error.message, "tools cannot start processes until this is fixed")]
    finally:
        await warden.close()
    return [Finding("processes", "ok", _MECHANISMS.get(mechanism, mechanism)), _sandbox(sandbox, _config(workspace))]


_MECHANISMS = {
    "pid namespace": "PID namespace (no tool process outlives its run)",
    "subreaper": "subreaper (tool processes are found and killed; less reliable than a PID namespace)",
}


def _config(workspace: Path) -> Config | None:
    try:
        return load_config(workspace).config
    except BadConfig:
        return None  # reported by the configuration check


def _sandbox(sandbox: Sandbox, config: Config | None) -> Finding:
    mode = "off" if config is None else config.sandbox.mode
    if not sandbox.is_available and mode != "off":
        advice = "use Linux 6.2 or later, install bubblewrap, or set sandbox.mode to off"
        return Finding("sandbox", "fail", f"sandbox.mode is {mode}, but this machine has no sandbox", advice)
    if sandbox.network is None and mode != "off" and config is not None and config.sandbox.network is False:
        advice = "use a kernel with network namespaces or seccomp, or remove sandbox.network"
        return Finding("sandbox", "fail", "sandbox.network is false, but commands keep their network here", advice)
    auto = "Mode auto is available." if sandbox.can_confine else "Mode auto is not available."
    text = " ".join(filter(None, (f"{sandbox.name} (sandbox.mode: {mode}).", sandbox.description, auto)))
    return Finding("sandbox", "ok", text)


async def _server(host: str | None, cwd: str) -> list[Finding]:
    async with Client(host) as client:
        if host is None:
            try:
                server = await find_process(client)
            except WrongServer as error:
                return [Finding("server", "fail", error.message, f"rm {paths.socket_file()}")]
            if server.state != "listening":
                return [_not_listening(server)]
        try:
            version = await client.version()
            if host is None and not server.has_data:  # at its end, a server releases the lock before it stops listening
                return [Finding("server", "fail", server.summary, server.advice)]
            return [_version(client.host, version), *await _workspace(client, cwd)]
        except NotConnected as error:
            if host is None and (server := await find_process(client)).state != "listening":
                return [_not_listening(server)]  # it has stopped listening since the check above
            return [Finding("server", "fail", error.message, "start it, or omit --host")]
        except ShuttingDown:
            return [_SHUTTING_DOWN]
        except KedgeError as error:
            return [
                Finding(
                    "server", "fail", f"{client.host} refused a request: {error.message}", f"see {paths.server_log()}"
                )
            ]


_SHUTTING_DOWN = Finding("server", "ok", "shutting down; `kedge run` starts another")


def _not_listening(server: ServerProcess) -> Finding:
    if server.state == "none" and paths.socket_file().exists():
        return Finding(
            "server", "warn", "not running; a stale socket exists", "no action needed: the next server replaces it"
        )
    if server.state == "none":
        return Finding("server", "ok", "not running; `kedge run` starts one")
    if server.state == "stopping":
        return _SHUTTING_DOWN
    level: Literal["warn", "fail"] = "warn" if server.state == "starting" else "fail"
    return Finding("server", level, server.summary, server.advice)


def _version(host: str, version: Version) -> Finding:
    message = f"{host}, version {version.version}, pid {version.pid}"
    if version.version != __version__:
        advice = "run `kedge stop`; the next command starts a new server"
        return Finding("server", "warn", f"{message}; this command is version {__version__}", advice)
    return Finding("server", "ok", message)


async def _workspace(client: Client, cwd: str) -> list[Finding]:
    try:
        workspace = await client.create_workspace(cwd)
        await client.release_workspace(workspace.id)
    except BadConfig as error:
        return [Finding("configuration", "fail", error.message, "correct the configuration")]
    except StoreDamaged as error:
        return [Finding("store", "fail", error.message, "stop the server first: kedge stop --force")]
    if problem := workspace.config_problem:
        return [Finding("configuration", "fail", f"the server does not use the current files: {problem}", "correct it")]
    return [Finding("configuration", "ok", "accepted by the server")]
