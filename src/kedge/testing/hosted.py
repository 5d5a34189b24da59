"""`ScriptedEndpoint` for tests without an event loop: it runs in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from kedge.struct_types import build_struct_types
from kedge.testing.endpoint import EndpointRequest, ScriptedEndpoint

T = TypeVar("T")


class HostedEndpoint:
    """A `ScriptedEndpoint` with blocking calls. A wait that takes too long raises TimeoutError."""

    def __init__(self, port: int = 0, wait_s: float = 20.0, scripts: Mapping[str, str] = MappingProxyType({})) -> None:
        self._port = port
        self._scripts = scripts
        self._wait_s = wait_s
        build_struct_types()  # the thread of the test decodes, too
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-endpoint", daemon=True)
        self._endpoint: ScriptedEndpoint

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._endpoint = self._run(self._open())
        except OSError:  # the port is taken
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._endpoint.__aexit__(kind, error, trace))
        self._stop()

    @property
    def url(self) -> str:
        return self._endpoint.url

    @property
    def origin(self) -> str:
        return self._endpoint.origin

    @property
    def requests(self) -> list[EndpointRequest]:
        return self._run(self._requests())

    @property
    def asides(self) -> list[EndpointRequest]:
        return self._run(self._asides())

    @property
    def refusals(self) -> list[str]:
        return self._run(self._refusals())

    def release(self, key: str) -> None:
        self._run(self._release(key))

    def wait_requests(self, count: int) -> None:
        self._run(self._endpoint.wait_requests(count))

    def wait_asides(self, count: int) -> None:
        self._run(self._endpoint.wait_asides(count))

    def wait_open(self, count: int) -> None:
        self._run(self._endpoint.wait_open(count))

    def wait_until(self, condition: Callable[[ScriptedEndpoint], bool]) -> None:
        """Wait until the condition is true. It is evaluated in the endpoint's event loop."""
        self._run(self._endpoint.wait_until(condition))

    def wait_closed(self, request: EndpointRequest) -> None:
        self._run(request.closed.wait())

    def stats(self) -> dict[str, Any]:
        return self._run(self._stats())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the endpoint's event loop: no state is shared between threads."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._wait_s)
        except TimeoutError:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> ScriptedEndpoint:
        return await ScriptedEndpoint(self._port, scripts=self._scripts).__aenter__()

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
