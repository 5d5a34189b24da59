"""Approvals and questions from the people's side: what is pending, answering it, and what was granted for longer."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.approvals import Answer, Ask, Grant
from kedge.core.records import SessionRecord
from kedge.engine.door import Door
from kedge.engine.lane_state import Draught
from kedge.engine.ports import Clock, Ids
from kedge.engine.workspaces import Workspace, Workspaces
from kedge.errors import AskIsOver, AskNotFound, Conflict, GrantNotFound, Invalid, RunNotActive
from kedge.store.base import Store


class Answered(Struct, frozen=True):
    """What stands. `first`: it was this answer that settled it."""

    ask: Ask
    first: bool


class Approvals:
    def __init__(self, store: Store, door: Door, workspaces: Workspaces, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._door = door
        self._workspaces = workspaces
        self._clock = clock
        self._ids = ids

    async def pending(self, workspace: Workspace) -> list[Ask]:
        return await self._store.asks(workspace.id)

    async def ask(self, workspace: Workspace, ask_id: str) -> Ask:
        if found := await self._store.ask(workspace.id, ask_id):
            return found
        raise AskNotFound(f"There is no approval or question {ask_id} in workspace {workspace.id}.")

    async def answer(
        self, workspace: Workspace, ask_id: str, answer: Answer, message: str = "", by: str = "", binding: str = ""
    ) -> Answered:
        """The first answer wins. AskIsOver when its Run was told to stop or has ended.

        `binding`: what the answer is for; Conflict if that is not what waits. Empty: it is not checked."""
        # What an Ask is about never changes under its id, so this needs no lock: only its state does.
        ask = await self.ask(workspace, ask_id)
        if binding and binding != ask.binding:
            raise Conflict(f"{ask_id} is not what was shown to you; look again: kedge approvals")
        if ask.kind != "approval":
            raise Invalid(f"{ask_id} is a question; it takes answers, not {answer}")
        grants: tuple[Grant, ...] = ()
        if answer in ("allow_session", "allow_always"):
            if not ask.grant:
                raise Invalid("this can be allowed once or denied; there is no rule that would stand for it")
            scope = ask.session_id if answer == "allow_session" else ""
            now = self._clock.now_ms()
            grants = (Grant(self._ids.new("g"), workspace.id, scope, ask.grant, now, by),)
        return await self._settle(workspace, ask, answer, message, by, grants)

    async def answer_question(self, workspace: Workspace, ask_id: str, answers: str | None, by: str = "") -> Answered:
        """`answers` is a JSON list of texts, one for each question; None: people would rather not."""
        ask = await self.ask(workspace, ask_id)
        if ask.kind != "question":
            raise Invalid(f"{ask_id} is an approval; it takes allow or deny, not answers")
        return await self._settle(workspace, ask, "cancelled" if answers is None else "answered", answers or "", by)

    async def _settle(
        self, workspace: Workspace, ask: Ask, answer: str, message: str, by: str, grants: tuple[Grant, ...] = ()
    ) -> Answered:
        settled = replace(
            ask, state="answered", answer=answer, message=message, answered_by=by, answered_at=self._clock.now_ms()
        )
        is_first = False
        with self._workspaces.in_use(workspace):
            lane = await self._workspaces.lane(workspace, ask.session_id)

            def put(draught: Draught, session: SessionRecord) -> SessionRecord:
                nonlocal is_first
                is_first = ask.id in lane.asks  # under the lock of the Lane: two at once come one after the other
                if is_first:
                    draught.put_ask(settled)
                    draught.grants = grants
                return session

            try:
                await self._door.put(lane, put, of_run=ask.run_id)
            except RunNotActive:
                raise AskIsOver(f"Run {ask.run_id} has ended; nothing is left to be answered.") from None
        stands = await self.ask(workspace, ask.id)
        if stands.state == "withdrawn":
            raise AskIsOver(f"Run {ask.run_id} was told to stop; nothing is left to be answered.")
        return Answered(stands, is_first)

    async def grants(self, workspace: Workspace) -> list[Grant]:
        return await self._store.grants(workspace.id)

    async def forget(self, workspace: Workspace, grant_id: str) -> None:
        """Take a standing answer back: people are asked again."""
        grant = next((grant for grant in await self.grants(workspace) if grant.id == grant_id), None)
        if grant is None:
            raise GrantNotFound(f"There is no grant {grant_id} in workspace {workspace.id}.")
        await self._door.forget_grant(workspace.id, grant_id)
