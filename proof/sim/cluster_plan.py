"""The plan of one simulation of a cluster: a few requests, and faults of nodes at about the same time.

Such a plan is small, since each second of a cluster costs renewals of all its nodes.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from proof.sim.client import LEAVE_FACTOR
from proof.sim.plan import HOLDER, Act, ClientAct, Fault, NodeFault, Plan, client_act, fault_act
from proof.sim.server import HOLD_S
from proof.sim.shared_store import LEASE_S

#: The time span of requests. Seconds.
SPAN_S = 3.0
#: The longest pause of a node: more than twice its lease. Seconds.
PAUSE_S_MAX = 9.0
#: A node is killed between two calls of the loop: half of the simulations have so many. Items.
CALLS = 1_200
#: The duration of some pauses: requests to other nodes must not wait for them. Seconds.
LONG_PAUSE_S, LONG_PAUSE_RATE = 25.0, 0.1
#: In one plan: all clients leave, so that only another node can continue the Runs of a lost one; a client returns when
#: its workspace closes; a node is paused while its renewals are late; there are three nodes.
LEAVE_RATE, RETURN_RATE, LATE_RATE, THREE_NODES_RATE = 0.15, 0.1, 0.1, 0.1
_CLIENT_ACTS: tuple[ClientAct, ...] = (
    ("submit",) * 6
    + ("cancel", "cancel", "cancel_run", "cancel_run")
    + ("fold", "edit", "wait", "look", "drop", "clear")
)
_FAULTS: tuple[NodeFault | Fault, ...] = (
    ("node_pause",) * 4
    + ("node_store",) * 3
    + ("crash", "crash", "kill", "kill", "link_down", "restart", "cuts", "nth", "store_down")
)


def draw(seed: int) -> Plan:
    rng = random.Random(f"cluster {seed}")
    clients = rng.choice((1, 1, 2))
    nodes = 3 if rng.random() < THREE_NODES_RATE else 2
    moments = [rng.random() * SPAN_S for _ in range(rng.choice((1, 2)))]
    acts: list[Act] = []
    prompts = 0
    for _ in range(rng.randint(1, 4)):
        kind: ClientAct = rng.choice(_CLIENT_ACTS) if prompts else "submit"
        at = rng.choice(moments) if rng.random() < 0.6 else rng.random() * SPAN_S
        act = client_act(rng, kind, at, rng.randrange(clients), 0, prompts)
        acts.append(replace(act, script=act.script.replace("wait 20", "wait 5")))
        prompts += kind == "submit"
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        # Soon after a request, when its Run is active.
        at = max(0.0, rng.choice(moments) + rng.random() ** 2 * 3 - 0.1)
        acts += _faults(rng, at, nodes)
    drawn = rng.random()
    if drawn < LEAVE_RATE:
        acts += _left_alone(rng, max(act.at for act in acts if act.kind == "submit"), clients)
    elif drawn < LEAVE_RATE + RETURN_RATE:
        clients, acts = 1, _returned(rng)
    elif drawn < LEAVE_RATE + RETURN_RATE + LATE_RATE:
        acts += _paused_while_late(rng, rng.choice(moments))
    return Plan(
        seed,
        rng.choice(("fifo", "random", "random", "priority")),
        clients,
        1,
        rng.choice(("resume", "resume", "end")),
        rng.choice((100, 100, 2)),
        rng.choice((1_000_000, 1_000_000, 3_000)),
        tuple(rng.choice(("allow", "allow", "deny", "allow_session", "silent")) for _ in range(clients)),
        tuple((rng.choice((None, None, 0)), rng.random() < 0.7) for _ in range(clients)),
        tuple(sorted(acts, key=lambda act: act.at)),
        seed % 32 == 0,
        titles=rng.random() < 0.1,
        nodes=nodes,
    )


def _faults(rng: random.Random, at: float, nodes: int) -> list[Act]:
    kind, node = rng.choice(_FAULTS), rng.choice((HOLDER, HOLDER, rng.randrange(nodes)))
    match kind:
        case "node_pause":
            # Sometimes for so long that other nodes must give up waiting for it.
            for_s = LONG_PAUSE_S if rng.random() < LONG_PAUSE_RATE else rng.random() * PAUSE_S_MAX
            return [Act(at, kind, node=node, for_s=for_s)]
        case "node_store":
            away, late, lost = rng.choice(((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.3), (0.0, 1.0, 0.3)))
            return [Act(at, kind, node=node, for_s=rng.random() * 6, rates=(away, late, lost))]
        case "store_down":
            down = Act(at, "node_store", for_s=rng.random() * 6, rates=(1.0, 0.0, 0.0))
            return [replace(down, node=number) for number in range(nodes)]
        case "link_down":
            return [Act(at, kind, node=node, for_s=rng.random() * 4, rates=(rng.choice((0.0, 1.0)), 0.0, 0.0))]
        case "crash":
            # It starts again before its lease ends, or after another node has taken over.
            return [Act(at, kind, node=node, for_s=rng.random() * rng.choice((1, 9)))]
        case "kill":
            return [Act(0.0, kind, node=node, run=rng.randint(1, CALLS), for_s=rng.random() * 2)]
        case _:
            return [replace(fault_act(rng, kind, at), node=node)]


def _returned(rng: random.Random) -> list[Act]:
    """The only client leaves, returns when its workspace is closed or about to be, and sends a prompt to another node,
    which is lost soon."""
    is_closed = rng.random() < 0.5
    # It closes when it is not held any more by the client that has created it.
    return_at = HOLD_S + 2.0 * is_closed + rng.random() * 0.4 - 0.1
    leave = Act(0.5, "leave", for_s=(return_at - 0.5) / LEAVE_FACTOR)
    late = Act(HOLD_S - 0.8, "node_store", node=HOLDER, for_s=1.0 + rng.random(), rates=(0.0, 1.0, 0.0))
    opened = Act(HOLD_S - rng.random() * 0.7, "open")
    at = return_at + rng.random()
    submit = replace(
        client_act(rng, "submit", at, 0, 0, 0), script="p0:run quick;say 2 wait 2 say 1", is_bound_to_client=False
    )
    lost = Act(
        at + rng.random() * 2, rng.choice(("crash", "node_pause")), node=HOLDER, for_s=rng.random() * PAUSE_S_MAX
    )
    return [leave, submit, lost] if is_closed else [leave, late, opened, submit, lost]


def _paused_while_late(rng: random.Random, at: float) -> list[Act]:
    """The answers to renewals arrive late, and then the node is paused."""
    late = Act(at, "node_store", node=HOLDER, for_s=3.0, rates=(0.0, 1.0, 0.0))
    return [late, Act(at + rng.random() * 3, "node_pause", node=HOLDER, for_s=LEASE_S + rng.random() * LEASE_S)]


def _left_alone(rng: random.Random, at: float, clients: int) -> list[Act]:
    """All clients leave while a Run is active, and then its node is lost."""
    leaves = [Act(at + 0.2, "leave", client, for_s=2.0 + rng.random()) for client in range(clients)]
    lost = Act(at + 0.3 + rng.random() * 2, rng.choice(("crash", "node_pause")), node=HOLDER, for_s=PAUSE_S_MAX)
    return [*leaves, lost]
