"""The renewal of logins to MCP servers.

One at a time: several workspaces share a login, and an authorization server may end one whose refresh token is used
twice.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from weakref import WeakValueDictionary

from kedge.config.mcp_logins import McpLogins
from kedge.core.mcp_login import McpLogin
from kedge.extensions.mcp_client import Renew
from kedge.tools.file_threads import FileThreads

_renewing: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()


async def current_login(
    logins: McpLogins, files: FileThreads, name: str, url: str, stale: str, renew: Renew
) -> McpLogin | None:
    """Return the stored login, renewed if its token is `stale` or has expired. None: the user must log in."""
    async with _renewing.setdefault(logins.file(name, url), asyncio.Lock()):
        login = await files.run(logins.read, name, url)
        if login is None or (login.access_token != stale and not login.is_expired(time.time())):
            return login
        if not login.refresh_token:
            return None
        renewed = await renew(login)
        stored = await files.run(logins.read, name, url)
        if stored != login:
            return stored  # the user has logged in or out meanwhile
        if renewed is not None:
            await files.run(logins.write, name, renewed)
        return renewed
