"""`kedge run`: one prompt, its answer on standard output, its outcome as the exit code."""

from __future__ import annotations

import math
import os
from typing import TypedDict, Unpack

import click
import msgspec

from kedge.cli.approval_prompts import can_ask
from kedge.cli.foreground import RECONNECT_S, CancelTarget, follow, run_cancellable
from kedge.cli.options import F, cwd_option, examples, host_option
from kedge.cli.prompt_input import command_in, prompt_from
from kedge.cli.run_output import Form, RunPrinter
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.cli.workspace_lookup import OpenWorkspace, find_session, opened
from kedge.client.attachment_files import read_attachments
from kedge.client.client import new_run_id
from kedge.client.followed_run import FollowedRun
from kedge.core.approvals import parse_rule
from kedge.core.commands import WhenBusy
from kedge.errors import Invalid
from kedge.wire.models import AttachmentBody, SessionBody, SubmitPrompt

#: Shells say by 128 and the signal's number that a command was killed.
EXIT_SIGNAL = 128


def _above_zero(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter("must be a number above 0", context, option)
    return value


def _rules(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(str(parse_rule(value)) for value in values)
    except Invalid as error:
        raise click.BadParameter(error.message, context, option) from None


class Limits(TypedDict):
    """What a Run may be given beside its prompt, as the options have it."""

    model: str | None
    timeout_s: float | None
    max_steps: int | None
    budget_usd: float | None
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    skip_approvals: bool


def limit_options(command: F) -> F:
    for option in reversed(
        (
            click.option("-m", "--model", metavar="PROVIDER/MODEL", help="Another model than the configured one."),
            click.option(
                *("--timeout", "timeout_s"),
                metavar="S",
                type=float,
                callback=_above_zero,
                help="Stop the run after S seconds.",
            ),
            click.option("--max-steps", metavar="N", type=click.IntRange(min=1), help="Stop the run after N steps."),
            click.option(
                *("--budget", "budget_usd"),
                metavar="USD",
                type=float,
                callback=_above_zero,
                help="Stop the run when it has cost so many US dollars.",
            ),
            click.option(
                *("--allow",),
                metavar="RULE",
                multiple=True,
                callback=_rules,
                help="Allow without asking: 'bash(npm test)', 'edit(src/**)', 'fetch'. May be repeated.",
            ),
            click.option(
                *("--deny",),
                metavar="RULE",
                multiple=True,
                callback=_rules,
                help="Never allow, whatever else is said. May be repeated.",
            ),
            click.option("--yolo", "skip_approvals", is_flag=True, help="Allow everything that no deny rule forbids."),
        )
    ):
        command = option(command)
    return command


def limited(prompt: SubmitPrompt, limits: Limits) -> SubmitPrompt:
    # The server has an environment of its own, of whoever started it: this one counts here.
    prompt.model, prompt.timeout_s = limits["model"] or os.environ.get("KEDGE_MODEL"), limits["timeout_s"]
    prompt.max_steps, prompt.budget_usd = limits["max_steps"], limits["budget_usd"]
    prompt.allow, prompt.deny = [*prompt.allow, *limits["allow"]], list(limits["deny"])
    prompt.skip_approvals = limits["skip_approvals"]
    prompt.on_approval = "ask" if can_ask() else "fail"
    return prompt


@click.command(
    epilog=examples(
        'kedge run "What does this repository do?"',
        'git diff | kedge run "Write a commit message"',
        'kedge run -C "Go on"                       # in the last session of this directory',
        'kedge run -a screen.png "What is wrong here?"',
        "kedge run --allow 'edit(src/**)' --allow 'bash(npm test)' \"Make the tests pass\"",
        'kedge run --output json "..." | jq -r .text',
        'slow-command | kedge run - "Explain this"  # - waits for standard input',
        "kedge run '!git status'                    # a command of yours: the model sees its output next time",
        "",
        "Exit codes: 0 completed, 1 failed, 2 usage, 3 approval needed,",
        "            4 server unreachable, 124 timeout, 130 cancelled.",
    )
)
@click.argument("words", metavar="[PROMPT]...", nargs=-1)
@click.option("-s", "--session", "session_id", metavar="ID", help="Go on in this session (a unique beginning will do).")
@click.option("-C", "--continue", "goes_on", is_flag=True, help="Go on in the last session of this workspace.")
@click.option(
    *("-a", "--attach", "files"), metavar="FILE", multiple=True, help="Send a text or a picture too. May be repeated."
)
@limit_options
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors and questions.")
@click.option("-v", "--verbose", is_flag=True, help="Say more on stderr, also without a terminal.")
@click.option("--output", "form", type=click.Choice(["text", "json", "stream-json"]), default="text", show_default=True)
@click.option(
    "--when-busy",
    type=click.Choice(["queue", "fold", "reject", "interrupt"]),
    help="What to do when the session is at work. Default: queue.",
)
@click.option("--reconnect", "reconnect_s", type=float, callback=_above_zero, default=RECONNECT_S, hidden=True)
@cwd_option
@host_option
def run(
    words: tuple[str, ...],
    session_id: str | None,
    goes_on: bool,
    files: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    form: Form,
    when_busy: WhenBusy | None,
    reconnect_s: float,
    cwd: str,
    host: str | None,
    **limits: Unpack[Limits],
) -> int:
    """Send a prompt and print the answer.

    The prompt is the arguments; what is piped in comes before them. A pipe that stays silent for 2 s is left out when
    there are arguments; the argument - waits for it. Text is printed as it comes. Ctrl-C cancels the run on the server
    and waits for its end; a second one leaves at once. A run goes on when its terminal is closed.

    What needs an approval is asked at the terminal. Without one the run ends with exit code 3: see --allow."""
    if session_id is not None and goes_on:
        raise click.UsageError("--session and --continue exclude each other")
    text = prompt_from(words, has_files=bool(files))
    command = command_in(text, words)
    if command and files:
        raise click.UsageError("a command (!...) takes no attachments")
    prompt = limited(SubmitPrompt(prompt=text, run_id=new_run_id(), when_busy=when_busy), limits)
    prompt.attachments = _attached(files, cwd)
    output = StdoutWriter()
    status = StatusLine(output, quiet=quiet, verbose=verbose)
    view = RunPrinter(output, status, form)

    async def work(target: CancelTarget) -> int:
        status.set("connecting")
        async with opened(host, cwd) as workspace:
            session = await _choose_session(workspace, session_id, goes_on)
            prompt.session_id = session.id
            if command:
                return await _run_command(workspace, session.id, command, output, status, form)
            followed = FollowedRun(workspace.client, workspace.id, prompt, give_up_s=reconnect_s)
            asks = prompt.on_approval == "ask"
            return await follow(followed, workspace.client, view, status, target, is_interactive=asks)

    return run_cancellable(work, status)


def _attached(files: tuple[str, ...], cwd: str) -> list[AttachmentBody] | None:
    try:
        return read_attachments(files, cwd) or None
    except Invalid as error:
        raise click.UsageError(error.message) from None


async def _choose_session(opened: OpenWorkspace, session_id: str | None, goes_on: bool) -> SessionBody:
    if session_id is not None:
        return await find_session(opened, session_id)
    if goes_on and (found := await opened.client.sessions(opened.id)):
        return max(found, key=lambda session: session.updated_at)
    return await opened.client.create_session(opened.id)


async def _run_command(
    opened: OpenWorkspace, session_id: str, command: str, output: StdoutWriter, status: StatusLine, form: Form
) -> int:
    """A command of the user's own: its output, and its exit code as ours."""
    status.set("running your command")
    done = await opened.client.shell(opened.id, session_id, command)
    status.set("")
    if form == "text":
        await output.write(done.output if done.output.endswith("\n") or not done.output else done.output + "\n")
    else:
        await output.write(msgspec.json.encode(done).decode() + "\n")
    return done.exit_code if done.exit_code >= 0 else EXIT_SIGNAL - done.exit_code
