"""The dialog with the grants of the workspace: the rules that earlier answers allowed. No event reports changes of
them, so they are loaded when it opens and after each revocation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.notifications import SeverityLevel
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.safe_text import one_line, visible_line
from kedge.client.view.ask_text import CLIENT_ID_CHARS
from kedge.client.view.author_text import by_author
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.untrusted_text import visible
from kedge.errors import KedgeError, NotFound
from kedge.tui.connection import ServerConnection
from kedge.tui.render.session_rows import age, title_of
from kedge.wire.models import GrantBody

NO_GRANTS = "no grants"


class GrantsScreen(ModalScreen[None]):
    DEFAULT_CSS = """
    GrantsScreen { align: center top; }
    GrantsScreen > Vertical {
        width: 100; max-width: 100%; height: auto; max-height: 100%; margin: 1 0 0 0;
        border: round $accent; background: $background; padding: 0 1;
    }
    GrantsScreen OptionList { height: auto; max-height: 100%; background: $background; }
    GrantsScreen #note { height: auto; max-height: 4; color: $muted; display: none; }
    GrantsScreen #note.has-text { display: block; }
    GrantsScreen #note.failed { color: $error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", show=False),
        Binding("d,delete", "revoke", "revoke the grant", show=False),
    ]
    AUTO_FOCUS = "OptionList"

    def __init__(
        self,
        connection: ServerConnection,
        view: WorkspaceView,
        session_id: str,
        start: Callable[[Coroutine[Any, Any, None]], None],
        report: Callable[[str, SeverityLevel], None],
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__()
        self._connection, self._view, self._session_id = connection, view, session_id
        self._start, self._report, self._now_ms = start, report, now_ms
        self._grants: list[GrantBody] = []
        #: They stay in the list, so that a second key press does not revoke the next one.
        self._revoked: dict[str, GrantBody] = {}
        self._is_revoking = False

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Grants"
            box.border_subtitle = "d: revoke · esc: close"
            yield OptionList(markup=False, compact=True)
            yield Static(id="note", markup=False)

    def on_mount(self) -> None:
        self._note("loading …")
        self._start(self._load(""))

    def on_resize(self) -> None:
        # The rest of the screen: without the border, the margin and a note.
        self.query_one(OptionList).styles.max_height = max(1, self.size.height - 5)

    async def _load(self, note: str) -> None:
        """Load the grants, and show the note unless there is an error."""
        connection = self._connection
        try:
            loaded = await connection.retry(lambda: connection.client.grants(connection.id))
        except KedgeError as error:
            self._note(f"Cannot load the grants: {one_line(error.message, 300)}", is_failed=True)
            return
        if not self.is_current:
            return
        ids = {grant.id for grant in loaded}
        self._revoked = {grant_id: grant for grant_id, grant in self._revoked.items() if grant_id not in ids}
        grants = sorted([*loaded, *self._revoked.values()], key=lambda grant: (grant.created_at, grant.id))
        self._draw(list(reversed(grants)))
        self._note(note if self._grants else NO_GRANTS)

    def _draw(self, grants: list[GrantBody]) -> None:
        """Update the lines. The highlighted grant stays highlighted."""
        chosen, listed = self._chosen, self.query_one(OptionList)
        index = listed.highlighted or 0
        self._grants = grants
        listed.set_options([Option(self._row(grant)) for grant in grants])
        if grants:
            indexes = [number for number, grant in enumerate(grants) if chosen and grant.id == chosen.id]
            listed.highlighted = indexes[0] if indexes else min(index, len(grants) - 1)

    def _row(self, grant: GrantBody) -> Content:
        """Return the rule in full, and a line about it."""
        when = age(grant.created_at, self._now_ms())
        is_revoked = grant.id in self._revoked
        details = [
            "revoked" if is_revoked else "",
            self._scope(grant.session_id),
            when if when == "now" or "-" in when else f"{when} ago",
            by_author(grant.author).strip() or self._client(grant.given_by),
        ]
        rule = (visible(grant.rule, keep=""), "strike" if is_revoked else "bold")
        return Content.assemble(rule, f"\n  {' · '.join(filter(None, details))}")

    def _scope(self, session_id: str) -> str:
        if not session_id:
            return "always"
        if session_id == self._session_id:
            return "this session"
        session = self._view.session(session_id)
        return f"session: {title_of(session)}" if session else f"session {visible_line(session_id, 40)}"

    def _client(self, client_id: str) -> str:
        if client_id == self._connection.client.client_id:
            return "by this client"
        return f"by client {visible_line(client_id[:CLIENT_ID_CHARS])}" if client_id else ""

    @property
    def _chosen(self) -> GrantBody | None:
        index = self.query_one(OptionList).highlighted
        return self._grants[index] if index is not None and index < len(self._grants) else None

    def action_revoke(self) -> None:
        grant = self._chosen
        if grant is not None and grant.id not in self._revoked and not self._is_revoking:
            self._start(self._revoke(grant))

    async def _revoke(self, grant: GrantBody) -> None:
        connection, rule = self._connection, visible_line(grant.rule, 300)
        self._is_revoking = True
        try:
            await connection.retry(lambda: connection.client.forget_grant(connection.id, grant.id))
            note = f"revoked: {rule}"
        except NotFound:
            note = f"already revoked: {rule}"
        except KedgeError as error:
            self._note(f"Cannot revoke {rule}: {one_line(error.message, 300)}", is_failed=True)
            return
        finally:
            self._is_revoking = False
        self._revoked[grant.id] = grant
        self._note(note)
        if self.is_current:
            self._draw(self._grants)
            await self._load(note)

    def _note(self, text: str, *, is_failed: bool = False) -> None:
        if not self.is_current:
            self._report(text, "error" if is_failed else "information")
            return
        note = self.query_one("#note", Static)
        note.set_class(bool(text), "has-text")
        note.set_class(is_failed, "failed")
        note.update(text)

    def action_close(self) -> None:
        self.dismiss(None)
