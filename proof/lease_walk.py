"""Every history of the lease of one workspace, within bounds, on the real `MemoryLeases` and `MemoryStore`.

The processes of the nodes have leases of their own on shared data, with a clock that stands still. Small models stand
for the rest of a node: is its process running, is it sure of its lease, has its keeper killed its tools. Appends and
releases arrive at the store later than they are sent, perhaps from a process that was paused or has ended.

    result = asyncio.run(walk(Bounds(restarts=1)))      AssertionError with the shortest history that breaks a promise

Pass `leases` or `rules` to check another implementation. proof/spec/Leases.tla specifies the same histories.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

from kedge.core.events import StepStarted
from kedge.core.records import WorkspaceRecord
from kedge.errors import LeaseLost, NodeReplaced, StoreUnavailable
from kedge.store.base import Write
from kedge.store.leases import Claimed, HeldBy, NodeInfo, NodeLoad
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.memory_leases import MemoryLeases, StoredLease

#: Milliseconds.
NOW = 1_000_000
W = WorkspaceRecord("w", "/w", 0, 0)

#: A node, and the number of its process.
Process = tuple[int, int]
NO_PROCESS = NO_APPEND = ()
NOTHING = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one history: the number of steps of each kind."""

    nodes_max: int = 2
    #: Restarts of processes, of all nodes.
    restarts: int = 1
    #: Successful claims.
    claims: int = 2
    #: Appends sent.
    appends: int = 1
    pauses: int = 1


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the parts that are models. A fault turns one off."""

    keeper_kills: bool = True
    #: A process that is no longer sure starts again, before it does anything else.
    unsure_gives_up: bool = True
    #: A process claims a workspace only after the answer to its last release.
    claim_awaits_release: bool = True


Action = Literal[
    "Register",
    "Heartbeat",
    "Drain",
    "SurenessEnds",
    "KeeperKills",
    "Expire",
    "Pause",
    "Continue",
    "Crash",
    "GiveUp",
    "Claim",
    "StartTool",
    "SendAppend",
    "AppendArrives",
    "SendRelease",
    "ReleaseArrives",
]
ACTIONS: tuple[Action, ...] = get_args(Action)


class State(NamedTuple):
    """A state in the terms of the specification. Tuples have one item for each node."""

    rows: tuple[str, ...]
    holder: Process | tuple[()]
    token: int
    log: tuple[tuple[int, int], ...]
    incarnation: tuple[int, ...]
    process: tuple[str, ...]
    sure: tuple[bool, ...]
    killed: tuple[bool, ...]
    serves: tuple[bool, ...]
    tool: tuple[bool, ...]
    remembered: tuple[int, ...]
    appending: tuple[tuple[int, int] | tuple[()], ...]
    releasing: tuple[int, ...]
    claimer: Process | tuple[()]
    restarts: int
    appends: int
    pauses: int

    def is_alive(self, process: Process | tuple[()]) -> bool:
        if not process:
            return False
        node, incarnation = process
        return self.incarnation[node - 1] == incarnation and self.rows[node - 1] == "alive"


@dataclass(slots=True)
class Node:
    """The models of a node's process and keeper."""

    incarnation: int = 1
    process: Literal["down", "running", "paused"] = "running"
    is_sure: bool = True
    killed: bool = False
    serves: bool = False
    has_tool: bool = False
    #: The incarnation whose append or release is on its way to the store.
    appending: int = NOTHING
    releasing: int = NOTHING

    def end(self) -> None:
        self.process, self.is_sure, self.killed, self.serves, self.has_tool = "down", False, True, False, False


