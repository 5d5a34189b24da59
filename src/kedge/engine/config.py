"""Configuration: TOML files in layers, later ones over earlier ones, checked against one schema.

    the user's file            everything
    kedge.toml in the          choices only: which model, how Runs wait. A repository can never set endpoints, keys
    workspace's repository     or anything else that would make this machine act for it.

Values named "$NAME" are read from the environment when they are used; they are never shown.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from kedge.core.claims import GRACE_S, HOLD_S
from kedge.core.commands import OnCrash, WhenBusy
from kedge.errors import BadConfig

OFFLINE = "kedge/offline"
MASK = "********"
#: A configuration is written by a person. Bytes.
CONFIG_BYTES_MAX = 1024 * 1024
#: What a repository's file may say before its user has trusted it: top-level keys.
REPOSITORY_KEYS = frozenset({"model", "small_model", "runs"})
#: Directories from the workspace up in which a repository's root is looked for. Items.
PARENTS_MAX = 64


class ModelEntry(Struct, forbid_unknown_fields=True):
    id: str
    context_window: int | None = None


class Provider(Struct, forbid_unknown_fields=True):
    type: Literal["openai"] = "openai"
    base_url: str = ""
    api_key: str = ""
    models: list[ModelEntry] = []


class RunsConfig(Struct, forbid_unknown_fields=True):
    when_busy: Literal["auto"] | WhenBusy = "auto"
    on_crash: OnCrash = "resume"
    queue_runs_max: int = 100
    #: How long a stopped Run's clean-up may take before it ends with `cleanup: failed`.
    cleanup_s: float = 10.0


class ServerConfig(Struct, forbid_unknown_fields=True):
    heartbeat_s: float = 15.0
    #: A stream that has taken nothing for so long is dropped.
    stall_s: float = 60.0
    hold_s: float = HOLD_S
    grace_s: float = GRACE_S
    #: A server that a client started exits so long after its last workspace is gone.
    idle_exit_s: float = 60.0
    #: How long an orderly shutdown may wait for Runs, beyond their own clean-up.
    shutdown_s: float = 5.0
    #: Entries of a workspace's log kept when the server starts; a reader from before gets a `gap`.
    log_entries_max: int = 200_000


class Config(Struct, forbid_unknown_fields=True):
    model: str = ""
    small_model: str = ""
    providers: dict[str, Provider] = field(default_factory=dict)
    runs: RunsConfig = field(default_factory=RunsConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def shown(self) -> dict[str, Any]:
        """For people and clients: everything but secrets."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for name, provider in plain["providers"].items():
            provider |= {"id": name, "name": name, "api_key": MASK if provider["api_key"] else ""}
        large = self.model or OFFLINE
        plain["models"] = {"large": _selected(large), "small": _selected(self.small_model or large)}
        return plain


def _selected(name: str) -> dict[str, str]:
    provider, _, model = name.partition("/")
    return {"provider": provider, "model": model}


def load_user(path: Path) -> Config:
    return _checked(_read(path), path)


def load_workspace(user: Config, workspace: Path) -> Config:
    """The user's configuration with the choices of the workspace's repository over it."""
    merged: dict[str, Any] = msgspec.to_builtins(user)
    source = workspace
    try:
        files = repository_files(workspace)
    except OSError as error:
        raise BadConfig(f"{workspace} cannot be looked into: {error.strerror}.") from None
    for path in files:
        source = path
        for key, value in _read(path).items():
            if key not in REPOSITORY_KEYS:
                continue
            both_tables = isinstance(value, dict) and isinstance(merged[key], dict)
            merged[key] = {**merged[key], **value} if both_tables else value
    return _checked(merged, source)


def repository_files(workspace: Path) -> list[Path]:
    """The files that apply, from the repository's root down to the workspace."""
    upward = [workspace, *workspace.parents][:PARENTS_MAX]
    root = next((place for place in upward if (place / ".git").exists()), workspace)
    levels = upward[: upward.index(root) + 1]
    names = ("kedge.toml", ".kedge/config.toml")
    return [place / name for place in reversed(levels) for name in names if (place / name).is_file()]


def secret(value: str, environment: Mapping[str, str] = os.environ) -> str:
    """A literal, or the content of the environment variable that "$NAME" names."""
    if not value.startswith("$"):
        return value
    if found := environment.get(value[1:]):
        return found
    raise BadConfig(f"The environment variable {value[1:]} is not set; it should hold the API key.")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(CONFIG_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}.") from None
    if len(text) > CONFIG_BYTES_MAX:
        raise BadConfig(f"{path} has more than {CONFIG_BYTES_MAX} bytes; this is not a configuration.")
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not valid TOML: {error}.") from None


def _checked(plain: dict[str, Any], path: Path) -> Config:
    try:
        config = msgspec.convert(plain, Config)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {error}.") from None
    if config.runs.queue_runs_max < 1:
        raise BadConfig(f"{path}: runs.queue_runs_max must be at least 1.")
    return config
