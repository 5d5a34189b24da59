"""A Run followed to its end on the command line: its view, the questions it asks, Ctrl-C, and its exit code."""

from __future__ import annotations

from contextlib import AsyncExitStack

from kedge.cli.asking import Asker
from kedge.cli.common import EXIT_APPROVAL, EXIT_CANCELLED, EXIT_COMPLETED, EXIT_FAILED, EXIT_TIMEOUT
from kedge.cli.stop import Stop
from kedge.cli.terminal import Status
from kedge.cli.view import RunView
from kedge.client.client import Client
from kedge.client.follow import FollowedRun
from kedge.wire.models import RunComplete

#: A server that is started again is back within a few seconds; scripts should not hang for longer. Seconds.
RECONNECT_S = 15.0


async def follow(
    followed: FollowedRun, client: Client, view: RunView, status: Status, stop: Stop, *, asks: bool
) -> RunComplete:
    """`asks`: there is somebody at this terminal who can be asked."""
    asker = Asker(client, lambda: followed.workspace_id, status) if asks else None
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(followed)
        stop.followed = followed
        receipt = await followed.submit()
        stop.accepted.set()
        view.accepted(receipt)
        if asker:
            await stack.enter_async_context(asker.at_work())
        async for event in followed:
            if asker:
                asker.see(event)
            await view.see(event, followed.complete)
    complete = followed.complete
    assert complete is not None, "the events of a Run end with its end"
    await view.end(complete)
    return complete


def exit_code(complete: RunComplete) -> int:
    by_reason = {"timeout": EXIT_TIMEOUT, "approval_needed": EXIT_APPROVAL}
    by_outcome = {"completed": EXIT_COMPLETED, "cancelled": EXIT_CANCELLED}
    return by_reason.get(complete.reason) or by_outcome.get(complete.outcome, EXIT_FAILED)