@dataclass(slots=True)
class World:
    """A state: the real data and leases, and the models."""

    data: MemoryData
    leases: dict[Process, MemoryLeases]
    nodes: dict[int, Node]
    log: tuple[tuple[int, int], ...] = ()
    claimer: Process | tuple[()] = NO_PROCESS
    restarts: int = 0
    appends: int = 0
    pauses: int = 0

    def copied(self) -> World:
        log = self.data.logs[W.id]
        data = MemoryData(logs={W.id: replace(log, rows=list(log.rows), ended=set(log.ended))})
        data.nodes = {name: replace(node) for name, node in self.data.nodes.items()}
        data.leases = {name: replace(lease) for name, lease in self.data.leases.items()}
        leases = {process: _copied(one, data) for process, one in self.leases.items()}
        return replace(self, data=data, leases=leases, nodes={key: replace(node) for key, node in self.nodes.items()})

    def state(self) -> State:
        lease = self.data.leases.get(W.id, StoredLease())
        nodes = list(self.nodes.items())
        return State(
            tuple(self._row(number, node) for number, node in nodes),
            _process_of(lease.holder),
            lease.token,
            self.log,
            tuple(node.incarnation for _, node in nodes),
            tuple(node.process for _, node in nodes),
            tuple(node.is_sure for _, node in nodes),
            tuple(node.killed for _, node in nodes),
            tuple(node.serves for _, node in nodes),
            tuple(node.has_tool for _, node in nodes),
            tuple(self.known((n, node.incarnation)) if node.process != "down" else 0 for n, node in nodes),
            tuple(
                (node.appending, self.known((n, node.appending))) if node.appending else NO_APPEND for n, node in nodes
            ),
            tuple(node.releasing for _, node in nodes),
            self.claimer,
            self.restarts,
            self.appends,
            self.pauses,
        )

    def known(self, process: Process) -> int:
        """Return the token that the leases of this process remember."""
        return self.leases[process]._tokens.get(W.id, 0)

    def _row(self, number: int, node: Node) -> str:
        row = self.data.nodes.get(str(number))
        if row is None:
            return "absent"
        assert row.info.incarnation == _text((number, node.incarnation)), "the row is of another process"
        return "alive" if row.expires_at > NOW else "expired"


def _copied(leases: MemoryLeases, data: MemoryData) -> MemoryLeases:
    result = copy.copy(leases)
    result._data, result._tokens = data, dict(leases._tokens)
    return result


def _text(process: Process) -> str:
    return f"{process[0]}.{process[1]}"


def _process_of(incarnation: str) -> Process | tuple[()]:
    if not incarnation:
        return NO_PROCESS
    node, _, number = incarnation.partition(".")
    return int(node), int(number)


