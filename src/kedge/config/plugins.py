"""Plugins: directories with skills, prompt commands, agents, hooks, and MCP and language servers, added by the user.

`kedge plugin add` shows what is in a directory, copies its files into the user's configuration directory, and records
their digest in the user's data directory, which no tool can write. A copy that no longer has this digest is not used.
So what acts is exactly what the user has seen, and removing a plugin removes everything of it.

    skills/NAME/SKILL.md     commands/**/*.md     agents/*.md     hooks/hooks.json     .mcp.json
    kedge.toml               [mcp], [hooks] and [lsp.servers]
    .claude-plugin/plugin.json or plugin.json: name, version, description
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kedge.config.claude_settings import SettingsHook, parse_settings
from kedge.config.library_files import ReadLimit, plugin_sources, read_definitions
from kedge.config.load import PluginLayer, parse_toml, to_config
from kedge.config.mcp_config import FILE_BYTES_MAX, parse_mcp_file
from kedge.config.mcp_config import FILE_NAME as MCP_FILE
from kedge.config.repository import read_regular
from kedge.config.schema import plugin_source
from kedge.core.extensions import ExtensionKind
from kedge.errors import BadConfig, Invalid

DIRECTORY = "plugins"
LIST_NAME = "plugins.json"
#: Plugins of a user: more than a user reviews. Items.
PLUGINS_MAX = 100
#: Limits of one plugin. Skills bring scripts and templates, not programs. Items and bytes.
FILES_MAX = 2000
TREE_BYTES_MAX = 20 * 1024 * 1024
DEPTH_MAX = 12
#: Size of the list of plugins. Bytes.
LIST_BYTES_MAX = 1024 * 1024
#: The tables that a plugin's kedge.toml may have.
PLUGIN_KEYS = frozenset({"mcp", "hooks", "lsp"})
MANIFESTS = (".claude-plugin/plugin.json", "plugin.json")
HOOKS_FILE = "hooks/hooks.json"
#: The variables with the directory of a plugin's copy: of other agents, and our own.
ROOT_VARIABLES = ("CLAUDE_PLUGIN_ROOT", "KEDGE_PLUGIN_ROOT")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
#: Directories of version control and caches, which are not part of a plugin.
_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules"})


class PluginFile(Struct, frozen=True):
    content: bytes
    is_executable: bool = False


#: Relative path -> file.
Tree = Mapping[str, PluginFile]


class Plugin(Struct, frozen=True):
    name: str
    #: The path or address that it was added from.
    source: str
    #: Digest of all its files.
    digest: str
    version: str = ""
    description: str = ""


class PluginItem(Struct, frozen=True):
    """A part of a plugin, as `kedge plugin add` shows it."""

    kind: ExtensionKind
    name: str
    #: The program that it runs, if any.
    command: str = ""
    #: (name, value) of what it may do: allow rules, tools, mode, model, programs.
    rights: tuple[tuple[str, str], ...] = ()
    #: What is wrong with it although it is used.
    warning: str = ""
    #: Why kedge cannot use it; empty: it can.
    problem: str = ""


class PluginContents(Struct, frozen=True):
    items: tuple[PluginItem, ...] = ()
    #: Hooks and servers, as in a configuration file.
    settings: dict[str, Any] = {}


class InstalledPlugin(Struct, frozen=True):
    plugin: Plugin
    path: Path
    #: Why it is not used; empty: it is.
    problem: str = ""
    #: Empty if it is not used.
    contents: PluginContents = PluginContents()

    @property
    def source(self) -> str:
        return plugin_source(self.plugin.name, self.plugin.digest)


class _List(Struct):
    plugins: list[Plugin] = []


# --- a directory ----------------------------------------------------------------------------------------------------


def read_tree(directory: Path) -> dict[str, PluginFile]:
    """Read all files of a directory. Raises Invalid for links, other special files, and too many or too large ones."""
    files: dict[str, PluginFile] = {}
    left = TREE_BYTES_MAX
    for path, status in _walk(directory, DEPTH_MAX):
        relative = str(path.relative_to(directory))
        if len(files) >= FILES_MAX:
            raise Invalid(f"{directory} has more than {FILES_MAX} files. A plugin has skills, commands and agents.")
        if not stat.S_ISREG(status.st_mode):
            raise Invalid(f"{relative} is not a regular file. Links and special files are not allowed in a plugin.")
        content = read_regular(path, left + 1) or b""
        left -= len(content)
        if left < 0:
            raise Invalid(f"{directory} is larger than {TREE_BYTES_MAX} bytes.")
        files[relative] = PluginFile(content, bool(status.st_mode & 0o100))
    return files


def _walk(directory: Path, depth_left: int) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(directory) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            yield Path(entry.path), status
        elif entry.name not in _SKIPPED:
            if depth_left == 0:
                raise Invalid(f"{entry.path} is nested too deeply for a plugin.")
            yield from _walk(Path(entry.path), depth_left - 1)


def tree_digest(tree: Tree) -> str:
    lines = (f"{path}\0{file.is_executable}\0{hashlib.sha256(file.content).hexdigest()}" for path, file in tree.items())
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def write_tree(tree: Tree, directory: Path) -> None:
    """Write the files into a new directory, which only the user can read. Raises OSError."""
    for path, file in tree.items():
        target = directory / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(0o700 if file.is_executable else 0o600)


def plugin_of(tree: Tree, source: str, name: str) -> Plugin:
    """Return the plugin that a tree contains. `name`: if its manifest has none. Raises Invalid with the reason."""
    manifest: dict[str, Any] = {}
    for path in MANIFESTS:
        if path in tree:
            manifest = json_object(tree[path].content, path)
            break
    texts = {key: value for key, value in manifest.items() if isinstance(value, str)}
    name = texts.get("name", name).lower()
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name[:100]!r} is not a valid name of a plugin. Use letters, digits, - and _.")
    return Plugin(name, source, tree_digest(tree), texts.get("version", ""), texts.get("description", ""))


def contents_of(tree: Tree, directory: Path) -> PluginContents:
    """Return what a plugin brings. `directory` has the files of the tree. Raises Invalid for a file that is not valid,
    and if there is nothing."""
    items = _library_items(directory)
    settings = _settings(tree)
    items += [PluginItem("mcp", name, _command_line(one)) for name, one in settings.get("mcp", {}).items()]
    lsp = settings.get("lsp", {}).get("servers", {})
    items += [PluginItem("lsp", name, _command_line(one)) for name, one in lsp.items()]
    hooks = _settings_hooks(tree)
    for event, entries in settings.get("hooks", {}).items():
        items += [PluginItem("hook", _hook_name(event, one.get("matcher", "")), one["command"]) for one in entries]
    items += [PluginItem("hook", _hook_name(one.event, one.matcher), one.command, problem=one.problem) for one in hooks]
    for hook in hooks:
        if not hook.problem:
            settings.setdefault("hooks", {}).setdefault(hook.event, []).append(hook.entry())
    if not items:
        raise Invalid("It is not a plugin: it has no skills, commands, agents, hooks or servers.")
    return PluginContents(tuple(items), settings)


def _library_items(directory: Path) -> list[PluginItem]:
    """Return the commands, skills and agents, as the library reads them."""
    limit = ReadLimit()
    items = []
    for source in plugin_sources("", directory):
        for one in read_definitions(source, limit):
            problem = one.error.replace(f"{directory}/", "")
            items.append(PluginItem(one.kind, one.name, "", one.shown_rights, one.warning, problem))
    return items


def _settings(tree: Tree) -> dict[str, Any]:
    """Return the settings of the plugin's kedge.toml, with the servers of its `.mcp.json`."""
    settings: dict[str, Any] = {}
    try:
        if file := tree.get("kedge.toml"):
            path = Path("kedge.toml")
            settings = parse_toml(file.content, path)
            to_config(settings, path, file.content)
            foreign = [*(settings.keys() - PLUGIN_KEYS), *(f"lsp.{key}" for key in settings.get("lsp", {}))]
            if foreign := sorted(set(foreign) - {"lsp.servers"}):
                raise Invalid(f"kedge.toml sets {', '.join(foreign)}; a plugin can only have mcp, hooks, lsp.servers.")
        if file := tree.get(MCP_FILE):
            if len(file.content) > FILE_BYTES_MAX:
                raise Invalid(f"{MCP_FILE} is larger than {FILE_BYTES_MAX} bytes.")
            servers = msgspec.to_builtins(parse_mcp_file(file.content, Path(MCP_FILE)))
            settings["mcp"] = {**servers, **settings.get("mcp", {})}
    except BadConfig as error:
        raise Invalid(error.message) from None
    return settings


