"""A Run in the foreground: its output, its approvals, Ctrl-C, and its exit code.

The first Ctrl-C cancels the Run on the server and waits for its end; the second one exits at once. SIGTERM does the
same: a command that is terminated should not leave its Run running unseen. A closed terminal (SIGHUP) does not cancel:
the Run continues, and `kedge attach` shows it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from kedge.cli.approval_prompts import ApprovalPrompts
from kedge.cli.exit_codes import EXIT_APPROVAL, EXIT_CANCELLED, EXIT_COMPLETED, EXIT_FAILED, EXIT_TIMEOUT
from kedge.cli.run_output import RunPrinter
from kedge.cli.terminal import StatusLine
from kedge.client.client import NOT_RECORDED, Client
from kedge.client.followed_run import FollowedRun
from kedge.client.retry import retry_while_away
from kedge.core.records import OnApproval
from kedge.errors import KedgeError, RunNotActive
from kedge.wire.models import RunComplete

#: A restarted server is back within a few seconds; scripts should not hang for longer. Seconds.
RECONNECT_S = 15.0


class CancelTarget:
    """The Run that Ctrl-C cancels. Empty until the Run is about to be submitted."""

    def __init__(self) -> None:
        self.followed: FollowedRun | None = None
        self.accepted = asyncio.Event()


async def follow(
    followed: FollowedRun,
    client: Client,
    printer: RunPrinter,
    status: StatusLine,
    target: CancelTarget,
    on_approval: OnApproval,
) -> int:
    """Submit the Run and print it to its end. Return the exit code.

    With `on_approval` "ask", approvals and questions are answered on this terminal."""
    prompts = ApprovalPrompts(client, lambda: followed.workspace_id, status) if on_approval == "ask" else None
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(followed)
        target.followed = followed
        receipt = await followed.submit()
        target.accepted.set()
        printer.accepted(receipt)
        if prompts:
            await stack.enter_async_context(prompts.running())
        async for event in followed:
            if prompts:
                prompts.on_event(event)
            await printer.on_event(event, followed.complete)
    assert followed.complete is not None, "the events of a Run end with run_complete"
    await printer.end(followed.complete)
    return exit_code(followed.complete)


def exit_code(complete: RunComplete) -> int:
    by_reason = {"timeout": EXIT_TIMEOUT, "approval_needed": EXIT_APPROVAL}
    by_outcome = {"completed": EXIT_COMPLETED, "cancelled": EXIT_CANCELLED}
    return by_reason.get(complete.reason) or by_outcome.get(complete.outcome, EXIT_FAILED)


def run_cancellable(work: Callable[[CancelTarget], Coroutine[Any, Any, int]], status: StatusLine) -> int:
    """Run `work` with Ctrl-C handling. Return its exit code, or EXIT_CANCELLED if the user exits first."""
    return asyncio.run(_cancellable(work, status))


async def _cancellable(work: Callable[[CancelTarget], Coroutine[Any, Any, int]], status: StatusLine) -> int:
    target = CancelTarget()
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    with _signals_into(signals):
        working = loop.create_task(work(target))
        helpers = [loop.create_task(status.tick())]
        try:
            while True:
                signalled = loop.create_task(signals.get())
                await asyncio.wait({working, signalled}, return_when=asyncio.FIRST_COMPLETED)
                signalled.cancel()
                if working.done():
                    return working.result()
                if target.followed is None:
                    return EXIT_CANCELLED  # nothing was accepted; a user's own command ends with its request
                if len(helpers) > 1:
                    status.note("exiting; the server is still cancelling the run")
                    return EXIT_CANCELLED
                status.set("cancelling")
                status.note("cancelling the run; press Ctrl-C again to exit now")
                helpers.append(loop.create_task(_cancel(target, target.followed, status)))
        finally:
            status.set("")
            for task in (working, *helpers):
                task.cancel()
            await asyncio.gather(working, *helpers, return_exceptions=True)


async def _cancel(target: CancelTarget, followed: FollowedRun, status: StatusLine) -> None:
    # A Run that is not accepted yet cannot be cancelled: the server would not find it.
    await target.accepted.wait()
    try:
        # No time limit: `follow` gives up on its own, and cancels this task.
        reply = await retry_while_away(followed.cancel)
        if not reply.recorded:
            status.note(NOT_RECORDED, always=True)
    except RunNotActive:
        pass  # it has just ended; run_complete is on its way
    except KedgeError as error:
        status.note(f"kedge: {error.message}", always=True)


@contextmanager
def _signals_into(signals: asyncio.Queue[None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    # A shell ignores these signals for commands that it starts in the background. Respect that.
    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, signals.put_nowait, None)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
