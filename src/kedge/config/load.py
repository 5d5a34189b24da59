"""Configuration: TOML files in layers, later ones over earlier ones, checked against one schema (`schema.py`).

    the user's file            everything
    kedge.toml, or             choices only: which model, how Runs go, which instruction files. The rest is ignored, and
    .kedge/config.toml, from   said to be, until the user trusts that exact content; then it may say everything but
    the repository's root      how the server runs
    down to the workspace
    KEDGE_MODEL and so on      the environment of the server

A later value replaces an earlier one. Lists grow, so that a repository cannot drop what its user denies. A provider or
an MCP server is replaced as a whole, so that the user's key never goes to a repository's address.
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

from kedge.config.repository import NotRead, levels, owners, read_inside, read_regular
from kedge.config.schema import (
    CONTEXT_FILES_MAX,
    Config,
    first_fault,
)
from kedge.config.trust import Trust
from kedge.errors import BadConfig, Invalid

#: Of the user's own file. It is written by a person, and parsed on the event loop: a hundred kilobytes take some 50 ms,
#: made to hurt some 200 ms. Bytes.
CONFIG_BYTES_MAX = 128 * 1024
#: Of all files of a repository together: they are not trusted, and are parsed on the event loop, too; made to hurt,
#: this much takes some 60 ms. Bytes.
REPOSITORY_BYTES_MAX = 32 * 1024
#: For each dot of a key the parser keeps a tuple of all parts before it, with those of the table's own name, and with
#: each line it walks along that name: a few kilobytes in a repository could take gigabytes. So: most dots in a line, by
#: all dots and lines together. People have dots, too, in lists of hosts. At worst some 80 MB.
DOTS_WORK_MAX = 10_000_000
#: The same in a repository's file: ten million would be seconds on the event loop. Two hundred hosts fit into a line.
REPOSITORY_DOTS_WORK_MAX = 200_000
#: What a repository's file may say before its user has trusted it, and after: top-level keys.
OPEN_KEYS = frozenset({"model", "small_model", "runs", "context"})
TRUSTED_KEYS = OPEN_KEYS | {"permissions", "sandbox", "tools", "mcp", "providers"}
FILE_NAMES = ("kedge.toml", ".kedge/config.toml")
#: Variable -> the key it sets.
VARIABLES = {"KEDGE_MODEL": "model", "KEDGE_SMALL_MODEL": "small_model"}
#: Beginnings of keys of named things, each of which is replaced as a whole.
_NAMED = frozenset({"providers.", "mcp."})
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Loaded(Struct, frozen=True):
    """A configuration, and how it came about."""

    config: Config
    #: Dotted key -> where its value comes from. What is not here has its default.
    sources: dict[str, str]
    #: What was left out, a sentence each.
    ignored: tuple[str, ...] = ()
    #: As it was written, for the next layer.
    plain: dict[str, Any] = field(default_factory=dict)


class RepositoryFile(Struct, frozen=True):
    path: Path
    #: None: it is not read, and `why` says so.
    content: bytes | None
    why: str = ""
    #: It should have been read, and could not be.
    is_fault: bool = False


# --- the layers -----------------------------------------------------------------------------------------------------


def load_user(path: Path) -> Config:
    return user_layer(path).config


def user_layer(path: Path) -> Loaded:
    """The user's own file; without one everything has its default."""
    try:
        content = read_regular(path, CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}.") from None
    if content is None and path.is_dir():
        raise BadConfig(f"{path} is a directory; the configuration is a file.")
    plain = parsed(content, path) if content is not None else {}
    sources: dict[str, str] = {}
    _merge({}, plain, str(path), sources)
    return Loaded(checked(plain, path), sources, (), plain)


def load_workspace(user: Config, workspace: Path, *, strict: bool = True) -> Config:
    """Without trust and without provenance. For a server use `layered`."""
    plain = msgspec.to_builtins(user)
    return layered(Loaded(user, {}, (), plain), workspace, Trust(), {}, strict=strict).config


def layered(
    user: Loaded, workspace: Path, trust: Trust, environment: Mapping[str, str] = os.environ, *, strict: bool = True
) -> Loaded:
    """The user's configuration, with the repository's over it and the environment over both.

    A repository's file that is wrong raises BadConfig; with `strict` False it is left out, and said to be."""
    merged = dict(user.plain)  # tables and lists in it are replaced, never changed
    sources = dict(user.sources)
    ignored = list(user.ignored)
    for file in repository_files(workspace):
        if file.content is None:
            if strict and file.is_fault:
                raise BadConfig(file.why)
            ignored.append(file.why)
            continue
        try:
            said, left_out = _said(file.path, file.content, trust)
        except BadConfig as error:
            if strict:
                raise
            ignored.append(f"{error.message.rstrip('.')}; the file is left out.")
            continue
        ignored += left_out
        _merge(merged, said, str(file.path), sources)
    if len(files := merged.get("context", {}).get("files", ())) > CONTEXT_FILES_MAX:  # each file alone has fewer
        merged["context"] = merged["context"] | {"files": files[:CONTEXT_FILES_MAX]}
        ignored.append(f"context.files: only the first {CONTEXT_FILES_MAX} of {len(files)} names count.")
    for variable, value in environment_keys(environment).items():
        _merge(merged, {VARIABLES[variable]: value}, f"${variable}", sources)
    return Loaded(checked(merged, workspace), sources, tuple(ignored), merged)