def _info(process: Process) -> NodeInfo:
    return NodeInfo(str(process[0]), "", ("/",), _text(process), f"host of {process[0]}")


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Executor:
    bounds: Bounds
    make_leases: type[MemoryLeases] = MemoryLeases
    rules: Rules = field(default_factory=Rules)

    async def first(self) -> World:
        data = MemoryData()
        world = World(data, {}, {number: Node() for number in range(1, self.bounds.nodes_max + 1)})
        for number in world.nodes:
            await self._register(world, (number, 1))
        store = MemoryStore(data, world.leases[1, 1])
        await store.open()
        await store.workspace(W.path, W)
        return world

    async def _register(self, world: World, process: Process) -> None:
        world.leases[process] = self.make_leases(world.data, lambda: NOW, _text(process))
        await world.leases[process].register(_info(process))

    async def execute(self, before: State, world: World, action: Action, number: int) -> World | None:
        """Execute a command on a copy. None: a process does not try it here, or it was refused without an effect."""
        if not self._may_try(before, world.nodes[number], action, before.rows[number - 1]):
            return None
        world = world.copied()
        node = world.nodes[number]
        process = (number, node.incarnation)
        leases = world.leases[process]
        match action:
            case "Register":
                world.restarts += 1
                node.incarnation += 1
                node.process, node.is_sure, node.killed = "running", True, False
                await self._register(world, (number, node.incarnation))
            case "Heartbeat":
                try:
                    await leases.heartbeat(NodeLoad())
                except NodeReplaced:
                    check_unchanged(before, world)
                    return None
            case "Drain":
                await leases.unregister()
                node.end()
            case "SurenessEnds":
                node.is_sure = False
            case "KeeperKills":
                node.killed, node.has_tool = True, node.has_tool and not self.rules.keeper_kills
            case "Expire":
                world.data.nodes[str(number)].expires_at = NOW
            case "Pause":
                world.pauses += 1
                node.process = "paused"
            case "Continue":
                node.process = "running"
            case "Crash" | "GiveUp":
                node.end()
            case "Claim":
                return await self._claim(before, world, process)
            case "StartTool":
                node.has_tool = True
            case "SendAppend":
                world.appends += 1
                node.appending = node.incarnation
            case "AppendArrives":
                await self._append(world, (number, node.appending))
                node.appending = NOTHING
            case "SendRelease":
                node.serves = node.has_tool = False
                node.releasing = node.incarnation
            case "ReleaseArrives":
                await world.leases[number, node.releasing].release(W.id)
                node.releasing = NOTHING
        return world

    def _may_try(self, before: State, node: Node, action: Action, row: str) -> bool:
        """Return whether a process tries this, within the bounds. The store may refuse it."""
        acts = node.process == "running" and (node.is_sure or not self.rules.unsure_gives_up)
        bounds = self.bounds
        match action:
            case "Register":
                return node.process == "down" and before.restarts < bounds.restarts
            case "Heartbeat":
                return True  # may arrive late
            case "Drain":
                return acts
            case "SurenessEnds":
                return node.is_sure
            case "KeeperKills":
                return node.process != "down" and not node.is_sure and not node.killed
            case "Expire":
                return not node.is_sure and node.killed and row == "alive"
            case "Pause":
                return node.process == "running" and before.pauses < bounds.pauses
            case "Continue":
                return node.process == "paused"
            case "Crash":
                return node.process != "down"
            case "GiveUp":
                return node.process == "running" and not node.is_sure
            case "Claim":
                waits = self.rules.claim_awaits_release and node.releasing == node.incarnation
                return acts and not node.serves and not waits and before.token < bounds.claims
            case "StartTool":
                return acts and node.serves and not node.killed and not node.has_tool
            case "SendAppend":
                return acts and node.serves and not node.appending and before.appends < bounds.appends
            case "AppendArrives":
                return bool(node.appending)
            case "SendRelease":
                return acts and node.serves and not node.releasing
            case "ReleaseArrives":
                return bool(node.releasing)

    async def _claim(self, before: State, world: World, process: Process) -> World | None:
        try:
            claim = await world.leases[process].claim(W.id)
        except (StoreUnavailable, NodeReplaced):  # its row has expired
            check_unchanged(before, world)
            return None
        if isinstance(claim, HeldBy):
            assert _process_of(claim.node.incarnation) == before.holder, "another node is named as the holder"
            check_unchanged(before, world)
            return None
        assert isinstance(claim, Claimed)
        assert claim.token == world.data.leases[W.id].token, "the claim returned another token"
        world.nodes[process[0]].serves = True
        world.claimer = process
        return world

    async def _append(self, world: World, writer: Process) -> None:
        known = world.known(writer)
        store = MemoryStore(world.data, world.leases[writer])
        await store.open()
        head = len(world.log)
        with suppress(LeaseLost):
            head = await store.append(Write(W.id, events=(("s", StepStarted("r", 1, 0)),))) - W.base
        stored = (await store.bounds(W.id))[1] - W.base
        await store.close()
        assert stored == head, "a refused append is in the log"
        if stored > len(world.log):
            world.log += ((writer[0], known),)


def check_unchanged(before: State, after: World) -> None:
    assert after.state() == before, "a refused command had an effect"


# --- promises ---------------------------------------------------------------------------------------------------------


def check_state(state: State, acts: tuple[bool, ...]) -> None:
    assert sum(state.tool) <= 1, "two nodes run tools"
    for number, acting in enumerate(acts, 1):
        if acting:
            assert state.rows[number - 1] == "alive", f"node {number} acts without a live row"
            is_holder = state.holder == (number, state.incarnation[number - 1])
            assert is_holder or not state.serves[number - 1], f"node {number} serves a workspace that it does not hold"
    assert sum(a and s for a, s in zip(acts, state.serves, strict=True)) <= 1, "two nodes serve the workspace"


