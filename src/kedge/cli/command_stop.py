"""`kedge stop`."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import click

from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.options import examples, host_option
from kedge.client.client import Client
from kedge.client.http_transport import NotConnected
from kedge.errors import KedgeError, ShuttingDown

#: Active Runs have 15 s to end, with the settings as they come. Seconds.
STOP_S_MAX = 30.0
#: Between two looks whether it is gone. Seconds.
LOOK_S = 0.1


@click.command(epilog=examples("kedge stop", "kedge stop --force        # also while runs are live"))
@click.option("--force", is_flag=True, help="Also while runs are live: the active ones end as interrupted.")
@host_option
def stop(force: bool, host: str | None) -> int:
    """Stop the server, and wait until it has left. Refused while runs are live; queued ones go on with the next server.

    The next command that needs a server starts one, with that command's environment: this is how a server learns of a
    key that was set after it had started. An open terminal interface starts one, too, with its own: leave it first."""
    if not asyncio.run(_stop(host, force)):
        click.echo(f"the server is still there after {STOP_S_MAX:g} s; its log says what it waits for", err=True)
        return EXIT_FAILED
    return 0


async def _stop(host: str | None, force: bool) -> bool:
    async with Client(host) as client:
        pid = 0
        try:
            pid = (await client.version()).pid
            await client.control("shutdown", force=force)
        except ShuttingDown:
            pass  # somebody has told it before
        except NotConnected:
            if host is not None:
                raise
            click.echo("no server is running")
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S_MAX):
                while True:
                    if not await _answers(client) and not (client.host.startswith("unix:") and _is_alive(pid)):
                        click.echo("stopped")
                        return True
                    await asyncio.sleep(LOOK_S)
    return False


async def _answers(client: Client) -> bool:
    try:
        await client.health()
    except NotConnected:
        return False
    except KedgeError:
        return True  # it broke off, or takes its time: it is there
    return True


def _is_alive(pid: int) -> bool:
    """It lets go of its place first, and of its data directory when it has left."""
    from kedge.warden.processes import is_zombie  # what is gone is one, too

    return not is_zombie(pid)
