"""`kedge serve`. Only what every server needs is loaded here."""

from __future__ import annotations

import click

from kedge.cli.options import examples


@click.command(
    epilog=examples(
        "kedge serve                                    # your own socket",
        "kedge serve --host tcp://127.0.0.1:8787        # with a token, see KEDGE_TOKEN",
        "kedge serve --host unix://$HOME/k.sock --host tcp://127.0.0.1:0",
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
    from kedge.server.harden import harden

    harden()  # first: loading the rest takes a while
    from kedge.server.startup import serve as listen

    return listen(
        hosts=list(hosts), data_dir=data_dir, store=store, allow_remote=allow_remote, exit_when_idle=exit_when_idle
    )
