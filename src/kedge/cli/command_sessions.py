"""`kedge sessions`: the conversations of a workspace. They are in the server's store, so one is started if need be."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Literal

import click

from kedge.cli.foreground import RECONNECT_S, CancelTarget, follow, run_cancellable
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import ago, print_json, print_table
from kedge.cli.run_output import RunPrinter
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.cli.transcript_lines import transcript_lines
from kedge.cli.workspace_lookup import find_session, opened
from kedge.client.followed_run import FollowedSummary
from kedge.client.safe_text import harmless, one_line
from kedge.core.records import OFFLINE
from kedge.core.untrusted_text import visible
from kedge.wire.models import MessageBody, SearchHitBody, SessionBody, UndoReply


@click.group()
def sessions() -> None:
    """List, show, undo, export, search and change the sessions of a workspace.

    SESSION is an id or a unique beginning of one."""


@sessions.command("list", epilog=examples("kedge sessions list", "kedge sessions list --json | jq -r '.[0].id'"))
@json_option
@cwd_option
@host_option
def list_(as_json: bool, cwd: str, host: str | None) -> int:
    """List the sessions, the last used one first."""

    async def read() -> list[SessionBody]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.sessions(workspace.id)

    found = sorted(asyncio.run(read()), key=lambda session: session.updated_at, reverse=True)
    if as_json:
        print_json(found)
    elif not found:
        click.echo("no sessions here yet: `kedge run` begins one")
    else:
        rows = [
            (
                session.id,
                ago(session.updated_at),
                str(session.message_count),
                "busy" if session.is_busy else "",
                one_line(session.title, 80) or "(no title)",
            )
            for session in found
        ]
        print_table(("SESSION", "AGE", "MESSAGES", "STATE", "TITLE"), rows)
    return 0


@sessions.command(epilog=examples("kedge sessions show 3f2a", "kedge sessions show 3f2a --json"))
@click.argument("session")
@json_option
@cwd_option
@host_option
def show(session: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Print a session's transcript."""

    async def read() -> tuple[SessionBody, list[MessageBody]]:
        async with opened(host, cwd) as workspace:
            found = await find_session(workspace, session)
            return found, [message async for message in workspace.client.all_messages(workspace.id, found.id)]

    found, messages = asyncio.run(read())
    if as_json:
        print_json({"session": found, "messages": messages})
        return 0
    click.echo(f"{one_line(found.title) or '(no title)'} [{found.id}]")
    for line in transcript_lines(messages):
        click.echo(harmless(line) if os.isatty(1) else line)
    return 0


