"""The sessions as lines of a list: which ones a search finds, and what is told of each."""

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

#: A title keeps so much room, whatever else there is to tell. Columns.
TITLE_COLUMNS_MIN = 16
#: More of a title, or of what was found, fits on no line. Characters.
LINE_CHARS_MAX = 300


class SessionRow(Struct, frozen=True):
    session: m.SessionBody
    is_running: bool
    queued: int
    asks: int
    #: It is the one on the screen.
    is_here: bool
    is_being_deleted: bool
    #: What was found in its messages; empty: nothing, or nothing was looked for.
    snippet: str

    def drawn(self, width: int, now_ms: int) -> Content:
        mark, style = self._mark()
        words = [word for word in (self._state(), self._waiting(), self._company(), "here" * self.is_here) if word]
        when = age(self.session.updated_at, now_ms)
        # What matters least stands last, and goes first where there is no room.
        while words and width - 4 - cell_len(" · ".join([*words, when])) < TITLE_COLUMNS_MIN:
            words.pop()
        told = " · ".join([*words, when])
        room = max(1, width - 4 - cell_len(told))
        title = Content(title_of(self.session)).truncate(room, ellipsis=True, pad=True)
        line = Content.assemble((f"{mark} ", style), title, f"  {told}")
        if not self.snippet:
            return line
        found = Content(f"  in it: {one_line(self.snippet, LINE_CHARS_MAX)}").truncate(max(1, width), ellipsis=True)
        return Content("\n").join([line, found.stylize("italic")])

    def _mark(self) -> tuple[str, str]:
        if self.asks:
            return "?", "bold $warning"
        if self.is_running:
            return "●", "$accent"
        return ("○", "$accent") if self.queued else (" ", "")

    def _state(self) -> str:
        if self.is_being_deleted:
            return "deleting"
        return "asks" if self.asks else "running" if self.is_running else ""

    def _waiting(self) -> str:
        return f"{self.queued} queued" if self.queued else ""

    def _company(self) -> str:
        clients = self.session.attached_clients
        if clients <= int(self.is_here):
            return ""
        return "1 client" if clients == 1 else f"{clients} clients"


def title_of(session: m.SessionBody) -> str:
    return one_line(session.title, LINE_CHARS_MAX) or "new session"


def rows(
    view: WorkspaceView, query: str, found: Mapping[str, str], here: str, being_deleted: Collection[str] = frozenset()
) -> list[SessionRow]:
    """Those whose titles hold all words of the query, then those in whose messages it was found (by id: where)."""
    asks = Counter(ask.session_id for ask in view.asks())
    words = query.casefold().split()
    by_title: list[SessionRow] = []
    by_text: list[SessionRow] = []
    for session in view.sessions():
        title = title_of(session).casefold()
        is_named = all(word in title for word in words)
        if not is_named and session.id not in found:
            continue
        row = SessionRow(
            session,
            is_running=view.active(session.id) is not None,
            queued=len(view.queue(session.id)),
            asks=asks[session.id],
            is_here=session.id == here,
            is_being_deleted=session.id in being_deleted,
            snippet=found.get(session.id, ""),
        )
        (by_title if is_named else by_text).append(row)
    return [*by_title, *by_text]


def age(then_ms: int, now_ms: int) -> str:
    """How long ago, in a word or two; older than a month: the day."""
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
