"""`kedge doctor`: is everything as it should be, and if not, what to do. It starts no server and changes nothing."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from msgspec import Struct

from kedge import __version__, paths
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import print_json
from kedge.client.client import Client
from kedge.client.http_transport import NotConnected
from kedge.client.peer_credentials import WrongServer
from kedge.client.safe_text import one_line
from kedge.errors import BadConfig, KedgeError, ShuttingDown, StoreDamaged
from kedge.wire.models import Version

if TYPE_CHECKING:
    from kedge.config.schema import Config
    from kedge.warden.base import Sandbox

PYTHON_MIN = (3, 11)
_SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


class Finding(Struct):
    check: str
    status: Literal["ok", "warn", "fail"]
    message: str
    what_to_do: str = ""


@click.command(epilog=examples("kedge doctor", "kedge doctor --json"))
@json_option
@cwd_option
@host_option
def doctor(as_json: bool, cwd: str, host: str | None) -> int:
    """Check this installation. Exit code 0: nothing is broken; 1: something is."""
    findings = [*_python(), *_data_directory(), *_socket(), *_config_file(), *_models(cwd), *_ripgrep(cwd)]
    findings += [*asyncio.run(_processes(cwd)), *asyncio.run(_server(host, cwd))]
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            click.echo(f"{_SIGNS[finding.status]}  {finding.check}: {one_line(finding.message, 1000)}")
            if finding.what_to_do:
                click.echo(f"      -> {finding.what_to_do}")
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def _python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= PYTHON_MIN:
        yield Finding("python", "ok", f"{found} ({sys.executable})")
    else:
        yield Finding("python", "fail", f"{found} is too old", f"use Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or later")


def _data_directory() -> Iterator[Finding]:
    directory = paths.data_dir()
    if not directory.exists():
        yield Finding("data directory", "ok", f"{directory} will be made by the first server")
        return
    if not directory.is_dir() or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("data directory", "fail", f"{directory} cannot be written", "fix its owner and mode (0700)")
        return
    yield _mode("data directory", directory, 0o700)
    if (token := paths.token_file()).exists():
        yield _mode("token file", token, 0o600)


def _mode(check: str, path: Path, wanted: int) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ~wanted & 0o077:
        return Finding(check, "warn", f"{path} is open to others (mode {mode:04o})", f"chmod {wanted:o} {path}")
    return Finding(check, "ok", f"{path} (mode {mode:04o})")


def _socket() -> Iterator[Finding]:
    file = paths.socket_file()
    if len(os.fsencode(file)) > paths.SOCKET_PATH_BYTES_MAX:
        yield Finding("socket", "fail", f"{file} is too long for a socket", "set KEDGE_DATA_DIR to a shorter path")
    elif not file.exists():
        yield Finding("socket", "ok", f"{file} is made when a server starts")
    elif not file.is_socket() or file.stat().st_uid != os.getuid():
        yield Finding("socket", "fail", f"{file} is not a socket of yours", "remove it")
    else:
        yield _mode("socket", file, 0o600)
        yield _mode("runtime directory", file.parent, 0o700)


def _config_file() -> Iterator[Finding]:
    """What can be said without a server: whether it is TOML at all. The rest is the server's word."""
    file = paths.config_file()
    try:
        tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        yield Finding("config file", "ok", f"none at {file}: defaults are used")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        yield Finding("config file", "fail", f"{file} is not TOML: {error}", "correct it")
    except OSError as error:
        yield Finding("config file", "fail", f"{file} cannot be read: {error.strerror}", "fix its owner and mode")
    else:
        yield Finding("config file", "ok", f"{file} is TOML; what it says is checked when a server reads it")


def _config(cwd: str) -> Config | None:
    """What the files say in this directory; None when they cannot be understood, which is told elsewhere."""
    from kedge.config.load import layered, user_layer
    from kedge.config.trust import FILE_NAME, Trust

    try:
        trust = Trust(paths.data_dir() / FILE_NAME)
        return layered(user_layer(paths.config_file()), Path(cwd), trust, strict=False).config
    except BadConfig:
        return None


def _models(cwd: str) -> Iterator[Finding]:
    from kedge.config.model_names import known_models

    config = _config(cwd)
    if config is None:
        yield Finding("models", "warn", "the configuration cannot be read", "see `kedge config check`")
        return
    found = [choice.name for choice in known_models(config)]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield Finding("models", "ok", f"{found[0]}{more} (see `kedge models`)")
    else:
        yield Finding("models", "ok", "none is configured: the built-in offline model answers (see `kedge models`)")


