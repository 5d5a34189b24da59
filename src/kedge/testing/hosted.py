"""`ScriptedEndpoint` for tests without an event loop: it runs in one of its own, beside the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from kedge.testing.endpoint import EndpointRequest, ScriptedEndpoint

T = TypeVar("T")


class HostedEndpoint:
    """The same as `ScriptedEndpoint`, with calls that block. A wait that takes too long raises TimeoutError."""

    def __init__(self, port: int = 0, wait_s: float = 20.0) -> None:
        self._port = port
        self._wait_s = wait_s
        self._loop = asyncio.new_event_loop()
        self._host = threading.Thread(target=self._loop.run_forever, name="scripted-endpoint", daemon=True)
        self._endpoint: ScriptedEndpoint

    def __enter__(self) -> Self:
        self._host.start()
        try:
            self._endpoint = self._ask(self._open())
        except OSError:  # the port is taken
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask(self._endpoint.__aexit__(kind, error, trace))
        self._stop()

    @property
    def url(self) -> str:
        return self._endpoint.url

    @property
    def origin(self) -> str:
        return self._endpoint.origin

    @property
    def requests(self) -> list[EndpointRequest]:
        return self._ask(self._requests())

    @property
    def asides(self) -> list[EndpointRequest]:
        return self._ask(self._asides())

    @property
    def refusals(self) -> list[str]:
        return self._ask(self._refusals())

    def release(self, key: str) -> None:
        self._ask(self._release(key))

    def wait_requests(self, count: int) -> None:
        self._ask(self._endpoint.wait_requests(count))

    def wait_asides(self, count: int) -> None:
        self._ask(self._endpoint.wait_asides(count))

    def wait_open(self, count: int) -> None:
        self._ask(self._endpoint.wait_open(count))

    def wait_until(self, condition: Callable[[ScriptedEndpoint], bool]) -> None:
        """Until the condition is true; it is asked in the endpoint's own loop."""
        self._ask(self._endpoint.wait_until(condition))

    def wait_closed(self, request: EndpointRequest) -> None:
        self._ask(request.closed.wait())

    def stats(self) -> dict[str, Any]:
        return self._ask(self._stats())

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Every access happens in the endpoint's own loop: nothing here is shared between two."""
        asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return asked.result(self._wait_s)
        except TimeoutError:
            asked.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._host.join()
        self._loop.close()

    async def _open(self) -> ScriptedEndpoint:
        return await ScriptedEndpoint(self._port).__aenter__()

    async def _requests(self) -> list[EndpointRequest]:
        return list(self._endpoint.requests)

    async def _asides(self) -> list[EndpointRequest]:
        return list(self._endpoint.asides)

    async def _refusals(self) -> list[str]:
        return list(self._endpoint.refusals)

    async def _release(self, key: str) -> None:
        self._endpoint.release(key)

    async def _stats(self) -> dict[str, Any]:
        return self._endpoint.stats()
