"""`kedge approvals`: pending approvals and questions of a workspace, answers to them, and standing grants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar

import click
from msgspec import Struct

from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import ago, print_json
from kedge.cli.terminal import folded, size
from kedge.cli.workspace_lookup import by_prefix, opened
from kedge.client.safe_text import visible_line
from kedge.client.view.ask_text import approval_lines, question_lines, response_to
from kedge.client.view.author_text import by_author
from kedge.core.approvals import Answer
from kedge.core.untrusted_text import visible
from kedge.errors import Conflict
from kedge.wire.models import GrantBody, PermissionRequest, QuestionBatch, Resolved


class Listing(click.Group):
    """A group that runs `list` without a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_bare = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if is_bare else args)


class ApprovalsReport(Struct):
    approvals: list[PermissionRequest]
    questions: list[QuestionBatch]
    grants: list[GrantBody]


_EXAMPLES = examples(
    "kedge approvals",
    "kedge approvals allow ask3f7k              # a unique prefix of the id is enough",
    "kedge approvals allow ask3f7k --session    # and all calls that the shown rule covers, in this session",
    "kedge approvals allow ask3f7k --always --rule 'bash(npm test *)'",
    'kedge approvals deny ask3f7k -m "Use the staging database"',
    "kedge approvals answer ask9cmw 2           # the second option; or any text",
)


@click.group(cls=Listing, epilog=_EXAMPLES)
def approvals() -> None:
    """List and answer pending approvals and questions.

    The first answer from any client wins."""


@approvals.command("list", epilog=examples("kedge approvals", "kedge approvals --json | jq -r '.approvals[].id'"))
@json_option
@cwd_option
@host_option
def list_(as_json: bool, cwd: str, host: str | None) -> int:
    """List pending approvals and questions, and standing grants."""

    async def read() -> ApprovalsReport:
        async with opened(host, cwd) as workspace:
            client = workspace.client
            return ApprovalsReport(
                approvals=await client.permissions(workspace.id),
                questions=await client.questions(workspace.id),
                grants=await client.grants(workspace.id),
            )

    pending = asyncio.run(read())
    if as_json:
        print_json(pending)
        return 0
    if not pending.approvals and not pending.questions:
        click.echo("no pending approvals")
    for request in pending.approvals:
        click.echo(f"{request.id}  requested {ago(request.asked_at)} ago, session {request.session_id}")
        _echo(approval_lines(request))
        if request.grant:
            click.echo(f"    rule of --session and --always: {visible(request.grant, keep='')}")
        for offer in request.offers[1:] if request.grant else request.offers:
            rules = " ".join(f"--rule '{visible(rule, keep='')}'" for rule in offer)
            click.echo(f"    or, wider: {rules}")
    for batch in pending.questions:
        click.echo(f"{batch.id}  requested {ago(batch.asked_at)} ago, session {batch.session_id}")
        for question in batch.questions:
            _echo(question_lines(question))
    _echo_grants(pending.grants)
    return 0


def _echo_grants(grants: Iterable[GrantBody]) -> None:
    for grant in grants:
        scope = f"in session {grant.session_id}" if grant.session_id else "always"
        click.echo(f"{grant.id}  allowed {scope}{by_author(grant.author)}: {visible(grant.rule, keep='')}")


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        for piece in folded(f"  {line}", size(1).columns):
            click.echo(piece)


@approvals.command(epilog=examples("kedge approvals allow ask3f7k", "kedge approvals allow ask3f7k --always"))
@click.argument("approval", metavar="ID")
@click.option(
    "--session", "for_session", is_flag=True, help="Also allow all calls that the shown rule covers, in this session."
)
@click.option("--always", is_flag=True, help="Also allow all calls that the shown rule covers, in this workspace.")
@click.option(
    "--rule",
    "rules",
    metavar="RULE",
    multiple=True,
    help="Store this rule instead of the shown one. It must cover the call. Repeatable, for the commands of a line.",
)
@json_option
@cwd_option
@host_option
def allow(
    approval: str,
    for_session: bool,
    always: bool,
    rules: tuple[str, ...],
    as_json: bool,
    cwd: str,
    host: str | None,
) -> int:
    """Allow a tool call that waits for an approval."""
    if for_session and always:
        raise click.UsageError("--session and --always are mutually exclusive")
    if rules and not (for_session or always):
        raise click.UsageError("--rule needs --session or --always")
    action: Answer = "allow_always" if always else "allow_session" if for_session else "allow"
    return _answer(approval, action, "", as_json, cwd, host, rules)


