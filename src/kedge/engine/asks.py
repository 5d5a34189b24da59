"""Approvals and questions on the user's side: pending Asks, answers, and grants."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.approvals import Answer, Ask, Grant
from kedge.core.offers import checked_grants
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import AskNotFound, AskWithdrawn, Conflict, GrantNotFound, Invalid, RunNotActive


class Answered(Struct, frozen=True):
    """The Ask as it stands. `first`: this answer settled it."""

    ask: Ask
    first: bool


class Asks:
    def __init__(self, door: Door, workspaces: Workspaces, reconsider: Callable[[str], None]) -> None:
        """`reconsider`: see `RunExecutor`."""
        self._door = door
        self._workspaces = workspaces
        self._reconsider = reconsider

    async def pending(self, workspace: Workspace) -> list[Ask]:
        return await self._door.store.asks(workspace.id)

    async def ask(self, workspace: Workspace, ask_id: str) -> Ask:
        if ask := await self._door.store.ask(workspace.id, ask_id):
            return ask
        raise AskNotFound(f"Approval or question {ask_id} not found in workspace {workspace.id}.")

    async def answer(
        self,
        workspace: Workspace,
        ask_id: str,
        answer: Answer,
        message: str = "",
        by: str = "",
        binding: str = "",
        rules: tuple[str, ...] = (),
        author: str = "",
    ) -> Answered:
        """Answer an approval. The first answer wins; AskWithdrawn once its Run is stopping or has ended.

        `by`: the client. `author`: its user.
        `binding` identifies what the user saw: Conflict if the Ask is for something else. Empty: not checked.
        `rules`: to grant instead of those of the first offer. Invalid unless they cover this call."""
        # The content of an Ask never changes under its id, so this needs no lock.
        ask = await self.ask(workspace, ask_id)
        if binding and binding != ask.binding:
            raise Conflict(f"{ask_id} differs from what was shown to you. List it again with: kedge approvals")
        if ask.kind != "approval":
            raise Invalid(f"{ask_id} is a question. Send answers, not {answer}.")
        grants: tuple[Grant, ...] = ()
        if answer in ("allow_session", "allow_always"):
            granted = _granted(ask, rules)
            scope = ask.session_id if answer == "allow_session" else ""
            granted_at = self._door.clock.now_ms()
            grants = tuple(
                Grant(self._door.ids.new("g"), workspace.id, scope, rule, granted_at, by, author) for rule in granted
            )
        elif rules:
            raise Invalid("Rules are stored only for this session, or always: choose one of these answers.")
        return await self._settle(workspace, ask, answer, message, by, author, grants)

    async def answer_question(
        self, workspace: Workspace, ask_id: str, answers: str | None, by: str = "", author: str = ""
    ) -> Answered:
        """Answer a question. `answers` is a JSON list with one text per question; None declines to answer."""
        ask = await self.ask(workspace, ask_id)
        if ask.kind != "question":
            raise Invalid(f"{ask_id} is an approval. Send allow or deny, not answers.")
        answer = "cancelled" if answers is None else "answered"
        return await self._settle(workspace, ask, answer, answers or "", by, author)

    async def _settle(
        self,
        workspace: Workspace,
        ask: Ask,
        answer: str,
        message: str,
        by: str,
        author: str,
        grants: tuple[Grant, ...] = (),
    ) -> Answered:
        async def plan(tx: Append) -> None:
            tx.require_active(ask.run_id)
            if tx.is_pending(ask.id):  # under the lock: of two answers at once, one is first
                answered = replace(ask, state="answered", answer=answer, message=message, answered_by=by)
                tx.put_ask(replace(answered, answered_at=tx.now, author=author))
                tx.grants = grants
                rules = ", ".join(grant.rule for grant in grants)
                tx.record("answer", author, ask.run_id, f"{answer}: {rules}" if rules else answer)

        with self._workspaces.in_use(workspace):
            state = await self._workspaces.lane(workspace, ask.session_id)
            try:
                tx = await self._door.write(state, plan)
            except RunNotActive:
                raise AskWithdrawn(f"Run {ask.run_id} has ended; there is nothing left to answer.") from None
            finally:
                if grants:  # also after a failure: they may have been stored
                    self._reconsider(workspace.id)
        current = await self.ask(workspace, ask.id)
        if current.state == "withdrawn":
            raise AskWithdrawn(f"Run {ask.run_id} is being cancelled; there is nothing left to answer.")
        return Answered(current, first=ask.id in tx.asks)

    async def grants(self, workspace: Workspace) -> list[Grant]:
        return await self._door.store.grants(workspace.id)

    async def revoke(self, workspace: Workspace, grant_id: str) -> None:
        """Revoke a grant: the user is asked again."""
        if all(grant.id != grant_id for grant in await self.grants(workspace)):
            raise GrantNotFound(f"Grant {grant_id} not found in workspace {workspace.id}.")
        await self._door.revoke_grant(workspace.id, grant_id)


def _granted(ask: Ask, rules: tuple[str, ...]) -> tuple[str, ...]:
    """Return the rules that an answer grants."""
    if rules and ask.offers:
        return checked_grants(ask.parts, rules)
    if rules and rules != (ask.grant,):
        raise Invalid(f"Only the offered rule can be granted for this call: {ask.grant or 'none'}.")
    if not ask.grant:
        raise Invalid("No rule matches exactly this call. Allow it once, or deny it.")
    return ask.offers[0] if ask.offers else (ask.grant,)
