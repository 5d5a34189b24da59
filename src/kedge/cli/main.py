"""The `kedge` command. Its subcommands are loaded on demand, and errors are printed as one line."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click

from kedge import __version__, paths
from kedge.cli.exit_codes import EXIT_CANCELLED, EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE
from kedge.client.safe_text import one_line
from kedge.errors import KedgeError, Unreachable

#: Name of a command -> the module that defines it, as a function of that name. In the order of `kedge --help`.
COMMANDS = {
    "tui": "kedge.cli.command_tui",
    "run": "kedge.cli.command_run",
    "web": "kedge.cli.command_web",
    "runs": "kedge.cli.command_runs",
    "cancel": "kedge.cli.command_runs",
    "attach": "kedge.cli.command_attach",
    "approvals": "kedge.cli.command_approvals",
    "jobs": "kedge.cli.command_jobs",
    "stats": "kedge.cli.command_stats",
    "sessions": "kedge.cli.command_sessions",
    "workspaces": "kedge.cli.command_workspaces",
    "extensions": "kedge.cli.command_extensions",
    "init": "kedge.cli.command_init",
    "models": "kedge.cli.command_models",
    "mcp": "kedge.cli.command_mcp",
    "config": "kedge.cli.command_config",
    "plugin": "kedge.cli.command_plugin",
    "lsp": "kedge.cli.command_lsp",
    "doctor": "kedge.cli.command_doctor",
    "serve": "kedge.cli.command_serve",
    "users": "kedge.cli.command_users",
    "audit": "kedge.cli.command_users",
    "nodes": "kedge.cli.command_nodes",
    "stop": "kedge.cli.command_stop",
    "store": "kedge.cli.command_store",
}

WELCOME = """\
kedge: an agent that stops when you tell it to.

  kedge                                         open the terminal interface
  kedge run "What does this repository do?"     send a prompt and print the answer
  kedge run -C "And who wrote it?"              continue the last session
  kedge runs                                    list queued and active runs
  kedge cancel RUN                              cancel a run
  kedge approvals                               list pending approvals
  kedge web                                     open the web page; --phone shows a QR code
  kedge doctor                                  check this installation
  kedge --help                                  list all commands
"""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kedge", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> int:
    """kedge: an agent server. Every accepted prompt becomes a Run, and a Run ends exactly once."""
    if context.invoked_subcommand is not None:
        return 0
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty():
        code: int = context.invoke(import_module(COMMANDS["tui"]).tui, cwd=os.getcwd())
        return code
    click.echo(WELCOME, nl=False)
    return 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command. With `arguments` None, those of the command line are used and the process ends at once."""
    _reserve_standard_handles()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            # Print a question mark for a character that the encoding lacks, not a traceback.
            stream.reconfigure(errors="replace")
    if arguments is None:
        os.environ["PATH"] = paths.absolute_entries(os.environ.get("PATH", ""))
    code = _exit_code(arguments)
    if arguments is None:
        _exit_now(code)
    sys.exit(code)


def _exit_now(code: int) -> NoReturn:
    """Exit without the interpreter's teardown of modules, which takes a tenth of the time of a short command."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
                stream.flush()
    os._exit(code)


def _reserve_standard_handles() -> None:
    """Open closed handles 0 to 2. Otherwise the next socket would get one, and output would be written to it."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(args=arguments, prog_name="kedge", standalone_mode=False)
        _flush()
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "kedge"
        message = error.format_message().rstrip(".")
        return print_error(f"{message}. See: {path} --help", EXIT_USAGE)
    except click.ClickException as error:
        return print_error(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_CANCELLED
    except Unreachable as error:
        return print_error(error.message, EXIT_UNREACHABLE)
    except KedgeError as error:
        return print_error(error.message, EXIT_FAILED)
    except BrokenPipeError:
        # The reader of the output has exited. The interpreter would report that again when it flushes at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FAILED
    except OSError as error:
        return print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error), EXIT_FAILED)
    except Exception as error:  # the outermost boundary: a bug is also reported as one line
        return print_error(f"Internal error, please report it: {type(error).__name__}: {error}", EXIT_FAILED)
    return code if isinstance(code, int) else 0


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def print_error(message: str, code: int) -> int:
    """Print the error as one line on stderr and return the exit code."""
    with suppress(OSError):  # stderr is closed
        click.echo(f"kedge: {one_line(message, 2000)}", err=True)
    return code
