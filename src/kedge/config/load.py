"""Configuration: TOML files in layers, checked against the schema (`schema.py`).

    the user's file            all settings
    kedge.toml, or             model, small_model, runs and context. Other keys are ignored, with a warning, until the
    .kedge/config.toml, from   user trusts that exact content. It can never set [server],
                               nor a mode in which commands run without approval
    the repository's root
    down to the workspace
    KEDGE_MODEL and so on      the environment of the server

A later value replaces an earlier one. Lists are concatenated, so that a repository cannot drop the user's deny rules. A
provider is replaced as a whole, so that the user's key is never sent to an address that a repository set.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from kedge.config.mistakes import explain_schema, explain_syntax, located
from kedge.config.repository import (
    UntrustedFile,
    read_inside,
    read_regular,
    repository_directories,
    trusted_owners,
)
from kedge.config.schema import (
    CONTEXT_FILES_MAX,
    Config,
    first_error,
)
from kedge.config.trust import TrustList
from kedge.errors import BadConfig

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
TRUSTED_KEYS = OPEN_KEYS | {"mode", "permissions", "sandbox", "tools", "providers"}
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


class RepositoryFile(Struct, frozen=True):
    path: Path
    #: None: not read, for the reason in `why`.
    content: bytes | None
    why: str = ""
    #: Reading failed, as opposed to: the file must not be read.
    is_error: bool = False


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
    return settings, warnings


def keys_needing_trust(plain: dict[str, Any]) -> list[str]:
    """Return the keys of a repository's file that take effect only when it is trusted."""
    return sorted(plain.keys() & (TRUSTED_KEYS - OPEN_KEYS))


def _merge(into: dict[str, Any], layer: dict[str, Any], source: str, sources: dict[str, str], prefix: str = "") -> None:
    for key, value in layer.items():
        name = prefix + (key if _BARE_KEY.fullmatch(key) else f'"{key}"')
        before = into.get(key)
        if isinstance(value, dict):
            if prefix == "providers." and before is not None:
                before = None  # a provider is replaced as a whole
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
        directories, owners = repository_directories(workspace), trusted_owners(workspace)
    except OSError as error:
        return [RepositoryFile(workspace, None, f"{workspace} cannot be read: {error.strerror}.", True)]
    files = []
    left = REPOSITORY_BYTES_MAX
    for path in (directory / name for directory in directories for name in FILE_NAMES):
        try:
            content = read_inside(path, directories[0], owners, left + 1)
        except UntrustedFile as error:
            files.append(RepositoryFile(path, None, f"{path} {error} and is not read."))
        except OSError as error:
            files.append(RepositoryFile(path, None, f"{path} cannot be read: {error.strerror}.", True))
        else:
            if content is not None and len(content) > left:
                why = f"{path} is not read: the repository's configuration has more than {REPOSITORY_BYTES_MAX} bytes."
                files.append(RepositoryFile(path, None, why, True))
            elif content is not None:
                left -= len(content)
                files.append(RepositoryFile(path, content))
    return files


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
    if first := first_error(config):
        keys, value, error_text = first
        raise BadConfig(f"{path}{located(text, keys, f'{value!r} {error_text}', value)}")
    return config
