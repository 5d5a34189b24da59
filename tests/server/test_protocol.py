"""The undocumented names of uvicorn that the server uses. pyproject.toml pins uvicorn to a minor version."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

REMEDY = f"uvicorn {uvicorn.__version__} lacks it: adapt kedge/server/protocol.py, or pin uvicorn to an older version"
METHODS = [
    "connection_made",
    "connection_lost",
    "data_received",
    "on_message_begin",
    "on_headers_complete",
    "on_body",
    "on_message_complete",
    "on_response_complete",
    "pause_writing",
    "send_400_response",
    "timeout_keep_alive_handler",
]


@pytest.fixture
async def protocol() -> HttpToolsProtocol:
    async def app(scope: object, receive: object, send: object) -> None: ...

    config = uvicorn.Config(app, http=HttpToolsProtocol, ws="none", log_config=None)
    config.load()
    return HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())


@pytest.mark.parametrize("name", METHODS)
def test_uvicorn_calls_the_methods_that_the_server_overrides(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name, None)), f"HttpToolsProtocol.{name}: {REMEDY}"


@pytest.mark.parametrize(
    "name",
    ["connections", "cycle", "flow", "headers", "loop", "pipeline", "timeout_keep_alive", "timeout_keep_alive_task"],
)
async def test_uvicorn_has_the_attributes_of_a_connection(protocol: HttpToolsProtocol, name: str) -> None:
    assert hasattr(protocol, name), f"HttpToolsProtocol.{name}: {REMEDY}"


def test_uvicorn_reports_paused_writes() -> None:
    assert "write_paused" in FlowControl.__init__.__code__.co_names, f"FlowControl.write_paused: {REMEDY}"


def test_uvicorn_has_the_state_of_a_request() -> None:
    names = RequestResponseCycle.__init__.__code__.co_names
    for name in ("disconnected", "response_started", "response_complete", "message_event"):
        assert name in names, f"RequestResponseCycle.{name}: {REMEDY}"
    for name in ("pause_reading", "resume_reading", "drain"):
        assert callable(getattr(FlowControl, name, None)), f"FlowControl.{name}: {REMEDY}"
    for name in ("capture_signals", "startup", "serve"):
        assert callable(getattr(uvicorn.Server, name, None)), f"uvicorn.Server.{name}: {REMEDY}"
