"""kedge: an agent server. Every accepted prompt becomes a Run, and a Run ends exactly once.

    import kedge

    with kedge.connect() as k:
        print(k.session().run("What does this repository do?").text)

The names below are the public API. They are imported on first use: `import kedge` alone imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kedge.client.client import Client
    from kedge.client.event_stream import StreamEvent
    from kedge.client.sync_client import connect
    from kedge.errors import (
        Busy,
        Conflict,
        Invalid,
        KedgeError,
        LaneBusy,
        ModelFailed,
        NotFound,
        QueueFull,
        RunIdReused,
        RunNotFound,
        SessionNotFound,
        ShuttingDown,
        TooLarge,
        Unauthorized,
        Unavailable,
        Unreachable,
        WorkspaceNotFound,
    )
    from kedge.server.startup import serve

__version__ = "0.1.0"

__all__ = [
    "Busy",
    "Client",
    "Conflict",
    "Invalid",
    "KedgeError",
    "LaneBusy",
    "ModelFailed",
    "NotFound",
    "QueueFull",
    "RunIdReused",
    "RunNotFound",
    "SessionNotFound",
    "ShuttingDown",
    "StreamEvent",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "WorkspaceNotFound",
    "__version__",
    "connect",
    "serve",
]

_HOMES = {
    "Client": "kedge.client.client",
    "StreamEvent": "kedge.client.event_stream",
    "connect": "kedge.client.sync_client",
    "serve": "kedge.server.startup",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'kedge' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "kedge.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
