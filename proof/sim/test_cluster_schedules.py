"""Simulations of several real engines on one store, with leases and forwarding, in simulated time (G13).

Nodes are killed, paused and cut off; each has clocks of its own. All promises of a single server hold for clients that
change the node with each request. In addition each append is by the process that claimed the workspace last, no tool
runs where another node may take over, and no Step is started twice.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from msgspec.structs import replace

from kedge.errors import NodeUnreachable
from proof.figures import proof, size, slices
from proof.sim.cluster_plan import draw
from proof.sim.subprocess_run import run_seeds
from proof.sim.world import World, simulate_all

#: A large run continues after the seeds of the last one.
SCHEDULES = "simulated schedules of several nodes on one store"
#: All kinds of faults: each occurs in any thousand simulations.
FAULT_KINDS = {
    "crash",
    "orderly restart",
    "connection cut",
    "client that leaves",
    "link between nodes down",
    "node paused",
    "node gave up its leases",
    "store answer lost",
    "store answers late",
    "store out of reach of one node",
    "workspace claimed again",
    "workspace taken over",
    "write without a lease refused",
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", slices(5_000, 50_000, 1_000, SCHEDULES), ids=str)
def test_every_schedule_of_several_nodes_keeps_every_promise(seeds: range) -> None:
    with proof("G1 G2 G4 G8 G13", "simulated schedules of several nodes on one store") as figure:
        results = run_seeds(seeds, "--cluster")
        figure.count, figure.wrong, figure.seeds_upto = len(seeds), len(results.bad), seeds.stop
        for kind in ("workspace taken over", "node paused", "node gave up its leases", "write without a lease refused"):
            figure.notes[kind] = results.counts.get(kind, 0)
        assert results.bad == [], results.first
    missing = FAULT_KINDS - results.counts.keys()
    assert len(seeds) < 1_000 or not missing, f"no simulation had: {missing}"


class AskingWorld(World):
    """A world in which the node that holds the workspace asks the other one for it, as if that held it."""

    answers: ClassVar[list[str]] = []

    async def _settle(self) -> None:
        assert self.cluster is not None
        holder, other = self.cluster.nodes
        if not holder.is_serving:
            holder, other = other, holder
        assert holder.forwarder is not None
        info = await holder.forwarder.named(other.name)
        try:
            reply = await holder.forwarder.fetch(info, "GET", f"/v1/workspaces/{self.state.workspace_id}/sessions")
        except NodeUnreachable as error:
            self.answers.append(error.message)
        else:
            self.broken.append(f"the other node has forwarded the request: {reply!r}")
        await super()._settle()


def test_a_request_is_forwarded_once() -> None:
    plans = [replace(draw(seed), nodes=2, acts=()) for seed in range(3)]
    assert [report.broken for report in simulate_all(plans, make_world=AskingWorld)] == [()] * 3
    assert [answer[-10:] for answer in AskingWorld.answers] == ["tatus 404."] * 3


@pytest.mark.timeout(600)
def test_a_seed_of_several_nodes_replays_byte_for_byte() -> None:
    seeds = range(size(100, 1_000))
    with proof("G11", "seeds of several nodes run twice, with different hash seeds", "that differ") as figure:
        once = run_seeds(seeds, "--cluster", "--digests", PYTHONHASHSEED="1")
        again = run_seeds(seeds, "--cluster", "--digests", PYTHONHASHSEED="2")
        both = zip(seeds, once.digests, again.digests, strict=True)
        different = [seed for seed, first, second in both if first != second]
        figure.count, figure.wrong = len(seeds), len(different)
        assert all(once.digests)
        assert not different, different
