"""Configuration: TOML files in layers, checked against the schema (`schema.py`).

    plugins                    hooks, MCP and language servers of plugins that the user has added
    the user's file            all settings
    kedge.toml, or             model, small_model, runs and context. Other keys are ignored, with a warning, until the
    .kedge/config.toml, from   user trusts that exact content. It can never set [server],
                               nor a mode in which commands run without approval
    the repository's root
    down to the workspace
    .claude/settings.json      its hooks, once the user trusts that exact content
    KEDGE_MODEL and so on      the environment of the server

A later value replaces an earlier one. Lists are concatenated, so that a repository cannot drop the user's deny rules. A
provider or MCP server is replaced as a whole, so that the user's key is never sent to an address that a repository set.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from kedge.config.claude_settings import settings_files
from kedge.config.mistakes import explain_schema, explain_syntax, located
from kedge.config.repository import RepositoryFile, read_configuration, read_regular
from kedge.config.schema import (
    CONTEXT_FILES_MAX,
    HOOKS_MAX,
    Config,
    errors_in,
)
from kedge.config.trust import TrustList
from kedge.errors import BadConfig

#: Errors of one file in a message: more are not read at once. Items.
ERRORS_MAX = 5
#: Size of the user's file: 100 KB take some 50 ms to parse, a hostile file some 200 ms. Bytes.
CONFIG_BYTES_MAX = 128 * 1024
#: Size of all files of a repository, which are untrusted. A hostile file takes some 60 ms to parse. Bytes.
REPOSITORY_BYTES_MAX = 32 * 1024
#: Cost of parsing dotted keys, as (most dots in a line) * (all dots and lines). For each dot of a key tomllib keeps a
#: tuple of all parts before it and of the table's name, so a few kilobytes could take gigabytes. Lists of host names
#: have dots, too. The limit allows at most some 80 MB.
DOTS_WORK_MAX = 10_000_000
#: The same for a repository's file: ten million take seconds. 200 host names in a line are allowed.
REPOSITORY_DOTS_WORK_MAX = 200_000
#: Top-level keys that a repository's file can set before the user trusts it, and after.
OPEN_KEYS = frozenset({"model", "small_model", "runs", "context"})
TRUSTED_KEYS = OPEN_KEYS | {"mode", "permissions", "sandbox", "tools", "providers", "hooks", "lsp", "mcp"}
ALL_KEYS = frozenset(Config.__struct_fields__)
#: Modes that a repository's file can never set: commands would run without approval.
OWN_MODES = frozenset({"auto", "yolo"})
FILE_NAMES = ("kedge.toml", ".kedge/config.toml")
#: Environment variable -> the key that it sets.
VARIABLES = {"KEDGE_MODEL": "model", "KEDGE_SMALL_MODEL": "small_model"}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class LoadedConfig(Struct, frozen=True):
    """A configuration and its sources."""

    config: Config
    #: Dotted key -> source of its value. Keys that are not here have their default.
    sources: dict[str, str]
    #: Warnings about ignored settings.
    ignored: tuple[str, ...] = ()
    #: The parsed TOML, for the next layer.
    plain: dict[str, Any] = field(default_factory=dict)


class PluginLayer(Struct, frozen=True):
    """The hooks, MCP servers and language servers of a plugin. They are valid."""

    source: str
    settings: dict[str, Any]


# --- the layers -----------------------------------------------------------------------------------------------------


def load_user_layer(path: Path) -> LoadedConfig:
    """Load the user's file; a missing file gives the defaults."""
    try:
        content = read_regular(path, CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}.") from None
    if content is None and path.is_dir():
        raise BadConfig(f"{path} is a directory; expected a file.")
    plain = parse_toml(content, path) if content is not None else {}
    sources: dict[str, str] = {}
    _merge({}, plain, str(path), sources)
    return LoadedConfig(to_config(plain, path, content or b""), sources, (), plain)


def with_plugins(user: LoadedConfig, plugins: Sequence[PluginLayer]) -> LoadedConfig:
    """Return the user's configuration with the settings of plugins below it: the user's servers win, then those of the
    first plugin. The hooks of plugins are first, so that a change of the input by the user's own hooks wins."""
    if not plugins:
        return user
    merged, sources = dict(user.plain), dict(user.sources)
    hooks: dict[str, list[Any]] = {}
    for plugin in plugins:
        settings = _with_source(plugin.settings, plugin.source)
        for event, entries in settings.pop("hooks", {}).items():
            hooks.setdefault(event, []).extend(entries)
        if "mcp" in settings:
            settings["mcp"] = _new(settings["mcp"], merged.get("mcp", {}))
        if "lsp" in settings:
            known = merged.get("lsp", {}).get("servers", {})
            settings["lsp"] = {"servers": _new(settings["lsp"].get("servers", {}), known)}
        _merge(merged, settings, plugin.source, sources)
    ignored = list(user.ignored)
    for event, entries in hooks.items():
        own = merged.get("hooks", {}).get(event, [])
        used = entries[: max(HOOKS_MAX - len(own), 0)]  # never at the expense of the user's
        if len(used) < len(entries):
            ignored.append(f"hooks.{event}: only the first {len(used)} of {len(entries)} hooks of plugins are used.")
        merged["hooks"] = merged.get("hooks", {}) | {event: [*used, *own]}
        names = dict.fromkeys(entry["source"] for entry in used)
        key = f"hooks.{event}"
        sources[key] = ", ".join([*names, *([sources[key]] if key in sources else [])])
    return LoadedConfig(to_config(merged, Path("plugins")), sources, tuple(ignored), merged)