def check_step(before: State, after: State, action: Action, number: int) -> None:
    index = number - 1
    if after.log != before.log:
        (node, token), writer = after.log[-1], before.appending[index]
        assert (action, node) == ("AppendArrives", number), "an append that was not sent"
        assert token == before.token, f"an append with token {token}, and the current one is {before.token}"
        assert before.claimer == (number, *writer[:1]), f"{before.claimer} claimed the workspace before this append"
        assert all(token >= earlier for _, earlier in before.log), "the tokens in the log decrease"
    if action == "AppendArrives":
        changed = after._replace(log=before.log, appending=before.appending)
        assert changed == before, "an append changed something else"
    if after.holder != before.holder and before.is_alive(before.holder):
        own_release = action == "ReleaseArrives" and before.holder == (number, before.releasing[index])
        is_own = own_release or (action == "Drain" and before.holder[:1] == (number,))
        assert (is_own, after.holder) == (True, NO_PROCESS), "a live holder was replaced"
    assert after.token >= before.token, "the token decreases"
    if after.claimer != before.claimer:
        assert after.token > before.token, "a claim did not raise the token"
    if before.rows[index] != "alive" and after.rows[index] == "alive":
        assert after.incarnation[index] > before.incarnation[index], "a process got its expired row back"


# --- all histories ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transition:
    before: State
    action: Action
    after: State


@dataclass(frozen=True, slots=True)
class WalkResult:
    states: int
    #: Executed commands with an effect, and heartbeats.
    transitions: int
    #: Commands that the store refused.
    refused: int
    #: Appends that the fence refused.
    fenced: int


async def walk(
    bounds: Bounds,
    leases: type[MemoryLeases] = MemoryLeases,
    rules: Rules | None = None,
    on_transition: Callable[[Transition], None] | None = None,
) -> WalkResult:
    """Check every history within these bounds. Raise AssertionError for the first broken promise."""
    executor = Executor(bounds, leases, rules or Rules())
    first = await executor.first()
    #: The first way each state was reached: a shortest history, since the search is breadth first.
    came_from: dict[State, tuple[State, str] | None] = {first.state(): None}
    pending = deque([(first.state(), first)])
    transitions = refused = fenced = 0
    while pending:
        before, world = pending.popleft()
        for number in world.nodes:
            for action in ACTIONS:
                try:
                    after_world = await executor.execute(before, world, action, number)
                    if after_world is None:
                        refused += action in ("Claim", "Heartbeat")
                        continue
                    after = after_world.state()
                    check_step(before, after, action, number)
                    if after not in came_from:
                        check_state(after, _acting(executor, after_world))
                except AssertionError as broken:
                    raise AssertionError(_history(came_from, before, f"{action} {number}", broken)) from broken
                transitions += 1
                fenced += action == "AppendArrives" and after.log == before.log
                if on_transition:
                    on_transition(Transition(before, action, after))
                if after not in came_from:
                    came_from[after] = (before, f"{action} {number}")
                    pending.append((after, after_world))
    return WalkResult(len(came_from), transitions, refused, fenced)


def _acting(executor: Executor, world: World) -> tuple[bool, ...]:
    return tuple(
        node.process == "running" and (node.is_sure or not executor.rules.unsure_gives_up)
        for node in world.nodes.values()
    )


def _history(came_from: dict[State, tuple[State, str] | None], state: State, last: str, broken: AssertionError) -> str:
    commands = [last]
    while (by := came_from[state]) is not None:
        state, command = by
        commands.append(command)
    lines = [f"{number:4}  {command}" for number, command in enumerate(reversed(commands), 1)]
    return "\n".join([f"{str(broken).splitlines()[0]}", *lines])
