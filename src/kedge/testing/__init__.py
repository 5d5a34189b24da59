"""For tests of kedge and of programs that use it. Public.

- `ScriptedModel` (with `Say`, `Think`, `Hold`, `Linger`, `Call`, `Fail`, `End`): a model inside the process that says
  what the test wrote down.
- `ManualClock`, `CountingIds`: the engine's ports on a machine that does the same every time.
- `ScriptedEndpoint`, `HostedEndpoint`: a real HTTP server that speaks OpenAI's format and follows the prompt's script.

Names are loaded when they are first used, so that a test pays only for what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kedge.testing.endpoint import EndpointRequest, ScriptedEndpoint
    from kedge.testing.hosted import HostedEndpoint
    from kedge.testing.machine import CountingIds, ManualClock
    from kedge.testing.scripted import Call, End, Fail, Hold, Linger, Say, ScriptedModel, ScriptedRequest, Think

__all__ = [
    "Call",
    "CountingIds",
    "End",
    "EndpointRequest",
    "Fail",
    "Hold",
    "HostedEndpoint",
    "Linger",
    "ManualClock",
    "Say",
    "ScriptedEndpoint",
    "ScriptedModel",
    "ScriptedRequest",
    "Think",
]

_HOME = {
    "CountingIds": "machine",
    "EndpointRequest": "endpoint",
    "HostedEndpoint": "hosted",
    "ManualClock": "machine",
    "ScriptedEndpoint": "endpoint",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'scripted')}"), name)
    return found
