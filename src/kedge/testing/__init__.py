"""Helpers for tests of kedge and of programs that use it. Public.

- `ScriptedModel` (with `Say`, `Think`, `Hold`, `Linger`, `Call`, `Fail`, `EndReply`): a model inside the process with
  scripted replies.
- `ScriptedEndpoint`, `HostedEndpoint`: an HTTP server with the APIs of OpenAI and Anthropic, which follows the script
  in the prompt.
- `ManualClock`, `CountingIds`: a deterministic clock and deterministic ids for the engine.

Names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kedge.testing.endpoint import EndpointRequest, ScriptedEndpoint
    from kedge.testing.hosted import HostedEndpoint
    from kedge.testing.manual_system import CountingIds, ManualClock
    from kedge.testing.scripted import Call, EndReply, Fail, Hold, Linger, Say, ScriptedModel, ScriptedRequest, Think

__all__ = [
    "Call",
    "CountingIds",
    "EndReply",
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
    "CountingIds": "manual_system",
    "EndpointRequest": "endpoint",
    "HostedEndpoint": "hosted",
    "ManualClock": "manual_system",
    "ScriptedEndpoint": "endpoint",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'scripted')}"), name)
    return value
