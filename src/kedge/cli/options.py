"""Command-line options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kedge.core.records import EFFORTS

F = TypeVar("F", bound=Callable[..., Any])
#: The empty effort.
DEFAULT_EFFORT = "default"


def host_option(command: F) -> F:
    return click.option(
        "--host",
        metavar="URL",
        help="Server address: unix:///path.sock or tcp://127.0.0.1:PORT. Default: your own server.",
    )(command)


def cwd_option(command: F) -> F:
    return click.option(
        "--cwd",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, resolve_path=True),
        default=".",
        help="Workspace directory. Default: the current directory.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def effort_option(command: F) -> F:
    return click.option(
        "--effort",
        type=click.Choice([DEFAULT_EFFORT, *EFFORTS[1:]]),
        callback=lambda _context, _option, value: "" if value == DEFAULT_EFFORT else value,
        help="How much the model thinks before it answers. Not all models support it.",
    )(command)


def verbosity_options(command: F) -> F:
    quiet = click.option("-q", "--quiet", is_flag=True, help="Print only errors and approval prompts on stderr.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Print progress on stderr even without a terminal.")
    return quiet(verbose(command))


def examples(*lines: str) -> str:
    """Return the epilog of a command's help. `\\b` keeps click from joining the lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
