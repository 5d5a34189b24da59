"""`kedge tui`: the terminal interface. `kedge` without a command opens it, too."""

from __future__ import annotations

import os
import sys

import click

from kedge.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from kedge.cli.options import cwd_option, examples, host_option
from kedge.client.safe_text import one_line
from kedge.paths import data_dir

_THEMES = ("dark", "light", "contrast", "plain")


@click.command(epilog=examples("kedge", "kedge tui -s 3f2a", "KEDGE_THEME=light kedge"))
@click.option("-s", "--session", metavar="ID", help="Open this session instead of the last one.")
@click.option("--theme", type=click.Choice(_THEMES), envvar="KEDGE_THEME", help="Colour theme (also $KEDGE_THEME).")
@cwd_option
@host_option
def tui(session: str | None, theme: str | None, cwd: str, host: str | None) -> int:
    """Open the terminal interface. `kedge` without a command does the same."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo('kedge: This needs a terminal. In a script use: kedge run "..."', err=True)
        return EXIT_USAGE
    from kedge.tui.app import KedgeApp
    from kedge.tui.render.themes import THEMES

    chosen = theme or ("plain" if os.environ.get("NO_COLOR") else "dark")
    theme_name = next(name for name in THEMES if name == chosen)
    app = KedgeApp(cwd, host, session, theme_name, state_dir=data_dir() / "tui")
    code = app.run()
    if app.failure is not None:
        click.echo(f"kedge: Internal error, please report it: {one_line(repr(app.failure), 500)}", err=True)
        return EXIT_FAILED
    return code or 0
