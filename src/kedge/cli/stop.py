"""Ctrl-C in `kedge run`: the first one cancels the Run on the server and waits for its end, the second one leaves.

SIGTERM means the same: whoever stops the command does not want its Run to go on unseen. A closed terminal (SIGHUP) is
not such a wish: the Run goes on, and `kedge attach` finds it again.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from kedge.cli.common import EXIT_CANCELLED
from kedge.cli.terminal import Status
from kedge.client.follow import FollowedRun
from kedge.errors import KedgeError, RunNotActive, Unavailable, Unreachable

#: Between two attempts to reach a server that is away. Seconds.
AGAIN_S = 0.25


class Stop:
    """What there is to cancel, as far as the work has come."""

    def __init__(self) -> None:
        self.followed: FollowedRun | None = None
        self.accepted = asyncio.Event()


async def stoppable(work: Callable[[Stop], Coroutine[Any, Any, int]], status: Status) -> int:
    """The exit code of the work, or that of a user who left."""
    stop = Stop()
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    with _caught(signals):
        working = loop.create_task(work(stop))
        helpers = [loop.create_task(status.tick())]
        try:
            while True:
                signalled = loop.create_task(signals.get())
                await asyncio.wait({working, signalled}, return_when=asyncio.FIRST_COMPLETED)
                signalled.cancel()
                if working.done():
                    return working.result()
                if stop.followed is None:
                    return EXIT_CANCELLED  # nothing was accepted; a typed command ends with its request
                if len(helpers) > 1:
                    status.note("leaving; the run goes on until the server has stopped it")
                    return EXIT_CANCELLED
                status.doing("cancelling")
                status.note("cancelling the run; Ctrl-C again leaves at once")
                helpers.append(loop.create_task(_cancel(stop, stop.followed, status)))
        finally:
            status.doing("")
            for begun in (working, *helpers):
                begun.cancel()
            await asyncio.gather(working, *helpers, return_exceptions=True)


async def _cancel(stop: Stop, followed: FollowedRun, status: Status) -> None:
    # Before it is accepted there is nothing to cancel: the server would answer that it knows no such Run.
    await stop.accepted.wait()
    while True:
        try:
            await followed.cancel()
        except (Unreachable, Unavailable):
            # Away, or on its way out and soon back. The work gives up in its own time, and this with it.
            await asyncio.sleep(AGAIN_S)
            continue
        except RunNotActive:
            pass  # it has just ended: its end is on the way
        except KedgeError as error:
            status.note(f"kedge: {error.message}", always=True)
        return


@contextmanager
def _caught(signals: asyncio.Queue[None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    # A shell that starts us in the background has them ignored, and means it.
    wanted = [kind for kind in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(kind) != signal.SIG_IGN]
    for kind in wanted:
        loop.add_signal_handler(kind, signals.put_nowait, None)
    try:
        yield
    finally:
        for kind in wanted:
            loop.remove_signal_handler(kind)
