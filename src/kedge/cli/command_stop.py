"""`kedge stop`: stop the server."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import click

from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.options import examples, host_option
from kedge.client.client import Client
from kedge.client.http_transport import NotConnected
from kedge.errors import KedgeError, ShuttingDown

#: Active Runs have 15 s to end, by default. Seconds.
STOP_S_MAX = 30.0
#: Interval of checking whether the server has exited. Seconds.
CHECK_S = 0.1


@click.command(epilog=examples("kedge stop", "kedge stop --force        # interrupts active runs"))
@click.option("--force", is_flag=True, help="Stop even if runs are live. Active ones end as interrupted.")
@host_option
def stop(force: bool, host: str | None) -> int:
    """Stop the server and wait for its exit.

    Refused while runs are live. The next server continues queued runs.

    The next command that needs a server starts one with its own environment, so this is how a server receives a key
    that was set after it started. An open terminal interface also starts one, with its environment: close it first."""
    if not asyncio.run(_stop(host, force)):
        click.echo(f"kedge: The server has not exited after {STOP_S_MAX:g} s. See its log.", err=True)
        return EXIT_FAILED
    return 0


async def _stop(host: str | None, force: bool) -> bool:
    async with Client(host) as client:
        pid = 0
        try:
            pid = (await client.version()).pid
            await client.control("shutdown", force=force)
        except ShuttingDown:
            pass  # already requested
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
                    await asyncio.sleep(CHECK_S)
    return False


async def _answers(client: Client) -> bool:
    try:
        await client.health()
    except NotConnected:
        return False
    except KedgeError:
        return True  # slow, or it closed the connection: still running
    return True


def _is_alive(pid: int) -> bool:
    """Return whether the process still runs. It closes its socket before it releases the data directory."""
    from kedge.warden.proc_fs import is_zombie

    return not is_zombie(pid)  # also true for a process that is gone
