"""`kedge init`: have the agent write AGENTS.md."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.foreground import CancelTarget, follow, run_cancellable
from kedge.cli.options import cwd_option, examples, host_option, verbosity_options
from kedge.cli.run_options import new_prompt, run_options
from kedge.cli.run_output import RunPrinter
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.cli.workspace_lookup import opened
from kedge.client.client import Client
from kedge.client.followed_run import FollowedRun
from kedge.client.sync_client import RunSettings
from kedge.core.records import OFFLINE
from kedge.errors import KedgeError

FILE_NAME = "AGENTS.md"


@click.command(epilog=examples("kedge init", "kedge init --force          # improve the existing file"))
@click.option("--force", is_flag=True, help=f"Improve an existing {FILE_NAME}.")
@run_options
@verbosity_options
@cwd_option
@host_option
def init(force: bool, quiet: bool, verbose: bool, cwd: str, host: str | None, **settings: Unpack[RunSettings]) -> int:
    """Have the agent write AGENTS.md for this directory.

    The agent reads the directory and writes down what it should know each time it works here. It may write this one
    file without asking. Other changes need an approval, and end the run if there is no terminal."""
    file = Path(cwd) / FILE_NAME
    before = _content(file)
    if before is not None and not force:
        raise KedgeError(f"{file} already exists. Edit it, or improve it with --force.")
    output = StdoutWriter()
    status = StatusLine(output, quiet=quiet, verbose=verbose)
    printer = RunPrinter(output, status, "text")
    rules = [f"write({FILE_NAME})", f"edit({FILE_NAME})", f"multiedit({FILE_NAME})"]
    settings["allow"] = [*rules, *settings["allow"]]
    prompt = new_prompt((Path(__file__).parent / "init_prompt.md").read_text("utf-8").strip(), settings)

    async def work(target: CancelTarget) -> int:
        status.set("connecting")
        async with opened(host, cwd) as workspace:
            await _check_model(workspace.client, workspace.id, prompt.model)
            prompt.session_id = (await workspace.client.create_session(workspace.id, f"Write {FILE_NAME}")).id
            followed = FollowedRun(workspace.client, workspace.id, prompt)
            return await follow(followed, workspace.client, printer, status, target, prompt.on_approval)

    code = run_cancellable(work, status)
    if code == 0 and _content(file) == before:
        message = f"kedge: The model did not write {FILE_NAME}. Try again, or use another model with -m."
        status.note(message, always=True)
        return EXIT_FAILED
    return code


async def _check_model(client: Client, workspace_id: str, model: str | None) -> None:
    if (model or (await client.config(workspace_id))["model"] or OFFLINE) == OFFLINE:
        raise KedgeError(
            f"Writing {FILE_NAME} needs a language model, and none is configured. Add one to your configuration (see: "
            "kedge config path, kedge models), or write the file yourself."
        )


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
