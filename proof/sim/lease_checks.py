"""Checks of the leases in a simulated cluster, at each change in the database.

They record independently which process holds the workspace and until when, and share no code with the leases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kedge.core.events import RunResumed
from kedge.store.base import Write
from kedge.store.leases import NodeInfo
from proof.sim.state import SimState

#: After the lease of a lost node has ended, its Runs have another one within this time: two looks for workspaces
#: without a holder, and a moment. Seconds.
TAKE_OVER_S = 3.0


class NodeView(Protocol):
    """A node, as the checks see it."""

    name: str

    @property
    def incarnation(self) -> str:
        """The process that runs, or is paused; empty: none."""
        ...

    @property
    def is_sure(self) -> bool:
        """Return whether its process believes that it has its leases."""
        ...

    @property
    def is_running(self) -> bool:
        """Return whether its process had time to act. False just after a pause."""
        ...

    @property
    def is_serving(self) -> bool:
        """Return whether its process has the workspace open."""
        ...

    @property
    def tools(self) -> list[str]:
        """The tool processes that are alive."""
        ...


@dataclass(slots=True)
class Row:
    """The row of a process in the database."""

    name: str
    #: By the clock of the database. Milliseconds.
    until: int


class LeaseChecks:
    def __init__(self, state: SimState, broken: list[str], lease_s: float) -> None:
        self._state = state
        self._broken = broken
        self._lease_ms = int(1000 * lease_s)
        self.nodes: Mapping[str, NodeView] = {}
        self._rows: dict[str, Row] = {}
        #: The process that claimed the workspace last, whether it holds it, its token; and since when none does.
        self.claimer, self._has_it, self._token, self._free_since = "", False, 0, 0
        #: The Runs that were resumed under this token.
        self._resumed: set[str] = set()
        self._written_at = 0
        #: Nodes with a fault that may delay what they do.
        self.disturbed: set[str] = set()

    def _report(self, problem: str) -> None:
        self._broken.append(f"at {self._now} ms {problem}")

    @property
    def _now(self) -> int:
        """The time of the database. Milliseconds."""
        return int(self._state.loop.time() * 1000)

    # --- nodes ---------------------------------------------------------------------------------------------------

    def registered(self, node: NodeInfo) -> None:
        """A process with the same data directory proves that the earlier one has ended."""
        for incarnation in [known for known, row in self._rows.items() if row.name == node.name]:
            self.left(incarnation)
        self._rows[node.incarnation] = Row(node.name, self._now + self._lease_ms)

    def renewed(self, incarnation: str) -> None:
        row = self._rows.get(incarnation)
        if row is None or row.until < self._now:
            self._report(f"{incarnation} renewed a lease that had ended")
            return
        row.until = self._now + self._lease_ms

    def left(self, incarnation: str) -> None:
        row = self._rows.pop(incarnation, None)
        if row is not None and incarnation == self.claimer and self._has_it:
            self._has_it, self._free_since = False, min(self._now, row.until)

    # --- the workspace -------------------------------------------------------------------------------------------

    def claimed(self, incarnation: str, token: int) -> None:
        row = self._rows.get(incarnation)
        if row is None or row.until < self._now:
            self._report(f"{incarnation} claimed the workspace without a lease of its own")
        if token <= self._token:
            self._report(f"{incarnation} claimed the workspace with token {token}, after {self._token}")
        if incarnation != self.claimer:
            self._check_is_free(incarnation)
        if self.claimer:
            self._state.counts["workspace taken over" if self._has_it else "workspace claimed again"] += 1
            self._check_in_time(incarnation)
        self.claimer, self._has_it, self._token, self._resumed = incarnation, True, token, set()

    def _check_is_free(self, incarnation: str) -> None:
        """Check that the last holder has released the workspace or knows that its lease ended, and has no tools."""
        row = self._rows.get(self.claimer)
        if self._has_it and row is not None and row.until > self._now:
            self._report(f"{incarnation} took the workspace from {self.claimer}, which is alive")
        for node in self.nodes.values():
            if node.incarnation == incarnation:
                continue
            if node.incarnation == self.claimer and self._has_it:
                if node.is_sure:
                    self._report(f"{incarnation} took the workspace, and {self.claimer} is sure of its lease")
                if node.is_running:
                    self._report(f"{incarnation} took the workspace, and {self.claimer} did not start again")
            if node.tools:
                self._report(f"{incarnation} took the workspace, and {', '.join(node.tools)} runs on {node.name}")

    def _check_in_time(self, incarnation: str) -> None:
        """Check that Runs of a lost node do not wait for a client."""
        row = self._rows.get(self.claimer)
        free_since = self._free_since if row is None or not self._has_it else row.until
        free_since = max(free_since, self._written_at)  # its process may write until the workspace is claimed
        lost = self.claimer.partition(".")[0]
        is_calm = self.disturbed <= {lost} and not self._state.store_failed
        if is_calm and self._state.data.live and self._now > free_since + 1000 * TAKE_OVER_S:
            late_ms = self._now - free_since
            self._report(f"{incarnation} took over live Runs {late_ms} ms after the lease of {self.claimer}")

    def released(self, incarnation: str) -> None:
        if incarnation == self.claimer and self._has_it:
            self._has_it, self._free_since = False, self._now
            node = self.nodes[self.claimer.partition(".")[0]]
            if node.incarnation == incarnation and node.is_serving:
                self._report(f"{incarnation} released the workspace, which is open there")

    def closed(self, incarnation: str) -> None:
        """Called when a process has no workspace open any more."""
        if incarnation == self.claimer and self._has_it:
            self._report(f"{incarnation} has closed the workspace, and keeps its lease")

    def written(self, incarnation: str, write: Write) -> None:
        """Check that the process that claimed the workspace last has written this, and recovers each Run once."""
        self._written_at = self._now
        if incarnation != self.claimer:
            self._report(f"{incarnation} wrote to the workspace, which {self.claimer} has claimed")
        resumed = Counter(event.run_id for _, event in write.events if isinstance(event, RunResumed))
        for run_id, count in resumed.items():
            if run_id in self._resumed or count > 1:
                self._report(f"{run_id} was recovered twice by {incarnation}")
            self._resumed.add(run_id)

    def tool_started(self, incarnation: str, command: str) -> None:
        row = self._rows.get(incarnation)
        if incarnation != self.claimer or row is None or row.until < self._now:
            self._report(f"{incarnation} started {command} without a lease; {self.claimer} claimed the workspace last")
