"""The plugins of the user as extensions of a workspace: their states, and the parts of them that are not used.

What they bring acts elsewhere: hooks and servers as settings (`config.load.with_plugins`), the others in the library.
"""

from __future__ import annotations

from collections.abc import Iterator

from kedge.config.library_files import LibrarySource, plugin_sources
from kedge.config.plugins import LIST_NAME, InstalledPlugin, PluginItem, PluginStore
from kedge.config.schema import Config, LanguageServerConfig, McpServerConfig, origin_of
from kedge.core.extensions import ExtensionState
from kedge.core.untrusted_text import one_line
from kedge.errors import BadConfig
from kedge.extensions.part import ExtensionHost
from kedge.tools.base import Tool

#: A text in a state. Characters.
TEXT_CHARS_MAX = 300
#: Names in a state: what a screen shows. Items.
OFFERS_MAX = 500


class PluginPart:
    """The ExtensionPart."""

    has_processes = False

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._store = PluginStore(host.config_dir, host.data_dir)
        self._config = Config()
        self._installed: list[InstalledPlugin] = []
        #: Why no plugin is used; empty: they are.
        self._problem = ""

    async def refresh(self, config: Config) -> None:
        self._config = config
        try:
            self._installed, self._problem = await self._host.files.run(self._store.installed), ""
        except BadConfig as error:
            self._installed, self._problem = [], error.message

    def libraries(self) -> list[LibrarySource]:
        """Return the directories of the plugins that are used."""
        usable = [one for one in self._installed if not one.problem]
        return [source for one in usable for source in plugin_sources(one.plugin.name, one.path)]

    def states(self) -> tuple[ExtensionState, ...]:
        if self._problem:
            return (ExtensionState("plugin", LIST_NAME, "failed", error=self._problem),)
        return tuple(state for one in self._installed for state in (_state(one), *self._unused(one)))

    def _unused(self, one: InstalledPlugin) -> Iterator[ExtensionState]:
        """Yield the hooks that cannot be used, and the servers that another one of the same name replaces."""
        for number, item in enumerate(one.contents.items, 1):
            if item.kind in ("command", "skill", "agent"):
                continue  # the library lists these
            problem = item.problem
            used = self._server(item)
            if used is not None and used.source != one.source:
                problem = f"that of the {origin_of(used.source)} has the same name and is used instead"
            if problem:
                name = _hook_name(item, number) if item.kind == "hook" else one_line(item.name, TEXT_CHARS_MAX)
                path, error = str(one.path), one_line(problem, TEXT_CHARS_MAX)
                yield ExtensionState(item.kind, name, "disabled", origin_of(one.source), path, error=error)

    def _server(self, item: PluginItem) -> McpServerConfig | LanguageServerConfig | None:
        """Return the server of this kind and name that is used."""
        match item.kind:
            case "mcp":
                return self._config.mcp.get(item.name)
            case "lsp":
                return self._config.lsp.servers.get(item.name)
            case _:
                return None

    def tools(self) -> tuple[Tool, ...]:
        return ()

    def system_text(self) -> str:
        return ""

    async def close(self) -> None:
        pass


def _state(one: InstalledPlugin) -> ExtensionState:
    offers = tuple(one_line(f"{item.kind} {item.name}", TEXT_CHARS_MAX) for item in one.contents.items[:OFFERS_MAX])
    return ExtensionState(
        "plugin",
        one.plugin.name,
        "failed" if one.problem else "ready",
        path=str(one.path),
        description=one_line(f"{one.plugin.version} {one.plugin.description}".strip(), TEXT_CHARS_MAX),
        error=one_line(one.problem, TEXT_CHARS_MAX),
        offers=offers,
    )


def _hook_name(item: PluginItem, number: int) -> str:
    return one_line(f"{item.name}: {item.command}", TEXT_CHARS_MAX) + f" ({number})"
