"""The dialog that lets a phone in: an address that it can reach, then the link to this session as a QR code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from kedge.client.safe_text import one_line
from kedge.client.web_links import PLAIN_HTTP, WebTarget, choose_target, own_address
from kedge.errors import KedgeError
from kedge.qr_code import qr_code
from kedge.tui.connection import ServerConnection
from kedge.wire.web_models import CreateTicket

HELP = (
    "The address of this machine that the phone can reach, or the URL of a tunnel (https://NAME). The phone reaches "
    "this session and nothing else. `kedge web --phone` can do more: all sessions, read-only, a certificate."
)


class PhoneScreen(ModalScreen[None]):
    DEFAULT_CSS = """
    PhoneScreen { align: center top; }
    PhoneScreen > Vertical {
        width: 90; max-width: 100%; height: auto; max-height: 100%; border: round $accent; background: $background;
        padding: 0 1;
    }
    PhoneScreen VerticalScroll { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    PhoneScreen Input { border: none; height: 1; padding: 0; margin: 1 0; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "close", show=False)]
    AUTO_FOCUS = "Input"

    def __init__(
        self, connection: ServerConnection, session_id: str, start: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        super().__init__()
        self._connection, self._session_id, self._start = connection, session_id, start
        #: The address whose plain HTTP the screen has explained.
        self._confirmed = ""

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Phone"
            box.border_subtitle = "enter: show the code · esc: close"
            yield Input(own_address(), placeholder="192.168.1.5 or https://NAME")
            with VerticalScroll():
                yield Static(HELP, markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._start(self._show(event.value.strip()))

    def on_input_changed(self) -> None:
        self._confirmed = ""

    def on_resize(self) -> None:
        self.query_one(VerticalScroll).styles.max_height = max(1, self.size.height - 6)

    async def _show(self, address: str) -> None:
        try:
            target = await asyncio.to_thread(choose_target, address, 0, allow_remote=True)
            if target.is_plain_remote and self._confirmed != address:
                self._confirmed = address
                self._say(f"{PLAIN_HTTP}\n\nenter again: open it")
                return
            link = await self._link(target)
        except KedgeError as error:
            self._say(one_line(error.message, 500))
            return
        self._say(f"{qr_code(link)}\n{link}\n\nIt works once, and for five minutes.")

    async def _link(self, target: WebTarget) -> str:
        web = self._connection.client.web
        address = await web.listen(target.request)
        ticket = await web.create_ticket(CreateTicket(workspace_id=self._connection.id, session_id=self._session_id))
        return target.link(address.url, ticket.ticket)

    def _say(self, text: str) -> None:
        if self.is_mounted:
            self.query_one(Static).update(text)

    def action_close(self) -> None:
        self.dismiss(None)
