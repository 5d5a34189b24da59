"""`kedge init`: a first AGENTS.md, written by the agent itself."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from kedge.cli.command_run import Limits, limit_options, limited
from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.foreground import CancelTarget, follow, run_cancellable
from kedge.cli.options import cwd_option, examples, host_option
from kedge.cli.run_output import RunPrinter
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.cli.workspace_lookup import opened
from kedge.client.client import Client, new_run_id
from kedge.client.followed_run import FollowedRun
from kedge.core.records import OFFLINE
from kedge.errors import KedgeError
from kedge.wire.models import SubmitPrompt

FILE_NAME = "AGENTS.md"


@click.command(epilog=examples("kedge init", "kedge init --force          # improve the one that is there"))
@click.option("--force", is_flag=True, help=f"Though there is an {FILE_NAME} already.")
@limit_options
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors and questions.")
@click.option("-v", "--verbose", is_flag=True, help="Say more on stderr, also without a terminal.")
@cwd_option
@host_option
def init(force: bool, quiet: bool, verbose: bool, cwd: str, host: str | None, **limits: Unpack[Limits]) -> int:
    """Have the agent look at this directory and write AGENTS.md: what it should know each time it works here.

    It may write this one file; everything else it asks for, or not at all without a terminal."""
    file = Path(cwd) / FILE_NAME
    before = _content(file)
    if before is not None and not force:
        raise KedgeError(f"{file} is already there: edit it, or have it improved with --force")
    output = StdoutWriter()
    status = StatusLine(output, quiet=quiet, verbose=verbose)
    view = RunPrinter(output, status, "text")
    rules = [f"write({FILE_NAME})", f"edit({FILE_NAME})", f"multiedit({FILE_NAME})"]
    prompt = limited(SubmitPrompt(prompt=_text(), run_id=new_run_id(), allow=rules), limits)

    async def work(target: CancelTarget) -> int:
        status.set("connecting")
        async with opened(host, cwd) as workspace:
            await _check_model(workspace.client, workspace.id, prompt.model)
            title = f"Write {FILE_NAME}"
            prompt.session_id = (await workspace.client.create_session(workspace.id, title)).id
            followed = FollowedRun(workspace.client, workspace.id, prompt)
            asks = prompt.on_approval == "ask"
            return await follow(followed, workspace.client, view, status, target, is_interactive=asks)

    code = run_cancellable(work, status)
    if code == 0 and _content(file) == before:
        status.note(
            f"kedge: the model ended without writing {FILE_NAME}: try again, or another one with -m", always=True
        )
        return EXIT_FAILED
    return code


async def _check_model(client: Client, workspace_id: str, model: str | None) -> None:
    if (model or (await client.config(workspace_id))["model"] or OFFLINE) == OFFLINE:
        raise KedgeError(
            f"writing {FILE_NAME} needs a language model, and none is configured: add one (see `kedge config path` and "
            "`kedge models`) or write the file yourself"
        )


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _text() -> str:
    from kedge.agent.system_prompt import prompt

    return prompt("init")
