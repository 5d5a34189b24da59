"""`kedge serve` and `kedge stop`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kedge.cli.common import EXIT_FAILED, do, examples, host_option
from kedge.client.client import Client
from kedge.client.transport import NotConnected
from kedge.errors import Unavailable, Unreachable

#: Live Runs have 15 s to end, with the settings as they come. Seconds.
STOP_S_MAX = 30.0
#: Between two looks whether it is gone. Seconds.
LOOK_S = 0.1


@click.command(
    epilog=examples(
        "kedge serve                                    # your own socket",
        "kedge serve --host tcp://127.0.0.1:8787        # with a token, see KEDGE_TOKEN",
        "kedge serve --host unix:///tmp/k.sock --host tcp://127.0.0.1:0",
    )
)
@click.option("--host", "hosts", metavar="URL", multiple=True, help="Where to listen; may be repeated.")
@click.option("--data-dir", metavar="DIR", type=click.Path(file_okay=False), help="Another data directory.")
@click.option("--store", metavar="URL", help="Where the store is: sqlite:///DIR, or memory: to keep nothing.")
@click.option("--allow-remote", is_flag=True, help="Allow addresses that other machines can reach.")
@click.option("--exit-when-idle", is_flag=True, hidden=True)
def serve(
    hosts: tuple[str, ...], data_dir: str | None, store: str | None, allow_remote: bool, exit_when_idle: bool
) -> int:
    """Run a server until it is told to stop: by Ctrl-C, by SIGTERM or by `kedge stop`.

    It prints one line `listening on URL` per address when it is ready."""
    # Here and not above: the rest of the command line must not pay for the server's imports.
    from kedge.server.listen import serve as listen

    return listen(
        hosts=list(hosts), data_dir=data_dir, store=store, allow_remote=allow_remote, exit_when_idle=exit_when_idle
    )


@click.command(epilog=examples("kedge stop", "kedge stop --force        # live runs end as interrupted"))
@click.option("--force", is_flag=True, help="Also while runs are live; they end as interrupted.")
@host_option
def stop(force: bool, host: str | None) -> int:
    """Stop the server, and wait until it has left. Refused while runs are live.

    The next command that needs a server starts one, with that command's environment: this is how a server learns of a
    key that was set after it had started."""
    if not do(_stop(host, force)):
        click.echo(f"the server is still there after {STOP_S_MAX:g} s; its log says what it waits for", err=True)
        return EXIT_FAILED
    return 0


async def _stop(host: str | None, force: bool) -> bool:
    async with Client(host) as client:
        try:
            pid = (await client.version()).pid
            await client.control("shutdown", force=force)
        except NotConnected:
            if host is not None:
                raise
            click.echo("no server is running")
            return True
        for _ in range(round(STOP_S_MAX / LOOK_S)):
            if not await _answers(client) and not (client.host.startswith("unix:") and _is_alive(pid)):
                click.echo("stopped")
                return True
            await asyncio.sleep(LOOK_S)
    return False


async def _answers(client: Client) -> bool:
    try:
        await client.health()
    except Unavailable:
        return True  # that it is leaving
    except Unreachable:
        return False
    return True


def _is_alive(pid: int) -> bool:
    """It lets go of its place first, and of its data directory when it has left."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
