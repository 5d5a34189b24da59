"""Workspaces that are not served: damaged ones, and those whose Runs are not recovered yet."""

from __future__ import annotations

import logging

from kedge.core.records import WorkspaceRecord
from kedge.errors import RESTORE_BACKUP, DirectoryTimeout, KedgeError, Starting, StoreDamaged

log = logging.getLogger("kedge.engine")


class Unserved:
    def __init__(self) -> None:
        #: Workspace id -> the error message about its damage.
        self.damaged: dict[str, str] = {}
        #: Id of a workspace with live Runs of the last process -> why they are not recovered yet; None: not tried.
        self.unrecovered: dict[str, KedgeError | None] = {}

    def set_aside(self, record: WorkspaceRecord, error: KedgeError) -> None:
        """Refuse all access to a damaged workspace, to which nothing was written."""
        has_remedy = isinstance(error, StoreDamaged) and error.remedy
        remedy = "" if has_remedy else f"; {RESTORE_BACKUP}"
        text = f"workspace {record.id} ({record.path}) is damaged and was left unchanged: {error.message}{remedy}"
        self.damaged[record.id] = text
        self.unrecovered.pop(record.id, None)
        log.error("%s; other workspaces are available", text)

    def refuse_damaged(self, workspace_id: str) -> None:
        if text := self.damaged.get(workspace_id):
            raise StoreDamaged(text)

    def refuse_unrecovered(self, workspace_id: str) -> None:
        """Raise Starting: no prompt may enter a session whose Lane is not recovered."""
        if workspace_id not in self.unrecovered:
            return
        match self.unrecovered[workspace_id]:
            case DirectoryTimeout(message=message):
                raise DirectoryTimeout(message)
            case KedgeError(message=message):
                why = f" ({message})"
            case _:
                why = ""
        raise Starting(f"The runs of workspace {workspace_id} are not recovered yet{why}; try again in a moment.")
