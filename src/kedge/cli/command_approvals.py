"""`kedge approvals`: what waits for an answer in a workspace, answering it, and what was allowed for longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar

import click
from msgspec import Struct

from kedge.cli.asks import approval_lines, question_lines, response_to
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import ago, print_json
from kedge.cli.terminal import folded, size
from kedge.cli.workspace_lookup import opened
from kedge.client.safe_text import visible_line
from kedge.core.approvals import Answer
from kedge.core.untrusted_text import visible
from kedge.errors import Conflict, NotFound
from kedge.wire.models import GrantBody, PermissionRequest, QuestionBatch, Resolved


class _Listing(click.Group):
    """Without a command it lists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_bare = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if is_bare else args)


class Waiting(Struct):
    approvals: list[PermissionRequest]
    questions: list[QuestionBatch]
    grants: list[GrantBody]
    #: Approvals are skipped in this workspace.
    skip: bool


_EXAMPLES = examples(
    "kedge approvals",
    "kedge approvals allow ask3f7k              # a unique beginning of the id will do",
    "kedge approvals allow ask3f7k --session    # and whatever the shown rule covers, in this session",
    'kedge approvals deny ask3f7k -m "Use the staging database"',
    "kedge approvals answer ask9cmw 2           # the second option; or any words",
)


@click.group(cls=_Listing, epilog=_EXAMPLES)
def approvals() -> None:
    """Show what waits for your answer in this workspace, and answer it.

    The first answer wins, from wherever it comes."""


@approvals.command("list", epilog=examples("kedge approvals", "kedge approvals --json | jq -r '.approvals[].id'"))
@json_option
@cwd_option
@host_option
def list_(as_json: bool, cwd: str, host: str | None) -> int:
    """List approvals and questions that wait, and standing grants."""

    async def read() -> Waiting:
        async with opened(host, cwd) as workspace:
            client, where = workspace.client, workspace.id
            return Waiting(
                approvals=await client.permissions(where),
                questions=await client.questions(where),
                grants=await client.grants(where),
                skip=await client.skip_permissions(where),
            )

    found = asyncio.run(read())
    if as_json:
        print_json(found)
        return 0
    if found.skip:
        click.echo("approvals are skipped in this workspace, until the client that asked for it leaves")
    if not found.approvals and not found.questions:
        click.echo("nothing waits for an answer")
    for asked in found.approvals:
        click.echo(f"{asked.id}  asked {ago(asked.asked_at)} ago, session {asked.session_id}")
        _echo(approval_lines(asked))
        if asked.grant:
            click.echo(f"    --session and --always stand for {visible(asked.grant, keep='')}")
    for batch in found.questions:
        click.echo(f"{batch.id}  asked {ago(batch.asked_at)} ago, session {batch.session_id}")
        for question in batch.questions:
            _echo(question_lines(question))
    for grant in found.grants:
        scope = f"in session {grant.session_id}" if grant.session_id else "always"
        click.echo(f"{grant.id}  allowed {scope}: {visible(grant.rule, keep='')}")
    return 0


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        for piece in folded(f"  {line}", size(1).columns):
            click.echo(piece)


@approvals.command(epilog=examples("kedge approvals allow ask3f7k", "kedge approvals allow ask3f7k --always"))
@click.argument("approval", metavar="ID")
@click.option("--session", "for_session", is_flag=True, help="Also what the shown rule covers, in this session.")
@click.option("--always", is_flag=True, help="Also what the shown rule covers, in this workspace, from now on.")
@json_option
@cwd_option
@host_option
def allow(approval: str, for_session: bool, always: bool, as_json: bool, cwd: str, host: str | None) -> int:
    """Allow what a run waits for."""
    if for_session and always:
        raise click.UsageError("--session and --always exclude each other")
    return _answer(
        approval, "allow_always" if always else "allow_session" if for_session else "allow", "", as_json, cwd, host
    )


