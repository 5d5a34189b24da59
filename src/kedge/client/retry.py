"""Retries of requests while the server cannot be reached."""

from __future__ import annotations

import math
from asyncio import get_running_loop, sleep
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kedge.client.http_transport import NotConnected
from kedge.errors import ShuttingDown, Starting, Unavailable, Unreachable
from kedge.waiting import backoff_s

#: A restarted server is back within a few seconds; a user waits about this long. Seconds.
GIVE_UP_S = 30.0
#: First and longest delay between two attempts. Seconds.
RETRY_S_MIN, RETRY_S_MAX = 0.05, 2.0

T = TypeVar("T")

#: Starts the server if it is not running.
Restart = Callable[[], Awaitable[object]]


def loop_time() -> float:
    """Return the event loop's time, which a simulation controls."""
    return get_running_loop().time()


async def retry_while_away(
    call: Callable[[], Awaitable[T]],
    give_up_s: float = math.inf,
    *,
    idempotent: bool = True,
    restart: Restart | None = None,
) -> T:
    """Repeat `call` while the server is unreachable, for at most `give_up_s` after the first failure.

    A call that is not idempotent is repeated only if no server received it. `restart` is awaited before each retry."""
    deadline = math.inf
    for delay_s in backoff_s(RETRY_S_MIN, RETRY_S_MAX):
        try:
            return await call()
        except (Unreachable, Unavailable) as error:
            deadline = min(deadline, loop_time() + give_up_s)
            if loop_time() + delay_s > deadline or not (idempotent or isinstance(error, NotConnected)):
                raise
        if restart is not None:
            await restart()
        await sleep(delay_s)
    raise AssertionError("backoff_s never ends")


async def retry_if_refused(
    call: Callable[[], Awaitable[T]], restart: Restart | None, give_up_s: float = GIVE_UP_S
) -> T:
    """Repeat `call` while a starting server refuses it. With `restart`, which starts another server, also if the server
    is shutting down or gone.

    For calls that may be repeated after such a refusal. Never for a cancel: it would cover Runs that were accepted in
    between."""
    deadline = math.inf
    for delay_s in backoff_s(RETRY_S_MIN, RETRY_S_MAX):
        try:
            return await call()
        except (Starting, ShuttingDown, NotConnected) as error:
            deadline = min(deadline, loop_time() + give_up_s)
            if loop_time() + delay_s > deadline or not (restart or isinstance(error, Starting)):
                raise
        await sleep(delay_s)
        if restart is not None:
            await restart()
    raise AssertionError("backoff_s never ends")
