"""The `kedge` command: its commands are loaded when they are called, and its errors are one line."""

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

#: name -> (where it is, what `kedge --help` says of it). Written here so that help loads no command.
COMMANDS = {
    "tui": ("kedge.cli.command_tui:tui", "Work in the terminal: what `kedge` alone does."),
    "run": ("kedge.cli.command_run:run", "Send a prompt and print the answer."),
    "runs": ("kedge.cli.command_runs:runs", "List what is running on this server."),
    "cancel": ("kedge.cli.command_runs:cancel", "Stop a run, or every run of a session."),
    "attach": ("kedge.cli.command_attach:attach", "Follow a session in the terminal, read-only."),
    "approvals": ("kedge.cli.command_approvals:approvals", "Show what waits for your answer, and answer it."),
    "sessions": ("kedge.cli.command_sessions:sessions", "List, show, undo, export, search and change sessions."),
    "init": ("kedge.cli.command_init:init", "Have AGENTS.md written for this directory."),
    "models": ("kedge.cli.command_models:models", "List the models you can use."),
    "config": ("kedge.cli.command_config:config", "Show, check and trust the configuration."),
    "doctor": ("kedge.cli.command_doctor:doctor", "Check this installation."),
    "serve": ("kedge.cli.command_serve:serve", "Run a server."),
    "stop": ("kedge.cli.command_stop:stop", "Stop the server."),
}

WELCOME = """\
kedge: the agent that stops where you say.

  kedge                                         work in the terminal
  kedge run "What does this repository do?"     send a prompt and print the answer
  kedge run -C "And who wrote it?"              go on in the last session
  kedge runs                                    what is running
  kedge cancel RUN                              stop it
  kedge approvals                               what waits for your answer
  kedge doctor                                  check this installation
  kedge --help                                  everything else
"""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kedge", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> int:
    """kedge: an agent server. Every accepted prompt becomes a Run, and a Run ends exactly once."""
    if context.invoked_subcommand is not None:
        return 0
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty():
        module, _, name = COMMANDS["tui"][0].partition(":")
        code: int = context.invoke(getattr(import_module(module), name), cwd=os.getcwd())
        return code
    click.echo(WELCOME, nl=False)
    return 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """With the words of the command line the process ends here; with others, in a program of somebody else, it does
    not."""
    _hold_standard_handles()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    if arguments is None:
        os.environ["PATH"] = paths.absolute_entries(os.environ.get("PATH", ""))
    code = _exit_code(arguments)
    if arguments is None:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """As the interpreter ends, but for its taking apart every module: a tenth of what a short command costs."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):  # whoever reads it has left, or somebody closed it
                stream.flush()
    os._exit(code)


def _hold_standard_handles() -> None:
    """One of 0, 1 and 2 that was closed would be given to the next socket, and the answer be printed into that."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(args=arguments, prog_name="kedge", standalone_mode=False)
        _flush()
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "kedge"
        return complain(f"{error.format_message()} (see `{path} --help`)", EXIT_USAGE)
    except click.ClickException as error:
        return complain(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_CANCELLED
    except Unreachable as error:
        return complain(error.message, EXIT_UNREACHABLE)
    except KedgeError as error:
        return complain(error.message, EXIT_FAILED)
    except BrokenPipeError:
        # Whoever read our output has seen enough. The interpreter would complain once more when it flushes at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FAILED
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), EXIT_FAILED)
    except Exception as error:  # the outermost edge: a bug of ours is told in one line too
        return complain(f"internal error, please report it: {type(error).__name__}: {error}", EXIT_FAILED)
    return code if isinstance(code, int) else 0


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def complain(message: str, code: int) -> int:
    """One line on stderr; the exit code again."""
    with suppress(OSError):  # whoever closed stderr does not want to know
        click.echo(f"kedge: {one_line(message, 2000)}", err=True)
    return code
