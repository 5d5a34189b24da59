"""The dialog with the extensions of the workspace: servers, skills, commands, agents, hooks and plugins, with their
states and errors. Loaded when it opens, and updated by the stream."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from kedge.client.safe_text import one_line
from kedge.client.view.extension_text import extension_groups, extension_line
from kedge.client.view.workspace_view import WorkspaceView
from kedge.errors import KedgeError
from kedge.tui.connection import ServerConnection
from kedge.wire.extension_models import ExtensionBody

NO_EXTENSIONS = "no extensions; docs/extending.md describes how to add MCP servers, skills, commands, agents and hooks"
_STYLES = {"failed": "$error", "untrusted": "$warning", "needs_login": "$warning", "missing": "$muted"}


class ExtensionsScreen(ModalScreen[None]):
    DEFAULT_CSS = """
    ExtensionsScreen { align: center top; }
    ExtensionsScreen > Vertical {
        width: 120; max-width: 100%; height: auto; max-height: 100%; border: round $accent; background: $background;
        padding: 0 1;
    }
    ExtensionsScreen VerticalScroll { height: auto; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "close", show=False)]
    AUTO_FOCUS = "VerticalScroll"

    def __init__(
        self,
        connection: ServerConnection,
        view: WorkspaceView,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        super().__init__()
        self._connection, self._view, self._start = connection, view, start
        #: The states that arrived on the stream before the list was requested: the list is newer.
        self._before = dict(view.extensions)
        #: By kind, name and path: one that is not used may have the name of another.
        self._listed: dict[tuple[str, str, str], ExtensionBody] = {}

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Extensions"
            box.border_subtitle = "esc: close"
            with VerticalScroll():
                yield Static("loading …", markup=False)

    def on_mount(self) -> None:
        self._start(self._load())

    async def _load(self) -> None:
        connection = self._connection
        self._before = dict(self._view.extensions)
        try:
            listed = await connection.retry(lambda: connection.client.extensions(connection.id))
        except KedgeError as error:
            if self.is_mounted:
                self.query_one(Static).update(f"Cannot load the extensions: {one_line(error.message, 300)}")
            return
        self._listed = {(one.kind, one.name, one.path): one for one in listed}
        self._draw()
        self.update_from(self._view)

    def update_from(self, view: WorkspaceView) -> None:
        """Take over the states that arrived on the stream since the list was requested."""
        for known, changed in view.extensions.items():
            key = (changed.kind, changed.name, changed.path)
            if key in self._listed and changed is not self._before.get(known):
                self._listed[key] = changed
        if self._listed:
            self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        lines: list[Content] = []
        for title, group in extension_groups(self._listed.values()):
            lines += [Content.styled(title, "bold"), *map(_row, group), Content("")]
        self.query_one(Static).update(Content("\n").join(lines[:-1]) if lines else NO_EXTENSIONS)

    def on_resize(self) -> None:
        self.query_one(VerticalScroll).styles.max_height = max(1, self.size.height - 2)

    def action_close(self) -> None:
        self.dismiss(None)


def _row(extension: ExtensionBody) -> Content:
    line = Content.assemble("  ", (extension_line(extension), _STYLES.get(extension.condition, "")))
    if not extension.error:
        return line
    return Content.assemble(line, f"\n    {one_line(extension.error, 500)}")
