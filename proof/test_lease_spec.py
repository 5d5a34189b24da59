"""G13: TLC checks the specification of the leases, proof/spec/Leases.tla, and reaches the same states as the walk.

The states and the transitions between them must be equal. Faults of fencing and take-over are found by both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from kedge.store import leases as rules_of_leases
from kedge.store.leases import Claimed, HeldBy, NodeInfo, NodeLoad
from kedge.store.memory_leases import MemoryLeases, StoredLease
from proof.figures import IS_LONG, proof, size
from proof.lease_walk import NOW, Bounds, Rules, State, Transition, walk
from proof.tlc import NEEDS_JAVA, Graph, Module, Value, disagreements, run_tlc, text_of

CI_SCOPES = (Bounds(restarts=0, claims=2, appends=1, pauses=1),)
LONG_SCOPES = (
    Bounds(restarts=1, claims=2, appends=0, pauses=0),
    Bounds(restarts=1, claims=2, appends=1, pauses=1),
    Bounds(restarts=0, claims=3, appends=2, pauses=0),
    Bounds(nodes_max=3, restarts=0, claims=2, appends=1, pauses=0),
)
#: For the liveness property, which costs TLC several times as much per state.
LIVENESS = Bounds(restarts=1, claims=2, appends=0, pauses=1) if IS_LONG else Bounds(restarts=0, appends=0)

pytestmark = NEEDS_JAVA

#: The counters of bounded commands: one variable in the specification.
USED = ("restarts", "appends", "pauses")
LEASES = Module("Leases", (*(name for name in State._fields if name not in USED), "used"), has_action_names=True)


# --- the walk in the notation of TLC ----------------------------------------------------------------------------------


def walked(bounds: Bounds) -> Graph:
    graph = Graph()
    texts: dict[State, str] = {}

    def text(state: State) -> str:
        if state not in texts:
            texts[state] = _text(state)
        return texts[state]

    def on_transition(transition: Transition) -> None:
        before, after = text(transition.before), text(transition.after)
        graph.states |= {before, after}
        graph.transitions.add((before, transition.action, "", after))

    asyncio.run(walk(bounds, on_transition=on_transition))
    return graph


def _text(state: State) -> str:
    values: dict[str, Value] = state._asdict()
    values["used"] = {name: getattr(state, name) for name in USED}
    return " ".join(f"{name}={text_of(values[name])}" for name in LEASES.state)


# --- the comparison ---------------------------------------------------------------------------------------------------


def scope_id(bounds: Bounds) -> str:
    return " ".join(f"{bound}-{name}" for name, bound in asdict(bounds).items())


@pytest.mark.parametrize("bounds", CI_SCOPES + LONG_SCOPES * IS_LONG, ids=scope_id)
def test_tlc_and_lease_walk_reach_the_same_states(bounds: Bounds, tmp_path: Path) -> None:
    with proof("G13", "states of the leases that TLC and the walk agree on", "disagreements") as figure:
        checked = run_tlc(tmp_path, LEASES, asdict(bounds))
        assert checked.passed, checked.text
        specified, leases = checked.graph, walked(bounds)
        differences = disagreements(specified, leases, "the walk")
        figure.count, figure.wrong = len(specified.states & leases.states), len(differences)
        figure.notes["transitions agreed on"] = len(specified.transitions & leases.transitions)
        assert not differences, "\n".join([f"{len(differences)} disagreements, such as", *differences[:5]])
        assert checked.count == len(leases.states)


def test_orphan_is_claimed_if_a_node_stays_alive(tmp_path: Path) -> None:
    with proof("G13", "states of the leases from which TLC finds every orphan to be claimed", "stuck") as figure:
        checked = run_tlc(tmp_path, LEASES, asdict(LIVENESS), "LeaseClaims.cfg")
        assert checked.passed, checked.text
        figure.count = checked.count


# --- seeded faults ----------------------------------------------------------------------------------------------------


class NoFence(MemoryLeases):
    def check(self, workspace_id: str) -> None:
        pass


class FenceWithoutToken(MemoryLeases):
    def check(self, workspace_id: str) -> None:
        if self._data.leases[workspace_id].holder not in ("", self.incarnation):
            raise rules_of_leases.lease_lost(workspace_id)


class TokenNotRaised(MemoryLeases):
    async def claim(self, workspace_id: str) -> Claimed | HeldBy:
        claim = await super().claim(workspace_id)
        if isinstance(claim, HeldBy):
            return claim
        lease = self._data.leases[workspace_id]
        lease.token = self._tokens[workspace_id] = max(claim.token - 1, 1)
        return Claimed(lease.token)


class ClaimFromLiveHolder(MemoryLeases):
    def _alive(self, incarnation: str) -> NodeInfo | None:
        return None


class HeartbeatOfExpired(MemoryLeases):
    async def heartbeat(self, load: NodeLoad) -> None:
        self._own_node().expires_at = NOW + 1


class ReleaseOfOthers(MemoryLeases):
    async def release(self, workspace_id: str) -> None:
        self._data.leases.setdefault(workspace_id, StoredLease()).holder = ""


class ReleaseForgetsToken(MemoryLeases):
    async def release(self, workspace_id: str) -> None:
        self._tokens.pop(workspace_id, None)
        await super().release(workspace_id)


@dataclass(frozen=True, slots=True)
class Fault:
    """Wrong lines for the specification, and the same fault for the walk. What both must report."""

    lines: Mapping[str, str]
    tlc: str
    walk: str = ""
    leases: type[MemoryLeases] = MemoryLeases
    rules: Rules = field(default_factory=Rules)
    config: str = ""


#: The small size runs the first eight: TLC takes a second to start.
FAULTS = {
    "fence is not checked": Fault(
        {"/\\ holder \\in {NoProcess, one}\n    /\\ known = token": "TRUE"},
        "AppendsHaveTheCurrentToken is violated",
        "an append with token 1, and the current one is 2",
        NoFence,
    ),
    "fence checks only the holder": Fault(
        {"/\\ known = token": "/\\ TRUE"},
        "AppendsHaveTheCurrentToken is violated",
        "an append with token 1, and the current one is 2",
        FenceWithoutToken,
    ),
    "claim does not raise the token": Fault(
        {"NextToken == token + 1": "NextToken == IF token = 0 THEN 1 ELSE token"},
        "ClaimsRaiseTheToken is violated",
        "a claim did not raise the token",
        TokenNotRaised,
    ),
    "claim ignores a live holder": Fault(
        {"holder = Current(node) \\/ ~IsAlive(holder)": "TRUE"},
        "ActingProcessHasItsLease is violated",
        "a live holder was replaced",
        ClaimFromLiveHolder,
    ),
    "heartbeat revives an expired row": Fault(
        {'/\\ rows[node] = "alive"\n    /\\ rows\' =': '/\\ rows[node] # "absent"\n    /\\ rows\' ='},
        "ExpiredRowIsNeverRevived is violated",
        "a process got its expired row back",
        HeartbeatOfExpired,
    ),
    "release drops the lease of another": Fault(
        {"IF holder = <<node, releasing[node]>> THEN NoProcess ELSE holder": "NoProcess"},
        "ActingProcessHasItsLease is violated",
        "a live holder was replaced",
        ReleaseOfOthers,
    ),
    "keeper does not kill": Fault(
        {"TRUE]\n    /\\ tool' = [tool EXCEPT ![node] = FALSE]": "TRUE]\n    /\\ UNCHANGED tool"},
        "AtMostOneTool is violated",
        "two nodes run tools",
        rules=Rules(keeper_kills=False),
    ),
    "node continues after it is unsure": Fault(
        {'process[node] = "running" /\\ sure[node]': 'process[node] = "running"'},
        "ActingProcessHasItsLease is violated",
        "node 1 acts without a live row",
        rules=Rules(unsure_gives_up=False),
    ),
    "claim does not await a release": Fault(
        {"    /\\ releasing[node] # incarnation[node]\n": ""},
        "ActingProcessHasItsLease is violated",
        "node 1 serves a workspace that it does not hold",
        rules=Rules(claim_awaits_release=False),
    ),
    "release forgets the token": Fault(
        {
            "known = token": "known \\in {0, token}",
            "/\\ UNCHANGED <<rows, token, log, processes, appending, used, claimer>>": (
                "/\\ appending' = [appending EXCEPT ![node] = IF @ = NoAppend THEN @ ELSE <<@[1], 0>>]\n"
                "    /\\ UNCHANGED <<rows, token, log, processes, used, claimer>>"
            ),
        },
        "AppendsHaveTheCurrentToken is violated",
        "an append with token 0, and the current one is",
        ReleaseForgetsToken,
    ),
    "rows never expire": Fault(
        {" /\\ WF_vars(Expire(node))": ""}, "Temporal properties were violated", config="LeaseClaims.cfg"
    ),
}


@pytest.mark.parametrize("name", list(FAULTS)[: size(8, len(FAULTS))])
def test_fault_of_leases_is_found_by_both(name: str, tmp_path: Path) -> None:
    fault, spec = FAULTS[name], LEASES.text
    bounds = LIVENESS if fault.config else replace(CI_SCOPES[0], pauses=0)
    for right, wrong in fault.lines.items():
        assert spec.count(right) == 1
        spec = spec.replace(right, wrong)
    with proof("G9", "faults of the leases, found by TLC and by the walk", "not found") as figure:
        figure.count = 1
        assert fault.tlc in run_tlc(tmp_path, LEASES, asdict(bounds), fault.config, spec).text
        if fault.walk:
            with pytest.raises(AssertionError, match=fault.walk):
                asyncio.run(walk(bounds, fault.leases, fault.rules))
