"""`kedge sessions`: the sessions of a workspace. They are in the server's store, so a server is started if needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, get_args

import click

from kedge.cli.foreground import RECONNECT_S, CancelTarget, follow, run_cancellable
from kedge.cli.options import F, cwd_option, effort_option, examples, host_option, json_option, verbosity_options
from kedge.cli.printing import ago, print_json, print_table
from kedge.cli.run_output import RunPrinter
from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.cli.transcript_lines import transcript_lines
from kedge.cli.workspace_lookup import find_session, opened
from kedge.client.complete_file import complete_file
from kedge.client.followed_run import FollowedSummary
from kedge.client.safe_text import harmless, one_line
from kedge.core.modes import MODES, Mode
from kedge.core.records import OFFLINE, Effort
from kedge.core.untrusted_text import visible
from kedge.wire.brief import FILE_MARKS, prompt_text
from kedge.wire.models import ChangedFiles, MessageBody, SearchHitBody, SessionBody
from kedge.wire.reversal_models import RewindReply, RewindScope, UndoReply

ExportFormat = Literal["md", "json", "html"]


def _session_argument(command: F) -> F:
    return click.argument("prefix", metavar="SESSION")(command)


@click.group()
def sessions() -> None:
    """List, show, undo, rewind, export, search and change sessions.

    SESSION is an id or a unique prefix of one."""


@sessions.command("list", epilog=examples("kedge sessions list", "kedge sessions list --json | jq -r '.[0].id'"))
@json_option
@cwd_option
@host_option
def list_(as_json: bool, cwd: str, host: str | None) -> int:
    """List the sessions, most recently used first."""

    async def read() -> list[SessionBody]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.sessions(workspace.id)

    listed = sorted(asyncio.run(read()), key=lambda session: session.updated_at, reverse=True)
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo("no sessions yet; start one with: kedge run")
    else:
        rows = [
            (
                session.id,
                ago(session.updated_at),
                str(session.message_count),
                "busy" if session.is_busy else "",
                session.mode,
                one_line(session.title, 80) or "(no title)",
            )
            for session in listed
        ]
        print_table(("SESSION", "AGE", "MESSAGES", "STATE", "MODE", "TITLE"), rows)
    return 0


@sessions.command(epilog=examples("kedge sessions show 3f2a", "kedge sessions show 3f2a --json"))
@_session_argument
@json_option
@cwd_option
@host_option
def show(prefix: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Print a session's transcript."""

    async def read() -> tuple[SessionBody, list[MessageBody]]:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            return session, [message async for message in workspace.client.all_messages(workspace.id, session.id)]

    session, messages = asyncio.run(read())
    if as_json:
        print_json({"session": session, "messages": messages})
        return 0
    click.echo(f"{one_line(session.title) or '(no title)'} [{session.id}]")
    for line in transcript_lines(messages):
        click.echo(harmless(line) if os.isatty(1) else line)
    return 0


@sessions.command(epilog=examples('kedge sessions rename 3f2a "The parser bug"'))
@_session_argument
@click.argument("title")
@json_option
@cwd_option
@host_option
def rename(prefix: str, title: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Change a session's title."""

    async def act() -> SessionBody:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            return await workspace.client.rename_session(workspace.id, session.id, title)

    renamed = asyncio.run(act())
    if as_json:
        print_json(renamed)
    else:
        click.echo(f"renamed session {renamed.id} to {one_line(renamed.title)!r}")
    return 0


@sessions.command(epilog=examples("kedge sessions delete 3f2a", "kedge sessions delete --yes 3f2a   # without asking"))
@_session_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@cwd_option
@host_option
def delete(prefix: str, yes: bool, as_json: bool, cwd: str, host: str | None) -> int:
    """Delete a session and its transcript. Its runs are cancelled first."""

    async def find() -> SessionBody:
        async with opened(host, cwd) as workspace:
            return await find_session(workspace, prefix)

    async def act(session_id: str) -> None:
        async with opened(host, cwd) as workspace:
            await workspace.client.delete_session(workspace.id, session_id)

    session = asyncio.run(find())
    if not yes:
        if not os.isatty(0):
            raise click.UsageError("There is no terminal to confirm on. Use --yes")
        question = f"Delete session {session.id} ({one_line(session.title, 60) or 'no title'})?"
        click.confirm(question, abort=True, err=True)
    asyncio.run(act(session.id))
    if as_json:
        print_json({"deleted": session.id})
    else:
        click.echo(f"deleted session {session.id}")
    return 0


@sessions.command(
    epilog=examples("kedge sessions export 3f2a > talk.md", "kedge sessions export 3f2a --format html -o talk.html")
)
@_session_argument
@click.option(
    "--format",
    "export_format",
    type=click.Choice(get_args(ExportFormat)),
    default="md",
    show_default=True,
    help="Format of the document.",
)
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file. Default: standard output.",
)
@cwd_option
@host_option
def export(prefix: str, export_format: ExportFormat, file: Path | None, cwd: str, host: str | None) -> int:
    """Export a session as a document."""

    async def copy() -> None:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            pieces = workspace.client.export_pieces(workspace.id, session.id, export_format)
            if file is not None:
                with complete_file(file) as target:
                    async for piece in pieces:
                        target.write(piece)
            elif os.isatty(1):
                await _show(pieces)
            else:
                async for piece in pieces:
                    click.echo(piece, nl=False)

    asyncio.run(copy())
    return 0


