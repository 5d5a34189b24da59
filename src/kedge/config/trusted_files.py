"""The files of a repository that take effect only when the user trusts their exact content.

Each kind of such files adds its names and its content here, so that `kedge config trust` covers all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kedge.config.claude_settings import SETTINGS_NAME, settings_files
from kedge.config.library_files import LIBRARY_DIRECTORIES, definitions_needing_trust
from kedge.config.load import FILE_NAMES, keys_needing_trust, parse_toml, repository_files, to_config
from kedge.config.mcp_config import FILE_NAME as MCP_NAME
from kedge.config.mcp_config import mcp_files, parse_mcp_file
from kedge.config.repository import repository_directories
from kedge.config.schema import masked_secret
from kedge.config.trust import TrustList


class FileNeedingTrust(Struct, frozen=True):
    path: Path
    #: The content to trust, as it was shown.
    content: bytes
    #: (name, value) of everything in it that needs trust.
    settings: list[tuple[str, str]]


def files_needing_trust(workspace: Path) -> list[FileNeedingTrust]:
    """Return the files with something that needs trust. Raises BadConfig if one is not valid. Blocking."""
    files = []
    for file in repository_files(workspace):
        if file.content is None:
            continue
        plain = parse_toml(file.content, file.path)
        to_config(plain, file.path, file.content)
        lines = [line for key in keys_needing_trust(plain) for line in flat_settings(key, plain[key])]
        files.append(FileNeedingTrust(file.path, file.content, [(name, _shown(name, value)) for name, value in lines]))
    for file in mcp_files(workspace):
        if file.content is not None:
            servers = msgspec.to_builtins(parse_mcp_file(file.content, file.path))
            lines = flat_settings("mcp", servers)
            shown = [(name, _shown(name, value)) for name, value in lines]
            files.append(FileNeedingTrust(file.path, file.content, shown))
    for settings in settings_files(workspace):
        hooks = [(f"{hook.event} {hook.matcher}".strip(), hook.command) for hook in settings.hooks if not hook.problem]
        files.append(FileNeedingTrust(settings.path, settings.content, hooks))
    for one in definitions_needing_trust(workspace, Path.home()):
        files.append(FileNeedingTrust(one.path, one.content, list(one.powers)))
    return [file for file in files if file.settings]


def paths_needing_trust(workspace: Path, trusted: TrustList) -> list[Path]:
    """Return the places of such files, whether or not they exist."""
    directories = repository_directories(workspace)
    libraries = [directory / name for directory in directories for name in LIBRARY_DIRECTORIES]
    return [
        *(directory / name for directory in directories for name in (*FILE_NAMES, SETTINGS_NAME, MCP_NAME)),
        *(path for path in trusted.paths() if any(path.is_relative_to(library) for library in libraries)),
    ]


def _shown(name: str, value: str) -> str:
    """Mask a key: it is not a secret any more in a repository, but should still not be on the screen."""
    return masked_secret(value) if name.endswith(".api_key") or ".headers." in name else value


def flat_settings(prefix: str, value: Any) -> list[tuple[str, str]]:
    """Return (dotted name, value) of each setting that is not empty."""
    if isinstance(value, dict):
        return [line for name, inner in value.items() for line in flat_settings(_dotted(prefix, name), inner)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [line for number, inner in enumerate(value) for line in flat_settings(f"{prefix}[{number}]", inner)]
    if value in (None, "", []):
        return []
    return [(prefix, str(value).lower() if isinstance(value, bool) else str(value))]


def _dotted(prefix: str, name: str) -> str:
    bare = name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else f'"{name}"'
    return f"{prefix}.{bare}" if prefix else bare
