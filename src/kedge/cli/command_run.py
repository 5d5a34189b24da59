"""`kedge run`: one prompt. Its answer goes to standard output, and its outcome is the exit code."""

from __future__ import annotations

from typing import Unpack, get_args

import click
import msgspec

from kedge.cli.foreground import RECONNECT_S, CancelTarget, follow, run_cancellable
from kedge.cli.options import cwd_option, examples, host_option, verbosity_options
from kedge.cli.prompt_input import command_in, is_typed, prompt_from
from kedge.cli.run_options import new_prompt, positive, run_options
from kedge.cli.run_output import OutputFormat, RunPrinter
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.cli.workspace_lookup import OpenWorkspace, find_session, opened
from kedge.client.attachment_files import read_attachments
from kedge.client.followed_run import FollowedRun
from kedge.client.sync_client import RunSettings
from kedge.core.commands import WhenBusy
from kedge.errors import Invalid
from kedge.wire.models import AttachmentBody, SessionBody

#: Shells report a command killed by a signal as 128 plus the signal's number.
EXIT_SIGNAL = 128


@click.command(
    epilog=examples(
        'kedge run "What does this repository do?"',
        'git diff | kedge run "Write a commit message"',
        'kedge run -C "Continue"                    # in the last session of this directory',
        'kedge run -a screen.png "What is wrong here?"',
        "kedge run --allow 'edit(src/**)' --allow 'bash(npm test)' \"Make the tests pass\"",
        'kedge run --output json "..." | jq -r .text',
        'slow-command | kedge run - "Explain this"  # - waits for standard input',
        'kedge run "/review 12"                     # a prompt command or a skill; // is a plain slash',
        'kedge run "Explain @docs:guide://start"    # with a resource of the MCP server docs',
        "kedge run '!git status'                    # a shell command; the model sees its output next time",
        "",
        "Exit codes: 0 completed, 1 failed, 2 usage, 3 approval needed,",
        "            4 server unreachable, 124 timeout, 130 cancelled.",
    )
)
@click.argument("words", metavar="[PROMPT]...", nargs=-1)
@click.option("-s", "--session", "session_id", metavar="ID", help="Continue this session (a unique prefix is enough).")
@click.option("-C", "--continue", "use_last", is_flag=True, help="Continue the last session of this workspace.")
@click.option("-a", "--attach", "files", metavar="FILE", multiple=True, help="Attach a text or image file. Repeatable.")
@run_options
@verbosity_options
@click.option(
    "--output",
    "output_format",
    type=click.Choice(get_args(OutputFormat)),
    default="text",
    show_default=True,
    help="Format of standard output.",
)
@click.option(
    "--when-busy",
    type=click.Choice(get_args(WhenBusy)),
    help="What to do if the session has an active run. Default: queue.",
)
@click.option("--reconnect", "reconnect_s", type=float, callback=positive, default=RECONNECT_S, hidden=True)
@cwd_option
@host_option
def run(
    words: tuple[str, ...],
    session_id: str | None,
    use_last: bool,
    files: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    output_format: OutputFormat,
    reconnect_s: float,
    cwd: str,
    host: str | None,
    **settings: Unpack[RunSettings],
) -> int:
    """Send a prompt and print the answer.

    The prompt is standard input, if something is piped in, followed by the arguments. A pipe without data for 2 s is
    ignored if there are arguments; the argument - waits for it. The answer is printed as it streams. Ctrl-C cancels
    the run on the server and waits for its end; a second Ctrl-C exits at once. Closing the terminal does not stop the
    run.

    Approvals are requested on the terminal. Without a terminal, a run that needs one ends with exit code 3; see
    --allow."""
    if session_id is not None and use_last:
        raise click.UsageError("--session and --continue are mutually exclusive")
    text = prompt_from(words, has_files=bool(files))
    command = command_in(text, words)
    if command and files:
        raise click.UsageError("A command (!...) takes no attachments")
    prompt = new_prompt(text, settings)
    prompt.attachments = _attachments(files, cwd)
    prompt.expand = is_typed(text, words)
    output = StdoutWriter()
    status = StatusLine(output, quiet=quiet, verbose=verbose)
    printer = RunPrinter(output, status, output_format)

    async def work(target: CancelTarget) -> int:
        status.set("connecting")

        def notify(text: str) -> None:
            status.note(f"kedge: {text} ...", always=not quiet)

        def warn(text: str) -> None:
            status.note(f"kedge: {text}", always=True)

        async with opened(host, cwd, notify, warn) as workspace:
            printer.directory = workspace.workspace.path
            session = await _choose_session(workspace, session_id, use_last)
            prompt.session_id = session.id
            if command:
                return await _run_command(workspace, session.id, command, output, status, output_format)
            followed = FollowedRun(workspace.client, workspace.id, prompt, give_up_s=reconnect_s)
            return await follow(followed, workspace.client, printer, status, target, prompt.on_approval)

    return run_cancellable(work, status)


def _attachments(files: tuple[str, ...], cwd: str) -> list[AttachmentBody] | None:
    try:
        return read_attachments(files, cwd) or None
    except Invalid as error:
        raise click.UsageError(error.message) from None


async def _choose_session(opened: OpenWorkspace, session_id: str | None, use_last: bool) -> SessionBody:
    if session_id is not None:
        return await find_session(opened, session_id)
    if use_last and (sessions := await opened.client.sessions(opened.id)):
        return max(sessions, key=lambda session: session.updated_at)
    return await opened.client.create_session(opened.id)


async def _run_command(
    opened: OpenWorkspace,
    session_id: str,
    command: str,
    output: StdoutWriter,
    status: StatusLine,
    output_format: OutputFormat,
) -> int:
    """Run a shell command of the user, print its output and return its exit code."""
    status.set("running your command")
    reply = await opened.client.shell(opened.id, session_id, command)
    status.set("")
    if output_format == "text":
        await output.write(reply.output if reply.output.endswith("\n") or not reply.output else reply.output + "\n")
    else:
        await output.write(msgspec.json.encode(reply).decode() + "\n")
    return reply.exit_code if reply.exit_code >= 0 else EXIT_SIGNAL - reply.exit_code
