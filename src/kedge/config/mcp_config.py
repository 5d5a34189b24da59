"""The MCP servers of a workspace: those of the configuration, and those of the repository's .mcp.json.

A repository's file takes effect after the user has trusted its exact content: it names programs to run. Its values may
contain ${VARIABLE} and ${VARIABLE:-default}, as other agents write it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kedge.config.repository import RepositoryFile, read_configuration
from kedge.config.schema import Config, McpServerConfig, origin_of
from kedge.config.secrets import KEYRING, secret
from kedge.config.trust import TrustList
from kedge.errors import BadConfig

FILE_NAME = ".mcp.json"
#: Size of these files: some hundred servers. Bytes.
FILE_BYTES_MAX = 64 * 1024
#: Servers of a workspace: more than a user reviews. Items.
SERVERS_MAX = 100
TRUST_FIRST = "run: kedge config trust"

#: Names of servers are parts of rules and of the names of tools.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_WHOLE_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
#: The names of transports in other programs.
_TYPES = {"streamable-http": "http", "streamableHttp": "http", "streamable_http": "http", "local": "stdio"}


class McpServerEntry(Struct, frozen=True):
    """A configured server."""

    name: str
    config: McpServerConfig
    #: "user", "repository" or "plugin NAME".
    origin: str = "user"
    #: The file, for a server of the repository.
    path: str = ""
    is_trusted: bool = True
    #: Why it cannot be used; one line.
    problem: str = ""


def configured_servers(config: Config, files: list[RepositoryFile], trust: TrustList) -> list[McpServerEntry]:
    """Return all servers. `files`: the repository's files, see `mcp_files`. The servers of the configuration come
    first, also those of plugins, and are not replaced by those of such a file."""
    entries = {name: _configured(name, server) for name, server in config.mcp.items()}
    for file in files:
        for entry in _file_servers(file, trust):
            if entry.name in config.mcp:
                continue
            entries[entry.name] = entry
    return list(entries.values())[:SERVERS_MAX]


def _configured(name: str, server: McpServerConfig) -> McpServerEntry:
    origin = origin_of(server.source)
    path = server.source if origin == "repository" else ""
    return McpServerEntry(name, server, origin, path, problem=_problem(name, server))


def mcp_files(workspace: Path) -> list[RepositoryFile]:
    """Return the files named .mcp.json from the repository's root down to the workspace. Blocking."""
    try:
        return read_configuration(workspace, (FILE_NAME,), FILE_BYTES_MAX)
    except OSError:
        return []  # the configuration files report it


def parse_mcp_file(content: bytes, path: Path) -> dict[str, McpServerConfig]:
    """Return the servers of a file. Raises BadConfig. Settings that kedge does not know are ignored."""
    try:
        plain = json.loads(content)
        servers = plain["mcpServers"] if isinstance(plain, dict) else None
    except KeyError:
        return {}
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(servers, dict):
        raise BadConfig(f"{path} is not valid: mcpServers must be an object.")
    known = set(McpServerConfig.__struct_fields__) - {"source"}
    parsed = {}
    for name, settings in list(servers.items())[:SERVERS_MAX]:
        if not isinstance(settings, dict):
            raise BadConfig(f"{path} is not valid: mcpServers.{name[:100]} must be an object.")
        server: dict[str, Any] = {key: value for key, value in settings.items() if key in known}
        server["type"] = _TYPES.get(str(server.get("type", "")), server.get("type", ""))
        try:
            parsed[name] = msgspec.convert(server, McpServerConfig)
        except msgspec.ValidationError as error:
            raise BadConfig(f"{path} is not valid: mcpServers.{name[:100]}: {error}.") from None
    return parsed


def _file_servers(file: RepositoryFile, trust: TrustList) -> list[McpServerEntry]:
    if file.content is None:
        return [McpServerEntry(FILE_NAME, McpServerConfig(), "repository", str(file.path), problem=file.why)]
    try:
        servers = parse_mcp_file(file.content, file.path)
        is_trusted = trust.contains(file.path, file.content)
    except BadConfig as error:
        return [McpServerEntry(FILE_NAME, McpServerConfig(), "repository", str(file.path), problem=error.message)]
    return [
        McpServerEntry(name, server, "repository", str(file.path), is_trusted, _problem(name, server))
        for name, server in servers.items()
    ]


def _problem(name: str, server: McpServerConfig) -> str:
    """Return why a server cannot be used, apart from its variables."""
    if not _NAME.fullmatch(name):
        return f"{name[:100]!r} is not a valid name for a server; use letters, digits, '_', '-' and '.'"
    if server.command and server.url:
        return "it has both a command and a url; remove one"
    if not server.command and not server.url:
        return "it has neither a command nor a url; set one"
    if server.type and (server.type == "stdio") != bool(server.command):
        return f'type = "{server.type}" does not fit {"command" if server.command else "url"}; remove it'
    if server.url and not server.url.startswith(("http://", "https://", "$")):
        return "its url is not valid; it starts with http:// or https://"
    return ""


def expanded(server: McpServerConfig, environment: Mapping[str, str] = os.environ) -> McpServerConfig:
    """Return the server with its variables and secrets looked up. Raises BadConfig. May block: it opens a keyring."""

    def text(value: str) -> str:
        return _expand(value, environment)

    def secrets(values: dict[str, str]) -> dict[str, str]:
        return {name: _secret(value, environment) for name, value in values.items()}

    return msgspec.structs.replace(
        server,
        command=text(server.command),
        args=[text(value) for value in server.args],
        env=secrets(server.env),
        cwd=text(server.cwd),
        url=text(server.url),
        headers=secrets(server.headers),
    )


def unset_variables(server: McpServerConfig, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables that the server needs and that are not set."""
    values = [server.command, *server.args, server.cwd, server.url]
    secrets = [*server.env.values(), *server.headers.values()]
    names = [match[1] for value in (*values, *secrets) for match in _VARIABLE.finditer(value) if match[2] is None]
    names += [match[1] for value in secrets if (match := _WHOLE_VARIABLE.fullmatch(value))]
    return [name for name in dict.fromkeys(names) if name not in environment]


def _secret(value: str, environment: Mapping[str, str]) -> str:
    if value.startswith(KEYRING):
        return secret(value)
    if match := _WHOLE_VARIABLE.fullmatch(value):
        return _variable(match[1], None, environment)
    return _expand(value, environment)


def _expand(value: str, environment: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: _variable(match[1], match[2], environment), value)


def _variable(name: str, default: str | None, environment: Mapping[str, str]) -> str:
    if (value := environment.get(name) or default) is not None:
        return value
    raise BadConfig(f"The environment variable {name} is not set. Set it and restart the server (`kedge stop`).")