async def _show(pieces: AsyncIterator[bytes]) -> None:
    """Print a document line by line, without terminal controls."""
    rest = b""
    async for piece in pieces:
        lines, line_feed, rest = (rest + piece).rpartition(b"\n")
        click.echo(harmless((lines + line_feed).decode("utf-8", "replace")), nl=False)
    click.echo(harmless(rest.decode("utf-8", "replace")))


@sessions.command(epilog=examples('kedge sessions search "race condition"', "kedge sessions search --json parser"))
@click.argument("query", nargs=-1, required=True)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Maximum number of results.",
)
@json_option
@cwd_option
@host_option
def search(query: tuple[str, ...], limit: int, as_json: bool, cwd: str, host: str | None) -> int:
    """Search the messages of all sessions."""

    async def read() -> list[SearchHitBody]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.search(workspace.id, " ".join(query), limit)

    hits = asyncio.run(read())
    if as_json:
        print_json(hits)
    elif not hits:
        click.echo("no matches")
    else:
        for hit in hits:
            click.echo(f"{hit.session_id}  {one_line(hit.session_title, 60) or '(no title)'}")
            click.echo(f"    {one_line(hit.snippet, 200)}")
    return 0


@sessions.command(epilog=examples("kedge sessions files 3f2a"))
@_session_argument
@json_option
@cwd_option
@host_option
def files(prefix: str, as_json: bool, cwd: str, host: str | None) -> int:
    """List the files that the runs of a session changed: + created, ~ updated, - deleted.

    Changes by commands are not tracked, and changes that were undone are not listed."""

    async def act() -> ChangedFiles:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            return await workspace.client.changed_files(workspace.id, session.id)

    changed = asyncio.run(act())
    if as_json:
        print_json(changed)
        return 0
    for file in changed.files:
        click.echo(f"{FILE_MARKS[file.change]} {visible(file.path, keep='')}")
    if changed.count > len(changed.files):
        click.echo(f"  and {changed.count - len(changed.files)} more")
    return 0


@sessions.command(epilog=examples("kedge sessions undo 3f2a", "kedge sessions undo 3f2a RUN --json"))
@_session_argument
@click.argument("run_id", metavar="[RUN]", required=False)
@json_option
@cwd_option
@host_option
def undo(prefix: str, run_id: str | None, as_json: bool, cwd: str, host: str | None) -> int:
    """Revert the file changes of a run.

    Without RUN, this is the last run that changed files. Edits are reverted; the effects of commands are not. If one of
    the files has changed since, nothing is reverted."""

    async def act() -> UndoReply:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            return await workspace.client.undo(workspace.id, session.id, run_id)

    undone = asyncio.run(act())
    if as_json:
        print_json(undone)
    else:
        click.echo(f"reverted the changes of run {undone.run_id}")
        _print_files(undone.files)
    return 0


def _print_files(files: list[str]) -> None:
    for file in files:
        click.echo(f"  {visible(file, keep='')}")


