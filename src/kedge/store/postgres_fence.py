"""The writes that one store object may make, when several processes use one PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable

from kedge.errors import VersionConflict
from kedge.store.base import Write
from kedge.store.leases import lease_lost


class Fence:
    """The incarnation of a store, the workspaces that it claimed, and the copies that it has begun."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        #: Called when a workspace that this store holds is served by another node.
        self.on_lost: Callable[[str], None] = lambda reason: None
        #: The last token of each workspace that the store has claimed. Kept when the workspace is released: a late
        #: Write must not follow those of another node.
        self.tokens: dict[str, int] = {}
        #: The workspaces that it has not released.
        self.held: set[str] = set()
        #: Pairs of workspace_id and the id of the new session.
        self.copies: set[tuple[str, str]] = set()

    def may_write(self, workspace_id: str, holder: str, token: int) -> bool:
        """Return False if another node serves the workspace, or has served it since this store claimed it."""
        return holder in ("", self.incarnation) and self.tokens.get(workspace_id, token) == token

    def check(self, workspace_id: str, holder: str, token: int) -> None:
        if not self.may_write(workspace_id, holder, token):
            error = lease_lost(workspace_id)
            if workspace_id in self.held:
                self.on_lost(error.message)
            raise error

    def check_copies(self, write: Write, shown: set[str]) -> None:
        """Refuse to complete a copy that another process gave up because this one had lost its connections."""
        for session in write.sessions:
            if (write.workspace_id, session.id) in self.copies and session.id not in shown:
                raise copy_given_up(session.id)

    def written(self, write: Write) -> None:
        """Note the copies that a committed Write has completed or given up."""
        if self.copies:
            done = {session.id for session in write.sessions} | set(write.deleted_sessions)
            self.copies -= {(write.workspace_id, session_id) for session_id in done}


def copy_given_up(session_id: str) -> VersionConflict:
    return VersionConflict(f"the copy to session {session_id} was given up after a lost connection; begin it again")
