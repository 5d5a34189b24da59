"""Sessions as rows of a list, filtered by a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime

from msgspec import Struct
from rich.cells import cell_len
from textual.content import Content

from kedge.client.safe_text import one_line
from kedge.client.view.workspace_view import WorkspaceView
from kedge.wire import models as m

#: Minimum width of a title. Columns.
TITLE_COLUMNS_MIN = 16
#: Of a title or a snippet: more does not fit on a line. Characters.
ROW_CHARS_MAX = 300


class SessionRow(Struct, frozen=True):
    session: m.SessionBody
    is_running: bool
    queued: int
    asks: int
    #: It is the shown session.
    is_current: bool
    is_being_deleted: bool
    #: The text found in its messages; empty: none, or no search.
    snippet: str

    def content(self, width: int, now_ms: int) -> Content:
        mark, style = self._mark()
        labels = [self._state(), self._queue(), self._clients(), self._mode(), "current" if self.is_current else ""]
        labels = [label for label in labels if label]
        when = age(self.session.updated_at, now_ms)
        # The least important label is last, and is dropped first.
        while labels and width - 4 - cell_len(" · ".join([*labels, when])) < TITLE_COLUMNS_MIN:
            labels.pop()
        details = " · ".join([*labels, when])
        room = max(1, width - 4 - cell_len(details))
        title = Content(title_of(self.session)).truncate(room, ellipsis=True, pad=True)
        line = Content.assemble((f"{mark} ", style), title, f"  {details}")
        if not self.snippet:
            return line
        snippet = Content(f"  found: {one_line(self.snippet, ROW_CHARS_MAX)}").truncate(max(1, width), ellipsis=True)
        return Content("\n").join([line, snippet.stylize("italic")])

    def _mark(self) -> tuple[str, str]:
        if self.asks:
            return "?", "bold $warning"
        if self.is_running:
            return "●", "$accent"
        return ("○", "$accent") if self.queued else (" ", "")

    def _state(self) -> str:
        if self.is_being_deleted:
            return "deleting"
        return "needs answer" if self.asks else "running" if self.is_running else ""

    def _queue(self) -> str:
        return f"{self.queued} queued" if self.queued else ""

    def _mode(self) -> str:
        return "" if self.session.mode == "ask" else self.session.mode

    def _clients(self) -> str:
        clients = self.session.attached_clients
        if clients <= int(self.is_current):
            return ""
        return "1 client" if clients == 1 else f"{clients} clients"


def title_of(session: m.SessionBody) -> str:
    return one_line(session.title, ROW_CHARS_MAX) or "new session"


def session_rows(
    view: WorkspaceView,
    query: str,
    snippets: Mapping[str, str],
    current: str,
    being_deleted: Collection[str] = frozenset(),
) -> list[SessionRow]:
    """Return the sessions whose titles contain all words of the query, then those with a snippet."""
    asks = Counter(ask.session_id for ask in view.asks())
    words = query.casefold().split()
    by_title: list[SessionRow] = []
    by_text: list[SessionRow] = []
    for session in view.sessions():
        title = title_of(session).casefold()
        is_title_match = all(word in title for word in words)
        if not is_title_match and session.id not in snippets:
            continue
        row = SessionRow(
            session,
            is_running=view.active(session.id) is not None,
            queued=len(view.queue(session.id)),
            asks=asks[session.id],
            is_current=session.id == current,
            is_being_deleted=session.id in being_deleted,
            snippet=snippets.get(session.id, ""),
        )
        (by_title if is_title_match else by_text).append(row)
    return [*by_title, *by_text]


def age(then_ms: int, now_ms: int) -> str:
    """Return how long ago it was; the date after a month."""
    minutes = max(0, now_ms - then_ms) // 60_000
    if minutes < 1:
        return "now"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h"
    if minutes < 31 * 24 * 60:
        return f"{minutes // (24 * 60)} d"
    return datetime.fromtimestamp(then_ms / 1000).strftime("%Y-%m-%d")