@sessions.command(epilog=examples("kedge sessions redo 3f2a", "kedge sessions redo 3f2a --json"))
@_session_argument
@json_option
@cwd_option
@host_option
def redo(prefix: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Take back the last undo or rewind of files.

    If one of the files has changed since, nothing is restored."""

    async def act() -> UndoReply:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            return await workspace.client.redo(workspace.id, session.id)

    redone = asyncio.run(act())
    if as_json:
        print_json(redone)
    else:
        click.echo(f"restored the changes of {f'run {redone.run_id}' if redone.run_id else 'several runs'}")
        _print_files(redone.files)
    return 0


@sessions.command(epilog=examples("kedge sessions rewind 3f2a", "kedge sessions rewind 3f2a m17 --both"))
@_session_argument
@click.argument("message_id", metavar="[MESSAGE]", required=False)
@click.option("--conversation", "scope", flag_value="conversation", help="Rewind the conversation; keep the files.")
@click.option("--files", "scope", flag_value="files", help="Restore the files; keep the conversation.")
@click.option("--both", "scope", flag_value="both", help="Rewind the conversation and restore the files.")
@json_option
@cwd_option
@host_option
def rewind(
    prefix: str, message_id: str | None, scope: RewindScope | None, as_json: bool, cwd: str, host: str | None
) -> int:
    """Return to the state before a prompt. Without MESSAGE, list the prompts.

    The conversation as it was stays in another session, whose id is printed. Files that others changed since are kept
    and listed; the effects of commands are not reverted. The prompt is printed, so that it can be sent again."""
    if message_id is None:
        return _list_prompts(prefix, cwd, host, as_json=as_json)
    if scope is None:
        raise click.UsageError("Choose what to rewind: --conversation, --files or --both.")

    async def act() -> RewindReply:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            return await workspace.client.rewind(workspace.id, session.id, message_id, scope)

    rewound = asyncio.run(act())
    if as_json:
        print_json(rewound)
        return 0
    if rewound.fork_session_id:
        click.echo(f"the conversation as it was is in session {rewound.fork_session_id}")
    for label, files in (("restored", rewound.restored), ("kept, with later changes", rewound.spared)):
        if files:
            click.echo(f"{label}:")
            _print_files(files)
    click.echo("the prompt was:")
    click.echo(harmless(rewound.prompt))
    return 0


def _list_prompts(prefix: str, cwd: str, host: str | None, *, as_json: bool) -> int:
    async def read() -> list[MessageBody]:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            messages = workspace.client.all_messages(workspace.id, session.id)
            return [message async for message in messages if prompt_text(message) is not None]

    prompts = asyncio.run(read())
    if as_json:
        print_json(prompts)
    elif not prompts:
        click.echo("no prompts")
    else:
        for message in prompts:
            click.echo(f"{message.id}  {one_line(prompt_text(message) or '', 100) or '(attachment)'}")
    return 0


@sessions.command(
    epilog=examples("kedge sessions model 3f2a", "kedge sessions model 3f2a local/fake-large --effort high")
)
@_session_argument
@click.argument("name", metavar="[PROVIDER/MODEL]", required=False)
@effort_option
@json_option
@cwd_option
@host_option
def model(prefix: str, name: str | None, effort: Effort | None, as_json: bool, cwd: str, host: str | None) -> int:
    """Print or change the model of a session, and its effort. An empty name selects the configured model."""

    async def act() -> tuple[SessionBody, str]:
        async with opened(host, cwd) as workspace:
            client, session = workspace.client, await find_session(workspace, prefix)
            if name is not None or effort is not None:
                session = await client.change_session(workspace.id, session.id, model=name, effort=effort)
            return session, (await client.config(workspace.id))["model"] or OFFLINE

    session, configured = asyncio.run(act())
    if as_json:
        print_json(session)
    else:
        named = one_line(session.model) if session.model else f"{one_line(configured)} (configured)"
        click.echo(f"{named}, effort {session.effort}" if session.effort else named)
    return 0


@sessions.command(epilog=examples("kedge sessions mode 3f2a", "kedge sessions mode 3f2a edits"))
@_session_argument
@click.argument("name", metavar="[MODE]", type=click.Choice(MODES), required=False)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation of yolo.")
@json_option
@cwd_option
@host_option
def mode(prefix: str, name: Mode | None, yes: bool, as_json: bool, cwd: str, host: str | None) -> int:
    """Print or switch the mode of a session: what its agent may do without asking. The next tool call obeys.

    plan: nothing is changed. ask: changes and commands ask. edits: changes of files pass. auto: commands pass as well,
    in a sandbox. yolo: nothing asks. Deny rules hold in every mode."""
    if name == "yolo" and not yes:
        if not os.isatty(0):
            raise click.UsageError("There is no terminal to confirm on. Use --yes")
        click.confirm("Let the agent of this session do everything without asking?", abort=True, err=True)

    async def act() -> SessionBody:
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            if name is None:
                return session
            return await workspace.client.change_session(workspace.id, session.id, mode=name)

    session = asyncio.run(act())
    if as_json:
        print_json(session)
    else:
        click.echo(session.mode)
    return 0


@sessions.command(epilog=examples("kedge sessions summarize 3f2a"))
@_session_argument
@verbosity_options
@cwd_option
@host_option
def summarize(prefix: str, quiet: bool, verbose: bool, cwd: str, host: str | None) -> int:
    """Summarize a session. The model continues from the summary; the transcript is kept.

    This is a run: Ctrl-C cancels it, and the exit codes are those of `kedge run`."""
    output = StdoutWriter()
    status = StatusLine(output, quiet=quiet, verbose=verbose)
    printer = RunPrinter(output, status, "text")

    async def work(target: CancelTarget) -> int:
        status.set("connecting")
        async with opened(host, cwd) as workspace:
            session = await find_session(workspace, prefix)
            followed = FollowedSummary(workspace.client, workspace.id, session.id, give_up_s=RECONNECT_S)
            return await follow(followed, workspace.client, printer, status, target, on_approval="fail")

    return run_cancellable(work, status)
