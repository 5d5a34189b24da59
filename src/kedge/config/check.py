"""Is the configuration of a workspace in order? Every file by itself, then what they say together. It changes nothing
and asks nobody; secrets are looked for and never shown."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from kedge.config.idle_rules import idle_rules
from kedge.config.load import (
    REPOSITORY_DOTS_WORK_MAX,
    TRUSTED_KEYS,
    Loaded,
    RepositoryFile,
    checked,
    layered,
    needing_trust,
    parsed,
    repository_files,
    user_layer,
)
from kedge.config.model_names import BUILT_IN, resolve_model
from kedge.config.providers import all_providers
from kedge.config.schema import MASK, masked_secret
from kedge.config.secrets import missing
from kedge.config.trust import Trust
from kedge.core.untrusted_text import one_line
from kedge.errors import BadConfig

TRUST_IT = "kedge config trust"
#: Of a rule, in characters: enough to find it.
RULE_CHARS_SHOWN = 200


class Finding(Struct):
    #: A file, or a dotted key.
    about: str
    status: Literal["ok", "warn", "fail"]
    message: str
    what_to_do: str = ""


def findings(
    user_file: Path, workspace: Path, trust: Trust, environment: Mapping[str, str] = os.environ
) -> list[Finding]:
    user, found = _user(user_file)
    for file in repository_files(workspace):
        found += _repository(file, trust)
    if user is None:
        return found
    loaded = layered(user, workspace, trust, environment, strict=False)
    return [*found, *_rules(loaded), *_models(loaded, environment), *_keys(loaded, environment)]


def _user(path: Path) -> tuple[Loaded | None, list[Finding]]:
    about = str(path)
    try:
        user = user_layer(path)
    except BadConfig as error:
        return None, [Finding(about, "fail", _without(about, error.message), "correct it")]
    if not path.exists():
        return user, [Finding(about, "ok", "there is none: defaults are used")]
    has_literal = any(masked_secret(provider.api_key) == MASK for provider in user.config.providers.values())
    if has_literal and stat.S_IMODE(path.stat().st_mode) & 0o077:
        return user, [Finding(about, "warn", "it holds a key and is open to others", f"chmod 600 {path}")]
    return user, [Finding(about, "ok", "in force")]


def _repository(file: RepositoryFile, trust: Trust) -> Iterator[Finding]:
    about = str(file.path)
    if file.content is None:
        what_to_do = "fix its owner and mode" if file.is_fault else "put the file itself there"
        yield Finding(about, "fail" if file.is_fault else "warn", _without(about, file.why), what_to_do)
        return
    try:
        plain = parsed(file.content, file.path, REPOSITORY_DOTS_WORK_MAX)
        checked(plain, file.path)  # all of it, also what does not count yet
    except BadConfig as error:
        yield Finding(about, "fail", _without(about, error.message), "correct it")
        return
    if never := sorted(plain.keys() - TRUSTED_KEYS):
        yield Finding(about, "warn", f"it sets {', '.join(never)}, which is ignored", "set it in your own file")
    waiting = needing_trust(plain)
    try:
        is_trusted = trust.holds(file.path, file.content)
    except BadConfig as error:
        yield Finding(str(trust.file), "warn", _without(str(trust.file), error.message), f"then {TRUST_IT}")
        is_trusted = False
    if waiting and not is_trusted:
        yield Finding(about, "warn", f"it sets {', '.join(waiting)}: ignored until you trust it", TRUST_IT)
    else:
        yield Finding(about, "ok", "in force, and trusted" if is_trusted else "in force")


def _rules(loaded: Loaded) -> Iterator[Finding]:
    for rule, why in idle_rules(loaded.config.permissions.rules()):
        message, _, what_to_do = why.partition("; ")
        yield Finding(one_line(str(rule), RULE_CHARS_SHOWN), "warn", message, what_to_do)


def _models(loaded: Loaded, environment: Mapping[str, str]) -> Iterator[Finding]:
    for key in ("model", "small_model"):
        name = str(getattr(loaded.config, key))
        where = f" ({loaded.sources[key]})" if key in loaded.sources else ""
        if not name:
            if key == "model":
                yield Finding(key, "warn", "none is chosen: the built-in offline model answers", "set model")
            continue
        if name in BUILT_IN:
            yield Finding(key, "ok", f"{name}{where}")
            continue
        try:
            choice = resolve_model(loaded.config, name, environment)
        except BadConfig as error:
            yield Finding(key, "fail", f"{error.message}{where}", "correct it; `kedge models` lists those there are")
            continue
        if why := missing(choice.provider.api_key, environment):
            yield Finding(key, "fail", f"{name}{where}: {why}", "set it where the server is started")
        else:
            yield Finding(key, "ok", f"{name}{where}")


def _keys(loaded: Loaded, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Those of what is configured and not chosen: nothing is broken yet."""
    config = loaded.config
    in_use = {name.partition("/")[0] for name in (config.model, config.small_model)}
    for name, provider in all_providers(config, environment).items():
        if name not in in_use and (why := missing(provider.api_key, environment)):
            yield Finding(f"providers.{name}", "warn", why, "set it where the server is started, or use another")
    for name, server in config.mcp.items():
        for value in (*server.env.values(), *server.headers.values()):
            if why := missing(value, environment):
                yield Finding(f"mcp.{name}", "warn", why.partition(";")[0], "set it where the server is started")


def _without(about: str, message: str) -> str:
    """The message without the file's name at its beginning, which stands before it already."""
    return message.removeprefix(about).removeprefix(":").strip().rstrip(".")