@approvals.command(epilog=examples("kedge approvals deny ask3f7k", 'kedge approvals deny ask3f7k -m "Not on Fridays"'))
@click.argument("approval", metavar="ID")
@click.option("-m", "--message", default="", help="Reason for the model.")
@json_option
@cwd_option
@host_option
def deny(approval: str, message: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Deny a tool call that waits for an approval. The run continues without it."""
    return _answer(approval, "deny", message, as_json, cwd, host)


def _answer(
    prefix: str,
    action: Answer,
    message: str,
    as_json: bool,
    cwd: str,
    host: str | None,
    rules: tuple[str, ...] = (),
) -> int:
    async def act() -> tuple[PermissionRequest, Resolved]:
        async with opened(host, cwd) as workspace:
            client = workspace.client
            request = _find(prefix, await client.permissions(workspace.id), "approval")
            answer = client.answer_permission(workspace.id, request.id, action, message, request.binding, rules)
            return request, await answer

    request, resolved = asyncio.run(act())
    answer = f"{_ANSWERED[action]} {visible_line(request.description, 300)}".rstrip()
    return _print_answer(request.id, answer, resolved, as_json)


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
        'kedge approvals answer ask9cmw 1 ""        # answers the first of two questions, skips the second',
    )
)
@click.argument("batch", metavar="ID")
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@json_option
@cwd_option
@host_option
def answer(batch: str, texts: tuple[str, ...], as_json: bool, cwd: str, host: str | None) -> int:
    """Answer a question of the model.

    TEXT is the number of an option, or any text. Several questions take one TEXT each."""

    async def act() -> tuple[str, Resolved]:
        async with opened(host, cwd) as workspace:
            client = workspace.client
            asked = _find(batch, await client.questions(workspace.id), "question")
            answers = texts if len(asked.questions) > 1 else (" ".join(texts),)
            if len(answers) != len(asked.questions):
                raise click.UsageError(f"{asked.id} has {len(asked.questions)} questions. Give one answer to each")
            try:
                responses = [response_to(*pair) for pair in zip(asked.questions, answers, strict=True)]
            except ValueError as error:
                raise click.UsageError(str(error)) from None
            if any(answer.strip() for answer in answers):
                return asked.id, await client.answer_questions(workspace.id, asked.id, responses)
            return asked.id, await client.cancel_questions(workspace.id, asked.id)

    ask_id, resolved = asyncio.run(act())
    return _print_answer(ask_id, "answered", resolved, as_json)


@approvals.command(epilog=examples("kedge approvals grants", "kedge approvals grants --json | jq -r '.[].rule'"))
@json_option
@cwd_option
@host_option
def grants(as_json: bool, cwd: str, host: str | None) -> int:
    """List standing grants: the rules of earlier answers."""

    async def read() -> list[GrantBody]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.grants(workspace.id)

    standing = asyncio.run(read())
    if as_json:
        print_json(standing)
    elif not standing:
        click.echo("no grants")
    else:
        _echo_grants(standing)
    return 0


@approvals.command(epilog=examples("kedge approvals revoke g3f7k"))
@click.argument("grant", metavar="GRANT")
@cwd_option
@host_option
def revoke(grant: str, cwd: str, host: str | None) -> int:
    """Revoke a standing grant."""

    async def act() -> GrantBody:
        async with opened(host, cwd) as workspace:
            match = _find(grant, await workspace.client.grants(workspace.id), "grant")
            await workspace.client.forget_grant(workspace.id, match.id)
            return match

    revoked = asyncio.run(act())
    click.echo(f"revoked: {visible(revoked.rule, keep='')}")
    return 0


T = TypeVar("T", PermissionRequest, QuestionBatch, GrantBody)

#: Shortest abbreviation of an id, after the letters that all ids of its kind begin with. A shorter one could also match
#: a request that arrived later and that the user has not seen. Characters.
ID_CHARS_MIN = 4
_ID_PREFIXES = {"approval": "ask", "question": "ask", "grant": "g"}


def _find(prefix: str, items: Sequence[T], kind: str) -> T:
    if len(prefix) < len(_ID_PREFIXES[kind]) + ID_CHARS_MIN:
        short = f"{prefix!r} is too short. Give at least {ID_CHARS_MIN} characters after {_ID_PREFIXES[kind]!r}."
        return by_prefix(prefix, [item for item in items if item.id == prefix], short)
    return by_prefix(prefix, items, f"No {kind} {prefix!r} in this workspace. List them with: kedge approvals")


def _print_answer(ask_id: str, answer: str, resolved: Resolved, as_json: bool) -> int:
    if as_json:
        print_json(resolved)
    elif not resolved.resolved:
        raise Conflict(f"{ask_id} was already answered: {resolved.answered}")
    else:
        click.echo(f"{ask_id}: {answer}")
    return 0