def _new(servers: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    return {name: server for name, server in servers.items() if name not in known}


def _with_source(settings: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the settings with their source in each hook and server, which is what its listing shows."""
    marked, mark = dict(settings), {"source": source}
    if "hooks" in marked:
        marked["hooks"] = {event: [{**one, **mark} for one in hooks] for event, hooks in marked["hooks"].items()}
    if "mcp" in marked:
        marked["mcp"] = {name: {**server, **mark} for name, server in marked["mcp"].items()}
    if "servers" in marked.get("lsp", {}):
        servers = {name: {**server, **mark} for name, server in marked["lsp"]["servers"].items()}
        marked["lsp"] = {**marked["lsp"], "servers": servers}
    return marked


def load_workspace(user: Config, workspace: Path, *, strict: bool = True) -> Config:
    """Load all layers with nothing trusted, and drop the sources."""
    plain = msgspec.to_builtins(user)
    return load_layers(LoadedConfig(user, {}, (), plain), workspace, TrustList(), {}, strict=strict).config


def load_layers(
    user: LoadedConfig,
    workspace: Path,
    trust: TrustList,
    environment: Mapping[str, str] = os.environ,
    *,
    strict: bool = True,
) -> LoadedConfig:
    """Merge the repository's files and the environment over the user's configuration.

    An invalid repository file raises BadConfig; with `strict` False it is ignored with a warning."""
    merged = dict(user.plain)  # nested tables and lists are shared: they are replaced, never modified
    sources = dict(user.sources)
    ignored = list(user.ignored)
    for file in repository_files(workspace):
        if file.content is None:
            if strict and file.is_error:
                raise BadConfig(file.why)
            ignored.append(file.why)
            continue
        try:
            settings, warnings = _effective_settings(file.path, file.content, trust)
        except BadConfig as error:
            if strict:
                raise
            ignored.append(f"{error.message.rstrip('.')}; the file is ignored.")
            continue
        ignored += warnings
        _merge(merged, settings, str(file.path), sources)
    if len(files := merged.get("context", {}).get("files", ())) > CONTEXT_FILES_MAX:  # each file alone has fewer
        merged["context"] = merged["context"] | {"files": files[:CONTEXT_FILES_MAX]}
        ignored.append(f"context.files: only the first {CONTEXT_FILES_MAX} of {len(files)} names are used.")
    ignored += _merge_settings_hooks(merged, workspace, trust, sources)
    for event, entries in merged.get("hooks", {}).items():
        if len(entries) > HOOKS_MAX:  # each file alone has fewer
            merged["hooks"] = merged["hooks"] | {event: entries[:HOOKS_MAX]}
            ignored.append(f"hooks.{event}: only the first {HOOKS_MAX} of {len(entries)} hooks are used.")
    for variable, value in environment_keys(environment).items():
        _merge(merged, {VARIABLES[variable]: value}, f"${variable}", sources)
    return LoadedConfig(to_config(merged, workspace), sources, tuple(ignored), merged)


def environment_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set a key and are not empty."""
    return {name: environment[name] for name in VARIABLES if environment.get(name)}


def _effective_settings(path: Path, content: bytes, trust: TrustList) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a repository's file that take effect, and warnings about the others."""
    plain = parse_toml(content, path, REPOSITORY_DOTS_WORK_MAX)
    warnings = []
    try:
        is_trusted = trust.contains(path, content)
    except BadConfig as error:
        is_trusted = False
        warnings.append(error.message)
    settings = {key: value for key, value in plain.items() if key in (TRUSTED_KEYS if is_trusted else OPEN_KEYS)}
    if untrusted := [] if is_trusted else keys_needing_trust(plain):
        verb = "is" if len(untrusted) == 1 else "are"
        warnings.append(
            f"{path} sets {', '.join(untrusted)}, which {verb} ignored until you trust it: kedge config trust"
        )
    if forbidden := sorted(plain.keys() - TRUSTED_KEYS):
        warnings.append(f"{path} sets {', '.join(forbidden)}, which only your own file can set.")
    if str(plain.get("mode")) in OWN_MODES:
        settings.pop("mode", None)
        warnings.append(f'{path} sets mode = "{plain["mode"]}", which only your own file can set.')
    # Check the file alone first, so that an error names it. With keys that do not exist: they are mistakes.
    to_config({key: value for key, value in plain.items() if key in settings or key not in ALL_KEYS}, path, content)
    return _with_source(settings, str(path)), warnings


def _merge_settings_hooks(
    merged: dict[str, Any], workspace: Path, trust: TrustList, sources: dict[str, str]
) -> list[str]:
    """Merge the hooks of trusted `.claude/settings.json` files; return warnings about the others."""
    warnings = []
    for file in settings_files(workspace):
        try:
            is_trusted = bool(file.content) and trust.contains(file.path, file.content)
        except BadConfig:
            is_trusted = False  # reported above if it matters, and by `kedge config check`
        usable = [hook for hook in file.hooks if not hook.problem]
        if file.problem:
            warnings.append(file.problem)
        elif usable and not is_trusted:
            warnings.append(f"{file.path} has hooks, which are ignored until you trust it: kedge config trust")
        for hook in usable if is_trusted else ():
            settings = _with_source({"hooks": {hook.event: [hook.entry()]}}, str(file.path))
            _merge(merged, settings, str(file.path), sources)
    return warnings


def keys_needing_trust(plain: dict[str, Any]) -> list[str]:
    """Return the keys of a repository's file that take effect only when it is trusted."""
    return sorted(plain.keys() & (TRUSTED_KEYS - OPEN_KEYS))


def _merge(into: dict[str, Any], layer: dict[str, Any], source: str, sources: dict[str, str], prefix: str = "") -> None:
    for key, value in layer.items():
        name = prefix + (key if _BARE_KEY.fullmatch(key) else f'"{key}"')
        before = into.get(key)
        if isinstance(value, dict):
            if prefix in ("providers.", "lsp.servers.", "mcp.") and before is not None:
                before = None  # a provider or a server is replaced as a whole
                _drop_sources(sources, f"{name}.")
            into[key] = dict(before) if isinstance(before, dict) else {}
            _merge(into[key], value, source, sources, f"{name}.")
        elif isinstance(value, list) and isinstance(before, list) and before:
            known = {item for item in before if isinstance(item, str)}  # lists that grow hold strings
            into[key] = [*before, *(item for item in value if not isinstance(item, str) or item not in known)]
            sources[name] = f"{sources[name]}, {source}" if name in sources else source
        else:
            into[key] = value
            sources[name] = source


def _drop_sources(sources: dict[str, str], prefix: str) -> None:
    for name in [name for name in sources if name.startswith(prefix)]:
        del sources[name]


# --- files ----------------------------------------------------------------------------------------------------------


def repository_files(workspace: Path) -> list[RepositoryFile]:
    """Return the configuration files from the repository's root down to the workspace."""
    try:
        return read_configuration(workspace, FILE_NAMES, REPOSITORY_BYTES_MAX)
    except OSError as error:
        return [RepositoryFile(workspace, None, f"{workspace} cannot be read: {error.strerror}.", True)]


def parse_toml(content: bytes, path: Path, dots_work_max: int = DOTS_WORK_MAX) -> dict[str, Any]:
    if len(content) > CONFIG_BYTES_MAX:
        raise BadConfig(f"{path} is larger than {CONFIG_BYTES_MAX} bytes.")
    dots = [line.count(b".") for line in content.split(b"\n")]
    if max(dots) * (sum(dots) + len(dots)) > dots_work_max:
        raise BadConfig(f"{path} has lines with hundreds or thousands of dots; write long lists on several lines.")
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:
        raise BadConfig(f"{path} is not valid TOML: {explain_syntax(error, content)}.") from None
    except RecursionError:
        raise BadConfig(f"{path} is not valid TOML: nested too deeply.") from None


def to_config(plain: dict[str, Any], path: Path, content: bytes = b"") -> Config:
    """Convert parsed TOML. Raises BadConfig, with path, line and suggestion, if it does not match the schema.

    `content`: the file, to find the line."""
    text = content.decode("utf-8", "replace")
    try:
        config = msgspec.convert(plain, Config)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}{explain_schema(error, plain, text, Config)}") from None
    except RecursionError:
        raise BadConfig(f"{path} is nested too deeply.") from None
    errors = list(islice(errors_in(config), ERRORS_MAX + 1))
    if errors:
        located_errors = [
            located(text, keys, f"{value!r} {error}", value) for keys, value, error in errors[:ERRORS_MAX]
        ]
        first, *further = dict.fromkeys(located_errors)
        sentences = [first, *(error.lstrip(":, ").replace("line", "Line", 1) for error in further)]
        sentences += ["There are more."] * (len(errors) > ERRORS_MAX)
        raise BadConfig(f"{path}{' '.join(sentences)}")
    return config