def _settings_hooks(tree: Tree) -> tuple[SettingsHook, ...]:
    if (file := tree.get(HOOKS_FILE)) is None:
        return ()
    parsed = parse_settings(Path(HOOKS_FILE), file.content)
    if parsed.problem:
        raise Invalid(parsed.problem)
    return parsed.hooks


def _with_root(settings: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return the settings with the plugin's directory in the programs of its servers, and in the environment of its MCP
    servers. A hook has it only there, since a path in the text of a shell command could be read as a part of it."""

    def text(value: str) -> str:
        for variable in ROOT_VARIABLES:
            value = value.replace(f"${{{variable}}}", str(root))
        return value

    def server(entry: dict[str, Any]) -> dict[str, Any]:
        rooted = dict(entry)
        for key in entry.keys() & {"command", "cwd"}:
            rooted[key] = text(entry[key])
        if "args" in entry:
            rooted["args"] = [text(value) for value in entry["args"]]
        return rooted

    def with_environment(entry: dict[str, Any]) -> dict[str, Any]:
        own = {name: text(value) for name, value in entry.get("env", {}).items()}
        return {**server(entry), "env": {**dict.fromkeys(ROOT_VARIABLES, str(root)), **own}}

    rooted = dict(settings)
    if "mcp" in rooted:
        rooted["mcp"] = {name: with_environment(entry) for name, entry in rooted["mcp"].items()}
    if "lsp" in rooted:
        rooted["lsp"] = {"servers": {name: server(one) for name, one in rooted["lsp"].get("servers", {}).items()}}
    return rooted


def json_object(content: bytes, name: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Invalid(f"{name} is not valid JSON: {error}.") from None


def _hook_name(event: str, matcher: str) -> str:
    return f"{event} {matcher}".strip()


def _command_line(server: dict[str, Any]) -> str:
    words = [server.get("command"), *server.get("args", ())] if server.get("command") else [server.get("url")]
    return " ".join(str(word) for word in words if word)


# --- the installed plugins ------------------------------------------------------------------------------------------


class PluginStore:
    """The plugins of the user. Confined commands can read their files in the configuration directory, and not the list
    in the data directory. Blocking. A server and `kedge plugin` use it at the same time."""

    def __init__(self, config_dir: Path, data_dir: Path) -> None:
        self._directory = config_dir / DIRECTORY
        self._list = data_dir / LIST_NAME
        #: Name -> the state of its files when they were verified, and the result.
        self._verified: dict[str, tuple[tuple[object, ...], InstalledPlugin]] = {}

    def installed(self) -> list[InstalledPlugin]:
        """Return all plugins. The files of one that has changed on disk are verified again. Without plugins it costs
        the look for a file. Raises BadConfig if the list is damaged."""
        verified = {plugin.name: self._verify(plugin) for plugin in self._read()}
        self._verified = verified  # at once: the threads of all workspaces share this object
        return [installed for _, installed in verified.values()]

    def layers(self) -> list[PluginLayer]:
        """Return the settings of the plugins that are used."""
        return layers_of(self.installed())

    def add(self, plugin: Plugin, tree: Tree) -> None:
        """Copy the files. Another plugin of this name is replaced. Raises OSError."""
        listed = [other for other in self._read() if other.name != plugin.name]
        if len(listed) >= PLUGINS_MAX:
            raise Invalid(f"There are {PLUGINS_MAX} plugins already. Remove one with: kedge plugin remove NAME")
        new = self._directory / f".{plugin.name}.{os.getpid()}"
        shutil.rmtree(new, ignore_errors=True)
        write_tree(tree, new)
        shutil.rmtree(self._directory / plugin.name, ignore_errors=True)
        os.replace(new, self._directory / plugin.name)
        self._write([*listed, plugin])

    def remove(self, name: str) -> bool:
        """Remove a plugin with all its files. Returns False if it was not there."""
        listed = self._read()
        left = [plugin for plugin in listed if plugin.name != name]
        if len(left) == len(listed):
            return False
        self._write(left)  # first: from now on it is not used, whatever becomes of the files
        shutil.rmtree(self._directory / name, ignore_errors=True)
        if not left:
            with suppress(OSError):  # it has other files
                self._directory.rmdir()
        return True

    def _verify(self, plugin: Plugin) -> tuple[tuple[object, ...], InstalledPlugin]:
        path = self._directory / plugin.name
        known = self._verified.get(plugin.name)
        try:
            walked = ((str(entry), status) for entry, status in _walk(path, DEPTH_MAX))
            stamps = tuple((name, one.st_mtime_ns, one.st_ctime_ns, one.st_size) for name, one in walked)
            if known is not None and known[0] == stamps and known[1].plugin == plugin:
                return known
            tree = read_tree(path)
            if tree_digest(tree) == plugin.digest:
                contents = contents_of(tree, path)
                settings = _with_root(contents.settings, path.absolute())
                return stamps, InstalledPlugin(plugin, path, "", PluginContents(contents.items, settings))
            why = "its files have changed since it was added"
        except (OSError, Invalid) as error:
            stamps, why = (), f"its files cannot be read ({error})"
        return stamps, InstalledPlugin(plugin, path, f"{why}; run: kedge plugin add {plugin.source}")

    def _read(self) -> list[Plugin]:
        try:
            content = read_regular(self._list, LIST_BYTES_MAX)
            return [] if content is None else msgspec.json.decode(content, type=_List).plugins
        except (OSError, msgspec.DecodeError, UnicodeError):
            raise BadConfig(f"{self._list} is damaged. Remove it, then add the plugins again.") from None

    def _write(self, plugins: list[Plugin]) -> None:
        if not plugins:
            self._list.unlink(missing_ok=True)
            return
        self._list.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._list.with_name(f"{LIST_NAME}.{os.getpid()}")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(_List(plugins)), indent=2) + b"\n")
        new.chmod(0o600)
        os.replace(new, self._list)


def layers_of(plugins: list[InstalledPlugin]) -> list[PluginLayer]:
    return [PluginLayer(one.source, one.contents.settings) for one in plugins if one.contents.settings]
