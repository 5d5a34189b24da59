"""`kedge run`: one prompt, its answer on standard output, its outcome as the exit code."""

from __future__ import annotations

import math

import click

from kedge.cli.common import (
    EXIT_CANCELLED,
    EXIT_COMPLETED,
    EXIT_FAILED,
    EXIT_TIMEOUT,
    Opened,
    cwd_option,
    do,
    examples,
    find_session,
    host_option,
    opened,
)
from kedge.cli.prompt import prompt_from
from kedge.cli.stop import Stop, stoppable
from kedge.cli.terminal import Output, Status
from kedge.cli.view import Form, RunView
from kedge.client.client import new_run_id
from kedge.client.follow import FollowedRun
from kedge.core.commands import WhenBusy
from kedge.wire.models import RunComplete, SessionBody, SubmitPrompt

#: A server that is started again is back within a few seconds; scripts should not hang for longer. Seconds.
RECONNECT_S = 15.0


def _finite(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter("must be a number of seconds above 0", context, option)
    return value


@click.command(
    epilog=examples(
        'kedge run "What does this repository do?"',
        'git diff | kedge run "Write a commit message"',
        'kedge run -C "Go on"                       # in the last session of this directory',
        'kedge run --output json "..." | jq -r .text',
        'slow-command | kedge run - "Explain this"  # - waits for standard input',
        "",
        "Exit codes: 0 completed, 1 failed, 2 usage, 3 approval needed,",
        "            4 server unreachable, 124 timeout, 130 cancelled.",
    )
)
@click.argument("words", metavar="[PROMPT]...", nargs=-1)
@click.option("-m", "--model", metavar="PROVIDER/MODEL", help="Another model than the configured one.")
@click.option("-s", "--session", "session_id", metavar="ID", help="Go on in this session (a unique beginning will do).")
@click.option("-C", "--continue", "goes_on", is_flag=True, help="Go on in the last session of this workspace.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors.")
@click.option("-v", "--verbose", is_flag=True, help="Say more on stderr, also without a terminal.")
@click.option("--output", "form", type=click.Choice(["text", "json", "stream-json"]), default="text", show_default=True)
@click.option("--timeout", "timeout_s", metavar="S", type=float, callback=_finite, help="Stop the run after S seconds.")
@click.option("--max-steps", metavar="N", type=click.IntRange(min=1), help="Stop the run after N steps.")
@click.option(
    "--when-busy",
    type=click.Choice(["queue", "fold", "reject", "interrupt"]),
    help="What to do when the session is at work. Default: queue.",
)
@click.option("--reconnect", "reconnect_s", type=float, callback=_finite, default=RECONNECT_S, hidden=True)
@cwd_option
@host_option
def run(
    words: tuple[str, ...],
    model: str | None,
    session_id: str | None,
    goes_on: bool,
    quiet: bool,
    verbose: bool,
    form: Form,
    timeout_s: float | None,
    max_steps: int | None,
    when_busy: WhenBusy | None,
    reconnect_s: float,
    cwd: str,
    host: str | None,
) -> int:
    """Send a prompt and print the answer.

    The prompt is the arguments; what is piped in comes before them. A pipe that stays silent for 2 s is left out when
    there are arguments; the argument - waits for it. Text is printed as it comes. Ctrl-C cancels the run on the server
    and waits for its end; a second one leaves at once. A run goes on when its terminal is closed."""
    if session_id is not None and goes_on:
        raise click.UsageError("--session and --continue exclude each other")
    text = prompt_from(words)
    prompt = SubmitPrompt(
        prompt=text,
        run_id=new_run_id(),
        model=model,
        max_steps=max_steps,
        timeout_s=timeout_s,
        when_busy=when_busy,
    )
    output = Output()
    status = Status(output, quiet=quiet, verbose=verbose)
    view = RunView(output, status, form)

    async def work(stop: Stop) -> int:
        status.doing("connecting")
        async with opened(host, cwd) as workspace:
            session = await _choose_session(workspace, session_id, goes_on)
            prompt.session_id = session.id
            followed = FollowedRun(workspace.client, workspace.id, prompt, give_up_s=reconnect_s)
            return await _follow(followed, view, stop)

    return do(stoppable(work, status))


async def _choose_session(opened: Opened, session_id: str | None, goes_on: bool) -> SessionBody:
    if session_id is not None:
        return await find_session(opened, session_id)
    if goes_on and (found := await opened.client.sessions(opened.id)):
        return max(found, key=lambda session: session.updated_at)
    return await opened.client.create_session(opened.id)


async def _follow(followed: FollowedRun, view: RunView, stop: Stop) -> int:
    async with followed:
        stop.followed = followed
        receipt = await followed.submit()
        stop.accepted.set()
        view.accepted(receipt)
        async for event in followed:
            await view.see(event, followed.complete)
    complete = followed.complete
    assert complete is not None, "the events of a Run end with its end"
    await view.end(complete)
    return exit_code(complete)


def exit_code(complete: RunComplete) -> int:
    if complete.reason == "timeout":
        return EXIT_TIMEOUT
    return {"completed": EXIT_COMPLETED, "cancelled": EXIT_CANCELLED}.get(complete.outcome, EXIT_FAILED)