@approvals.command(epilog=examples("kedge approvals deny ask3f7k", 'kedge approvals deny ask3f7k -m "Not on Fridays"'))
@click.argument("approval", metavar="ID")
@click.option("-m", "--message", default="", help="What the model is told.")
@json_option
@cwd_option
@host_option
def deny(approval: str, message: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Deny what a run waits for. The run goes on without it."""
    return _answer(approval, "deny", message, as_json, cwd, host)


def _answer(given: str, action: Answer, message: str, as_json: bool, cwd: str, host: str | None) -> int:
    async def act() -> tuple[PermissionRequest, Resolved]:
        async with opened(host, cwd) as workspace:
            client = workspace.client
            asked = _one_of(given, await client.permissions(workspace.id), "approval")
            return asked, await client.answer_permission(workspace.id, asked.id, action, message, asked.binding)

    asked, resolved = asyncio.run(act())
    return _told(asked.id, f"{_ANSWERED[action]} {visible_line(asked.description, 300)}".rstrip(), resolved, as_json)


_ANSWERED: dict[Answer, str] = {
    "allow": "allowed",
    "allow_session": "allowed for this session:",
    "allow_always": "always allowed:",
    "deny": "denied",
}


@approvals.command(
    epilog=examples(
        "kedge approvals answer ask9cmw 2",
        "kedge approvals answer ask9cmw the one with fewer dependencies",
        'kedge approvals answer ask9cmw 1 ""        # of two questions the first; an empty answer skips one',
    )
)
@click.argument("batch", metavar="ID")
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@json_option
@cwd_option
@host_option
def answer(batch: str, texts: tuple[str, ...], as_json: bool, cwd: str, host: str | None) -> int:
    """Answer a question of the model: by the number of an option, or in words. Several questions take a TEXT each."""

    async def act() -> tuple[str, Resolved]:
        async with opened(host, cwd) as workspace:
            client = workspace.client
            asked = _one_of(batch, await client.questions(workspace.id), "question")
            said = texts if len(asked.questions) > 1 else (" ".join(texts),)
            if len(said) != len(asked.questions):
                raise click.UsageError(f"{asked.id} has {len(asked.questions)} questions; give an answer to each")
            try:
                responses = [response_to(question, text) for question, text in zip(asked.questions, said, strict=True)]
            except ValueError as error:
                raise click.UsageError(str(error)) from None
            if any(text.strip() for text in said):
                return asked.id, await client.answer_questions(workspace.id, asked.id, responses)
            return asked.id, await client.cancel_questions(workspace.id, asked.id)

    ask_id, resolved = asyncio.run(act())
    return _told(ask_id, "answered", resolved, as_json)


@approvals.command(epilog=examples("kedge approvals forget g3f7k"))
@click.argument("grant", metavar="GRANT")
@cwd_option
@host_option
def forget(grant: str, cwd: str, host: str | None) -> int:
    """Take back what was allowed for a session or always: you are asked again."""

    async def act() -> GrantBody:
        async with opened(host, cwd) as workspace:
            found = _one_of(grant, await workspace.client.grants(workspace.id), "grant")
            await workspace.client.forget_grant(workspace.id, found.id)
            return found

    forgotten = asyncio.run(act())
    click.echo(f"no longer allowed without asking: {visible(forgotten.rule, keep='')}")
    return 0


T = TypeVar("T", PermissionRequest, QuestionBatch, GrantBody)

#: Of an abbreviated id, after the letters that all ids of its kind begin with. A few random ones say which one was
#: meant; fewer may fit what was asked since, and was never looked at. Characters.
ID_CHARS_MIN = 4
_PREFIXES = {"approval": "ask", "question": "ask", "grant": "g"}


def _one_of(given: str, found: Sequence[T], what: str) -> T:
    is_short = len(given) < len(_PREFIXES[what]) + ID_CHARS_MIN
    matching = [one for one in found if one.id == given or (one.id.startswith(given) and not is_short)]
    if not matching and is_short:
        raise NotFound(f"{given!r} is too short: write at least {ID_CHARS_MIN} characters after {_PREFIXES[what]!r}")
    exact = [one for one in matching if one.id == given]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        raise NotFound(f"{given!r} is the beginning of {len(matching)} ids: write more of it")
    raise NotFound(f"no {what} {given!r} here that waits: `kedge approvals` shows what there is")


def _told(ask_id: str, action: str, resolved: Resolved, as_json: bool) -> int:
    if as_json:
        print_json(resolved)
    elif not resolved.resolved:
        raise Conflict(f"{ask_id} was answered before: {resolved.answered}")
    else:
        click.echo(f"{ask_id}: {action}")
    return 0
