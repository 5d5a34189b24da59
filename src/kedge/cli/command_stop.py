"""`kedge stop`: stop the server."""

from __future__ import annotations

import asyncio
import signal

import click

from kedge import paths
from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.options import examples, host_option
from kedge.cli.run_options import positive
from kedge.cli.workspace_lookup import print_config_problem
from kedge.client.client import Client
from kedge.client.http_transport import NotConnected
from kedge.client.server_process import OpenProcess, ServerProcess, find_process, is_server
from kedge.errors import KedgeError, ShuttingDown, Unreachable

#: Active Runs have 15 s to end, by default. Seconds.
STOP_S_MAX = 30.0
#: The kernel ends a killed process at once, unless it waits for a disk. Seconds.
KILL_S_MAX = 10.0
#: Where the kernel reports the removal of a socket file, the server binds it again at once. Then it can refuse to stop
#: because Runs are live, which it cannot after a signal. Seconds.
REBIND_S_MAX = 2.0
#: Interval of checking the state of the server. Seconds.
CHECK_S = 0.1


@click.command(epilog=examples("kedge stop", "kedge stop --force        # interrupts active runs"))
@click.option("--force", is_flag=True, help="Stop even if runs are live, and kill a server that does not exit.")
@click.option("--wait", "wait_s", type=float, callback=positive, default=STOP_S_MAX, hidden=True)
@host_option
def stop(force: bool, wait_s: float, host: str | None) -> int:
    """Stop the server and wait for its exit.

    Refused while runs are live; with --force, active runs end as interrupted. The next server continues queued runs.
    A server that is starting, does not answer or has lost its socket receives SIGTERM. With --force it is killed if it
    has not exited after 30 s.

    The next command that needs a server starts one with its own environment, so this is how a server receives a key
    that was set after it started. An open terminal interface also starts one, with its environment: close it first."""
    return asyncio.run(_stop_at(host, force, wait_s) if host else _stop_own(force, wait_s))


async def _stop_own(force: bool, wait_s: float) -> int:
    """Stop the server of the data directory: exactly the process that is its server now."""
    print_config_problem()
    async with Client(paths.default_host()) as client:
        server = await _settled(client)
        if server.state == "none":
            click.echo("no server is running")
            return 0
        if server.pid is None:
            raise Unreachable(f"{server.name} uses {paths.data_dir()}. Stop it there.")
        process = OpenProcess(server.pid)
        try:
            if not is_server(server.pid):
                click.echo("stopped")  # it has exited meanwhile; another one may have been started
                return 0
            is_asked = server.state == "stopping" or (
                server.state == "listening" and await _asked_to_stop(client, force)
            )
            if not is_asked:
                process.send(signal.SIGTERM)
            return await _ended(process, server.pid, force, wait_s)
        finally:
            process.close()


async def _settled(client: Client) -> ServerProcess:
    """Return the state of the server. Wait for a moment for a socket that is bound again, and for its pid.

    A server whose whole directory of sockets was removed looks like one that is starting."""
    server = await find_process(client)
    deadline = asyncio.get_running_loop().time() + REBIND_S_MAX
    while (
        server.state in ("unbound", "starting") or (server.state != "none" and server.pid is None)
    ) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(CHECK_S)
        server = await find_process(client)
    return server


async def _asked_to_stop(client: Client, force: bool) -> bool:
    """Request the shutdown; return False if the server does not answer. Raises ServerNotIdle if Runs are live."""
    try:
        await client.control("shutdown", force=force)
    except ShuttingDown:
        pass  # already requested
    except Unreachable:
        return False
    return True


async def _ended(process: OpenProcess, pid: int, force: bool, wait_s: float) -> int:
    if not await process.wait_ended(wait_s):
        if not force:
            message = f"The server (pid {pid}) has not exited after {wait_s:g} s. Kill it with: kedge stop --force"
            click.echo(f"kedge: {message}", err=True)
            return EXIT_FAILED
        process.send(signal.SIGKILL)
        if not await process.wait_ended(KILL_S_MAX):
            click.echo(f"kedge: The server (pid {pid}) was killed, but has not exited: its disk hangs.", err=True)
            return EXIT_FAILED
        click.echo(f"killed, since it had not exited after {wait_s:g} s")
        return 0
    click.echo("stopped")
    return 0


async def _stop_at(host: str, force: bool, wait_s: float) -> int:
    """Stop the server at an address. Its process may be on another machine: it is gone when it does not answer."""
    async with Client(host) as client:
        pid = None
        try:
            pid = (await client.version()).pid
            await client.control("shutdown", force=force)
        except ShuttingDown:
            pass  # already requested
        process = OpenProcess(pid) if pid and host.startswith("unix:") else None
        deadline = asyncio.get_running_loop().time() + wait_s
        while asyncio.get_running_loop().time() < deadline:
            if not await _answers(client, pid) and (process is None or await process.wait_ended(CHECK_S)):
                click.echo("stopped")
                return 0
            await asyncio.sleep(CHECK_S)
    click.echo(f"kedge: The server at {host} has not exited after {wait_s:g} s. See its log.", err=True)
    return EXIT_FAILED


async def _answers(client: Client, pid: int | None) -> bool:
    """Return whether the process with this pid still answers, and not another server at the same address."""
    try:
        return (await client.version()).pid == pid or pid is None
    except NotConnected:
        return False
    except KedgeError:
        return True  # slow, or it closed the connection, or it is shutting down