def environment_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set and say something."""
    return {name: environment[name] for name in VARIABLES if environment.get(name)}


def _said(path: Path, content: bytes, trust: Trust) -> tuple[dict[str, Any], list[str]]:
    """What of this file counts, and a sentence for each thing that does not."""
    plain = parsed(content, path, REPOSITORY_DOTS_WORK_MAX)
    left_out = []
    try:
        is_trusted = trust.holds(path, content)
    except BadConfig as error:
        is_trusted = False
        left_out.append(error.message)
    counts = {key: value for key, value in plain.items() if key in (TRUSTED_KEYS if is_trusted else OPEN_KEYS)}
    if waiting := [] if is_trusted else needing_trust(plain):
        verb = "is" if len(waiting) == 1 else "are"
        left_out.append(
            f"{path} sets {', '.join(waiting)}, which {verb} ignored until you trust it: kedge config trust"
        )
    if never := sorted(plain.keys() - TRUSTED_KEYS):
        left_out.append(f"{path} sets {', '.join(never)}, which only your own file can set.")
    checked(counts, path)  # by itself first: a mistake is told with the file it is in
    return counts, left_out


def needing_trust(plain: dict[str, Any]) -> list[str]:
    """The keys of a repository's file that count only when it is trusted."""
    return sorted(plain.keys() & (TRUSTED_KEYS - OPEN_KEYS))


def _merge(into: dict[str, Any], layer: dict[str, Any], where: str, sources: dict[str, str], prefix: str = "") -> None:
    for key, value in layer.items():
        dotted = prefix + (key if _BARE.fullmatch(key) else f'"{key}"')
        before = into.get(key)
        if isinstance(value, dict):
            if prefix in _NAMED and before is not None:
                before = None
                for name in [name for name in sources if name.startswith(f"{dotted}.")]:
                    del sources[name]
            table = into[key] = dict(before) if isinstance(before, dict) else {}
            _merge(table, value, where, sources, f"{dotted}.")
        elif isinstance(value, list) and isinstance(before, list) and before:
            held = {item for item in before if isinstance(item, str)}  # lists that grow are of strings
            into[key] = [*before, *(item for item in value if not isinstance(item, str) or item not in held)]
            sources[dotted] = f"{sources[dotted]}, {where}" if dotted in sources else where
        else:
            into[key] = value
            sources[dotted] = where


# --- files ----------------------------------------------------------------------------------------------------------


def repository_files(workspace: Path) -> list[RepositoryFile]:
    """The files that apply, from the repository's root down to the workspace."""
    try:
        places, trusted = levels(workspace), owners(workspace)
    except OSError as error:
        return [RepositoryFile(workspace, None, f"{workspace} cannot be looked into: {error.strerror}.", True)]
    found = []
    left = REPOSITORY_BYTES_MAX
    for path in (place / name for place in places for name in FILE_NAMES):
        try:
            content = read_inside(path, places[0], trusted, left + 1)
        except NotRead as why:
            found.append(RepositoryFile(path, None, f"{path} {why} and is not read."))
        except OSError as error:
            found.append(RepositoryFile(path, None, f"{path} cannot be read: {error.strerror}.", True))
        else:
            if content is not None and len(content) > left:
                too_much = f"the repository's configuration has more than {REPOSITORY_BYTES_MAX} bytes"
                found.append(RepositoryFile(path, None, f"{path} is not read: {too_much}.", True))
            elif content is not None:
                left -= len(content)
                found.append(RepositoryFile(path, content))
    return found


def parsed(content: bytes, path: Path, dots_work_max: int = DOTS_WORK_MAX) -> dict[str, Any]:
    if len(content) > CONFIG_BYTES_MAX:
        raise BadConfig(f"{path} has more than {CONFIG_BYTES_MAX} bytes; this is not a configuration.")
    dots = [line.count(b".") for line in content.split(b"\n")]
    if max(dots) * (sum(dots) + len(dots)) > dots_work_max:
        raise BadConfig(f"{path} has lines with hundreds or thousands of dots; write long lists on several lines.")
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:
        raise BadConfig(f"{path} is not valid TOML: {_without_content(error)}.") from None
    except RecursionError:
        raise BadConfig(f"{path} is not valid TOML: it is nested too deeply.") from None


def _without_content(error: ValueError) -> str:
    """Where the mistake is. A decoding error would show bytes of the file, which may be those of a key."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    # The parser lets one of Python's own through: a number of thousands of digits.
    return str(error) if isinstance(error, tomllib.TOMLDecodeError) else "a number in it is too long"


def checked(plain: dict[str, Any], path: Path) -> Config:
    """BadConfig, with the file's name, if it is not what the schema says."""
    try:
        config = msgspec.convert(plain, Config)
        config.permissions.rules()
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {error}.") from None
    except Invalid as error:
        raise BadConfig(f"{path}: permissions: {error.message}.") from None
    except RecursionError:
        raise BadConfig(f"{path} is nested too deeply.") from None
    if fault := first_fault(config):
        raise BadConfig(f"{path}: {fault}.")
    return config