def _ripgrep(cwd: str) -> Iterator[Finding]:
    from kedge.tools.ripgrep import find_rg

    if found := find_rg(os.environ.get("PATH", os.defpath), Path(cwd)):
        yield Finding("ripgrep", "ok", found)
    else:
        yield Finding("ripgrep", "warn", "it is missing, so models cannot search files", "install ripgrep (rg)")


async def _processes(cwd: str) -> list[Finding]:
    """What holds the processes of tools on this machine: a keeper is started for a moment, as a server does it."""
    from kedge.warden.base import WardenFailed
    from kedge.warden.warden import Warden

    warden = Warden()
    try:
        await warden.start()
        mechanism, sandbox = warden.mechanism, warden.sandbox
    except WardenFailed as error:
        return [Finding("processes", "fail", error.message, "tools cannot start processes until this is solved")]
    finally:
        await warden.close()
    return [Finding("processes", "ok", _MECHANISMS.get(mechanism, mechanism)), _sandbox(sandbox, _config(cwd))]


#: What the mechanism means for somebody who reads it.
_MECHANISMS = {
    "pid namespace": "pid namespace (nothing a tool starts outlives its run)",
    "subreaper": "subreaper (what a tool starts is found and ended; less certain than a pid namespace)",
}


def _sandbox(sandbox: Sandbox, config: Config | None) -> Finding:
    is_on = config is not None and config.sandbox.mode != "off"
    if not sandbox.is_there and is_on:
        wayout = "use Linux 6.2 or later, install bubblewrap, or set sandbox.mode to off"
        return Finding("sandbox", "fail", "it is on, and this machine has none: commands are refused", wayout)
    mode = f"on: {config.sandbox.mode}" if config is not None and is_on else "off: sandbox.mode in your configuration"
    return Finding("sandbox", "ok", f"{sandbox.name} ({mode}). {sandbox.holds}".rstrip())


async def _server(host: str | None, cwd: str) -> list[Finding]:
    async with Client(host) as client:
        try:
            await client.health()
        except NotConnected as error:
            return [_not_running(error, asked=host is not None)]
        except WrongServer as error:
            return [Finding("server", "fail", error.message, f"rm {paths.socket_file()}")]
        except KedgeError as error:
            return [Finding("server", "fail", error.message, f"see {paths.server_log()}, or stop it and try again")]
        try:
            return [_version(client.host, await client.version()), *await _configured(client, cwd)]
        except ShuttingDown:
            return [Finding("server", "ok", "one is just shutting down; `kedge run` starts another")]
        except KedgeError as error:
            return [Finding("server", "fail", f"{client.host} refuses us: {error.message}", "see the message")]


def _not_running(error: NotConnected, *, asked: bool) -> Finding:
    if asked:
        return Finding("server", "fail", error.message, "start it, or leave --host out")
    if paths.socket_file().exists():
        message = "none is running, and the socket of an earlier one is still there"
        return Finding("server", "warn", message, "nothing: the next server replaces it")
    return Finding("server", "ok", "none is running; `kedge run` starts one")


def _version(host: str, version: Version) -> Finding:
    message = f"{host}, version {version.version}, pid {version.pid}"
    if version.version != __version__:
        return Finding(
            "server",
            "warn",
            f"{message}; this command is {__version__}",
            "`kedge stop`; the next command starts a new one",
        )
    return Finding("server", "ok", message)


async def _configured(client: Client, cwd: str) -> list[Finding]:
    try:
        workspace = await client.create_workspace(cwd)
        config = await client.config(workspace.id)
        await client.release_workspace(workspace.id)
    except BadConfig as error:
        return [Finding("configuration", "fail", error.message, "correct it")]
    except StoreDamaged as error:
        return [Finding("store", "fail", error.message, "do that with the server stopped")]
    return [Finding("configuration", "ok", "read by the server"), _model(config)]


def _model(config: dict[str, Any]) -> Finding:
    if name := config.get("model"):
        return Finding("model", "ok", str(name))
    wayout = f"name a model and its provider in {paths.config_file()}"
    return Finding("model", "warn", "none is configured: the built-in offline model answers", wayout)
