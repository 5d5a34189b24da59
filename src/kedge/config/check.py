"""The check of a workspace's configuration: each file alone, then the merged result.

It changes nothing and opens no keyring. Secrets are looked up and never displayed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from kedge.config.claude_settings import SettingsFile, settings_files
from kedge.config.load import (
    REPOSITORY_DOTS_WORK_MAX,
    TRUSTED_KEYS,
    LoadedConfig,
    keys_needing_trust,
    load_layers,
    load_user_layer,
    parse_toml,
    repository_files,
    to_config,
    with_plugins,
)
from kedge.config.mcp_config import configured_servers, mcp_files, unset_variables
from kedge.config.model_names import resolve_model
from kedge.config.plugins import InstalledPlugin, PluginStore, layers_of
from kedge.config.providers import all_providers
from kedge.config.repository import RepositoryFile
from kedge.config.rule_checks import ineffective_rules
from kedge.config.schema import MASK, masked_secret, origin_of
from kedge.config.secrets import missing
from kedge.config.trust import TrustList
from kedge.core.records import OFFLINE
from kedge.core.untrusted_text import one_line
from kedge.errors import BadConfig

TRUST_COMMAND = "kedge config trust"
#: Length of a rule in a finding: enough to recognise it. Characters.
RULE_CHARS_MAX_SHOWN = 200


class Finding(Struct):
    """One result of `kedge config check` or `kedge doctor`."""

    #: A file, a dotted key or a part of the installation.
    subject: str
    status: Literal["ok", "warn", "fail"]
    message: str
    what_to_do: str = ""


def check_config(
    user_file: Path,
    workspace: Path,
    trust: TrustList,
    environment: Mapping[str, str] = os.environ,
    plugins: PluginStore | None = None,
) -> list[Finding]:
    user, findings = _check_user_file(user_file)
    for file in repository_files(workspace):
        findings += _check_repository_file(file, trust)
    for settings in settings_files(workspace):
        findings += _check_settings_file(settings, trust)
    installed, more = _check_plugins(plugins)
    findings += more
    if user is None:
        return findings
    loaded = load_layers(with_plugins(user, layers_of(installed)), workspace, trust, environment, strict=False)
    return [
        *findings,
        *_check_rules(loaded),
        *_check_models(loaded, user_file, environment),
        *_check_keys(loaded, environment),
        *_check_mcp_servers(loaded, workspace, trust, environment),
    ]


def _check_user_file(path: Path) -> tuple[LoadedConfig | None, list[Finding]]:
    subject = str(path)
    try:
        user = load_user_layer(path)
    except BadConfig as error:
        return None, [Finding(subject, "fail", _without_subject(subject, error.message), "correct the file")]
    if not path.exists():
        return user, [Finding(subject, "ok", "not found; the defaults are used")]
    has_literal_key = any(masked_secret(provider.api_key) == MASK for provider in user.config.providers.values())
    if has_literal_key and stat.S_IMODE(path.stat().st_mode) & 0o077:
        return user, [Finding(subject, "warn", "contains a key and other users can access it", f"chmod 600 {path}")]
    return user, [Finding(subject, "ok", "in effect")]


def _check_plugins(plugins: PluginStore | None) -> tuple[list[InstalledPlugin], list[Finding]]:
    try:
        installed = [] if plugins is None else plugins.installed()
    except BadConfig as error:
        return [], [Finding("plugins", "fail", error.message, "correct it")]
    findings = []
    for one in installed:
        subject = origin_of(one.source)
        why, _, command = one.problem.rpartition("; run: ")
        findings.append(Finding(subject, "warn", why, command) if why else Finding(subject, "ok", "in effect"))
    return installed, findings


def _check_settings_file(file: SettingsFile, trust: TrustList) -> Iterator[Finding]:
    subject = str(file.path)
    if file.problem:
        yield Finding(subject, "warn", _without_subject(subject, file.problem), "correct the file")
        return
    for hook in file.hooks:
        if hook.problem:
            name = one_line(f"{hook.event} {hook.command}", RULE_CHARS_MAX_SHOWN)
            yield Finding(subject, "warn", f"{name}: {hook.problem}; it is ignored", "see docs/extending.md")
    try:
        is_trusted = trust.contains(file.path, file.content)
    except BadConfig:
        is_trusted = False
    if is_trusted:
        yield Finding(subject, "ok", "its hooks are in effect, and trusted")
    else:
        yield Finding(subject, "warn", "has hooks: ignored until you trust it", TRUST_COMMAND)


def _check_repository_file(file: RepositoryFile, trust: TrustList) -> Iterator[Finding]:
    subject = str(file.path)
    if file.content is None:
        what_to_do = "fix its owner and mode" if file.is_error else "replace it with a regular file that you own"
        yield Finding(subject, "fail" if file.is_error else "warn", _without_subject(subject, file.why), what_to_do)
        return
    try:
        plain = parse_toml(file.content, file.path, REPOSITORY_DOTS_WORK_MAX)
        to_config(plain, file.path, file.content)  # all keys, also those that are not trusted yet
    except BadConfig as error:
        yield Finding(subject, "fail", _without_subject(subject, error.message), "correct the file")
        return
    if forbidden := sorted(plain.keys() - TRUSTED_KEYS):
        yield Finding(subject, "warn", f"sets {', '.join(forbidden)}, which is ignored", "set it in your own file")
    untrusted = keys_needing_trust(plain)
    try:
        is_trusted = trust.contains(file.path, file.content)
    except BadConfig as error:
        message = _without_subject(str(trust.file), error.message)
        yield Finding(str(trust.file), "warn", message, f"then {TRUST_COMMAND}")
        is_trusted = False
    if untrusted and not is_trusted:
        yield Finding(subject, "warn", f"sets {', '.join(untrusted)}: ignored until you trust it", TRUST_COMMAND)
    else:
        yield Finding(subject, "ok", "in effect, and trusted" if is_trusted else "in effect")


def _check_rules(loaded: LoadedConfig) -> Iterator[Finding]:
    for rule, problem in ineffective_rules(loaded.config.permissions.rules()):
        message, _, what_to_do = problem.partition("; ")
        yield Finding(one_line(str(rule), RULE_CHARS_MAX_SHOWN), "warn", message, what_to_do)


def _check_models(loaded: LoadedConfig, user_file: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    for key in ("model", "small_model"):
        name = str(getattr(loaded.config, key))
        source = f" ({loaded.sources[key]})" if key in loaded.sources else ""
        if not name:
            if key == "model":
                yield Finding(key, "warn", "not set; the built-in offline model is used", f"set `model` in {user_file}")
            continue
        if name == OFFLINE:
            yield Finding(key, "ok", f"{name}{source}")
            continue
        try:
            resolved = resolve_model(loaded.config, name, environment)
        except BadConfig as error:
            yield Finding(
                key, "fail", f"{error.message}{source}", "choose another model; list models with: kedge models"
            )
            continue
        if problem := missing(resolved.provider.api_key, environment):
            yield Finding(key, "fail", f"{name}{source}: {problem}", "set it in the environment of the server")
        else:
            yield Finding(key, "ok", f"{name}{source}")


def _check_keys(loaded: LoadedConfig, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the keys of providers that no configured model uses."""
    config = loaded.config
    in_use = {name.partition("/")[0] for name in (config.model, config.small_model)}
    for name, provider in all_providers(config, environment).items():
        if name not in in_use and (problem := missing(provider.api_key, environment)):
            what_to_do = "set it in the environment of the server, or use another provider"
            yield Finding(f"providers.{name}", "warn", problem, what_to_do)


def _check_mcp_servers(
    loaded: LoadedConfig, workspace: Path, trust: TrustList, environment: Mapping[str, str]
) -> Iterator[Finding]:
    for entry in configured_servers(loaded.config, mcp_files(workspace), trust):
        subject = f"{entry.path}, {entry.name}" if entry.path else f"mcp.{entry.name}"
        if entry.problem:
            yield Finding(subject, "fail", _without_subject(entry.path, entry.problem), "correct it")
        elif entry.config.disabled:
            yield Finding(subject, "ok", "disabled")
        elif not entry.is_trusted:
            yield Finding(subject, "warn", "ignored until you trust its file", TRUST_COMMAND)
        elif unset := unset_variables(entry.config, environment):
            verb = "is" if len(unset) == 1 else "are"
            message = f"needs {', '.join(unset)}, which {verb} not set"
            yield Finding(subject, "warn", message, "set it in the environment of the server")
        else:
            yield Finding(subject, "ok", "configured; try it with: kedge mcp test")


def _without_subject(subject: str, message: str) -> str:
    """Remove the path at the start of the message, which the subject repeats."""
    return message.removeprefix(subject).lstrip(":, ").rstrip(".")
