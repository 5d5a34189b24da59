"""Room for connections. Each is an open file, and the store, the models and the tools need files too: whoever opens
connections, with a token or without, must not be able to take those."""

from __future__ import annotations

import asyncio
import logging
import resource

from kedge.server.protocol import Protocol

log = logging.getLogger("kedge.server")

#: Open files this process asks for, where the machine allows it: the streams it takes (2,000), as many connections
#: beside them, and tools. A login shell often gives a process 1,024. Items.
FILES_WANTED = 8192
#: Of these, not for connections: the database, requests to models, pipes of tools, modules loaded late. Items.
FILES_KEPT = 256
#: Connections that only come over the Unix socket: strangers on TCP shall not keep its own user out. Items.
LOCAL_EXTRA = 32


def make_room() -> int:
    """Ask for files; how many connections there is room for."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = FILES_WANTED if most == unlimited else min(FILES_WANTED, most)
    if allowed != unlimited and allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        allowed = wanted
    files = FILES_WANTED if allowed == unlimited else allowed
    return files - min(FILES_KEPT, files // 2)


class Bounded(Protocol):
    """A connection that there may be no room for: then it is dropped before it has said a word."""

    #: Of the whole process; the server sets it when it starts.
    connections_max = FILES_KEPT
    _was_told = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # `connections` has this one, too.
        if len(self.connections) <= self.connections_max + (LOCAL_EXTRA if self.local_socket else 0):
            return
        if not Bounded._was_told:
            Bounded._was_told = True
            log.warning(
                "%d connections are open, all there is room for: further ones are dropped", self.connections_max
            )
        transport.abort()
