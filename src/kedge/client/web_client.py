"""The routes of the web page: addresses, links and browsers."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from kedge.client.http_transport import Transport
from kedge.wire.web_models import BrowserBody, CreateTicket, ListenForWeb, TicketBody, WebAddress


class WebClient:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def listen(self, body: ListenForWeb) -> WebAddress:
        """Serve the web page on this address, if the server does not yet."""
        return msgspec.json.decode(await self._transport.request("POST", "/web/listen", body=body), type=WebAddress)

    async def create_ticket(self, body: CreateTicket) -> TicketBody:
        """Return a ticket that lets one browser in."""
        return msgspec.json.decode(await self._transport.request("POST", "/web/tickets", body=body), type=TicketBody)

    async def browsers(self) -> list[BrowserBody]:
        """Return the browsers that have access."""
        return msgspec.json.decode(await self._transport.request("GET", "/web/browsers"), type=list[BrowserBody])

    async def revoke(self, browser_id: str) -> None:
        """End the access of a browser, and its open streams."""
        await self._transport.request("DELETE", f"/web/browsers/{quote(browser_id, safe='')}")