@sessions.command(epilog=examples('kedge sessions rename 3f2a "The parser bug"'))
@click.argument("session")
@click.argument("title")
@json_option
@cwd_option
@host_option
def rename(session: str, title: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Give a session another title."""

    async def act() -> SessionBody:
        async with opened(host, cwd) as workspace:
            found = await find_session(workspace, session)
            return await workspace.client.rename_session(workspace.id, found.id, title)

    renamed = asyncio.run(act())
    if as_json:
        print_json(renamed)
    else:
        click.echo(f"session {renamed.id} is now {one_line(renamed.title)!r}")
    return 0


@sessions.command(epilog=examples("kedge sessions delete 3f2a", "kedge sessions delete --yes 3f2a   # without asking"))
@click.argument("session")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@cwd_option
@host_option
def delete(session: str, yes: bool, as_json: bool, cwd: str, host: str | None) -> int:
    """Delete a session and its transcript. Its runs are cancelled first."""

    async def find() -> SessionBody:
        async with opened(host, cwd) as workspace:
            return await find_session(workspace, session)

    async def act(session_id: str) -> None:
        async with opened(host, cwd) as workspace:
            await workspace.client.delete_session(workspace.id, session_id)

    found = asyncio.run(find())
    if not yes:
        if not os.isatty(0):
            raise click.UsageError("without a terminal to ask, --yes is needed")
        question = f"Delete session {found.id} ({one_line(found.title, 60) or 'no title'})?"
        click.confirm(question, abort=True, err=True)
    asyncio.run(act(found.id))
    if as_json:
        print_json({"deleted": found.id})
    else:
        click.echo(f"deleted session {found.id}")
    return 0


@sessions.command(
    epilog=examples("kedge sessions export 3f2a > talk.md", "kedge sessions export 3f2a --format html -o talk.html")
)
@click.argument("session")
@click.option("--format", "form", type=click.Choice(["md", "json", "html"]), default="md", show_default=True)
@click.option("-o", "--output", "target", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@cwd_option
@host_option
def export(session: str, form: Literal["md", "json", "html"], target: Path | None, cwd: str, host: str | None) -> int:
    """Print a session as a document, or write it to a file."""

    async def read() -> bytes:
        async with opened(host, cwd) as workspace:
            found = await find_session(workspace, session)
            return await workspace.client.export_session(workspace.id, found.id, form)

    document = asyncio.run(read())
    if target is not None:
        target.write_bytes(document)
    elif os.isatty(1):
        click.echo(harmless(document.decode("utf-8", "replace")))
    else:
        click.echo(document, nl=False)
    return 0


@sessions.command(epilog=examples('kedge sessions search "race condition"', "kedge sessions search --json parser"))
@click.argument("query", nargs=-1, required=True)
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), default=20, show_default=True)
@json_option
@cwd_option
@host_option
def search(query: tuple[str, ...], limit: int, as_json: bool, cwd: str, host: str | None) -> int:
    """Find messages by their words."""

    async def read() -> list[SearchHitBody]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.search(workspace.id, " ".join(query), limit)

    found = asyncio.run(read())
    if as_json:
        print_json(found)
    elif not found:
        click.echo("nothing found")
    else:
        for hit in found:
            click.echo(f"{hit.session_id}  {one_line(hit.session_title, 60) or '(no title)'}")
            click.echo(f"    {one_line(hit.snippet, 200)}")
    return 0


@sessions.command(epilog=examples("kedge sessions undo 3f2a", "kedge sessions undo 3f2a RUN --json"))
@click.argument("session")
@click.argument("run_id", metavar="[RUN]", required=False)
@json_option
@cwd_option
@host_option
def undo(session: str, run_id: str | None, as_json: bool, cwd: str, host: str | None) -> int:
    """Put files back as they were before a run: the last one that changed any, or RUN.

    Only what edits changed, not what commands did; nothing is touched when one of the files has changed since."""

    async def act() -> UndoReply:
        async with opened(host, cwd) as workspace:
            found = await find_session(workspace, session)
            return await workspace.client.undo(workspace.id, found.id, run_id)

    undone = asyncio.run(act())
    if as_json:
        print_json(undone)
    else:
        click.echo(f"undone: what run {undone.run_id} changed")
        for file in undone.files:
            click.echo(f"  {visible(file, keep='')}")
    return 0


@sessions.command(epilog=examples("kedge sessions model 3f2a", "kedge sessions model 3f2a local/fake-large"))
@click.argument("session")
@click.argument("name", metavar="[PROVIDER/MODEL]", required=False)
@json_option
@cwd_option
@host_option
def model(session: str, name: str | None, as_json: bool, cwd: str, host: str | None) -> int:
    """Print the model of a session, or give it another. An empty name means the configured one again."""

    async def act() -> tuple[SessionBody, str]:
        async with opened(host, cwd) as workspace:
            client, found = workspace.client, await find_session(workspace, session)
            if name is not None:
                found = await client.change_session(workspace.id, found.id, model=name)
            return found, (await client.config(workspace.id))["model"] or OFFLINE

    found, configured = asyncio.run(act())
    if as_json:
        print_json(found)
    else:
        click.echo(one_line(found.model) if found.model else f"{one_line(configured)} (the configured one)")
    return 0


@sessions.command(epilog=examples("kedge sessions summarize 3f2a"))
@click.argument("session")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors.")
@click.option("-v", "--verbose", is_flag=True, help="Say more on stderr, also without a terminal.")
@cwd_option
@host_option
def summarize(session: str, quiet: bool, verbose: bool, cwd: str, host: str | None) -> int:
    """Have a session summarized: the model goes on from the summary, and the transcript stays whole.

    A run like any other: Ctrl-C cancels it, and the exit codes are those of `kedge run`."""
    output = StdoutWriter()
    status = StatusLine(output, quiet=quiet, verbose=verbose)
    view = RunPrinter(output, status, "text")

    async def work(target: CancelTarget) -> int:
        status.set("connecting")
        async with opened(host, cwd) as workspace:
            found = await find_session(workspace, session)
            followed = FollowedSummary(workspace.client, workspace.id, found.id, give_up_s=RECONNECT_S)
            return await follow(followed, workspace.client, view, status, target, is_interactive=False)

    return run_cancellable(work, status)
