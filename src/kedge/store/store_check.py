"""A check of everything in a store: the hash chains of its logs, its records, and the contents of its attachments."""

from __future__ import annotations

from msgspec import Struct

from kedge.errors import StoreDamaged, WorkspaceNotFound
from kedge.store.transfer import TABLES, Report, StoreRows, TransferProgress, check_row, slices


class Damage(Struct):
    """The damage of one workspace. Without `workspace_id`: a part of the database that cannot be read."""

    workspace_id: str
    path: str
    #: The first damage; the number of all that were found.
    message: str
    count: int = 1


class CheckReport(Struct, frozen=True):
    store: str
    workspaces: int
    #: Entries of logs whose hashes match.
    entries: int
    #: Rows of each table that were checked.
    rows: dict[str, int]
    damage: list[Damage]


async def check_store(store: StoreRows, report: Report) -> CheckReport:
    """Check one slice at a time, without changes. Servers may change the store of a database meanwhile."""
    check = _Check(store, report)
    await check.logs()
    for table in TABLES:
        if table not in ("workspaces", "log"):
            await check.table(table)
    return CheckReport(store.name, len(check.paths), check.entries, check.rows, list(check.damage.values()))


class _Check:
    def __init__(self, store: StoreRows, report: Report) -> None:
        self._store, self._report = store, report
        self.paths: dict[str, str] = {}
        self.entries = 0
        self.rows: dict[str, int] = {}
        self.damage: dict[str, Damage] = {}

    async def logs(self) -> None:
        for workspace in await self._store.store.workspaces():
            self.paths[workspace.id] = workspace.path
            try:
                self.entries += await self._store.store.verify(workspace.id)
            except StoreDamaged as error:
                self._add(workspace.id, error)
            except WorkspaceNotFound:
                del self.paths[workspace.id]  # removed meanwhile
            self._report(TransferProgress("check", "log", self.entries, 0))

    async def table(self, table: str) -> None:
        self.rows[table] = 0
        try:
            async for rows in slices(self._store, table):
                for row in rows:
                    try:
                        check_row(table, row)
                    except StoreDamaged as error:
                        self._add(row[0] if TABLES[table][0] == "workspace_id" else "", error)
                self.rows[table] += len(rows)
                self._report(TransferProgress("check", table, self.entries + sum(self.rows.values()), 0))
        except StoreDamaged as error:
            self._add("", error)  # the rest of the table cannot be read

    def _add(self, workspace_id: str, error: StoreDamaged) -> None:
        if workspace_id in self.damage:
            self.damage[workspace_id].count += 1
        else:
            self.damage[workspace_id] = Damage(workspace_id, self.paths.get(workspace_id, ""), error.damage)
