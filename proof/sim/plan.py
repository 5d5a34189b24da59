"""The plan of one simulation, drawn from its seed: the requests of clients and the faults, with their times.

A plan is a list of acts, so that a failing one can be reduced: acts are removed one by one while it still fails.
"""

from __future__ import annotations

import random
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.commands import OnCrash, WhenBusy
from kedge.core.modes import MODES, Mode
from proof.sim.loop import Schedule

#: Acts of clients.
ClientAct = Literal[
    "submit",
    "cancel",
    "cancel_run",
    "clear",
    "edit",
    "move",
    "fold",
    "delete",
    "rewind",
    "mode",
    "wait",
    "look",
    "shell",
    "drop",
    "pause",
    "leave",
    "open",
]
#: Acts of the machine: faults.
Fault = Literal[
    "crash", "kill", "restart", "store_down", "store_full", "store_slow", "store_faults", "cuts", "nth", "clock"
]
#: Acts of the machines of a cluster: faults of one node.
NodeFault = Literal["node_pause", "node_store", "link_down"]
Kind = ClientAct | Fault | NodeFault
#: Faults, with the probability of each in one plan.
FAULTS: tuple[tuple[Fault, float], ...] = (
    ("crash", 0.15),
    ("kill", 0.3),
    ("kill", 0.2),
    ("restart", 0.15),
    ("store_down", 0.2),
    ("store_faults", 0.25),
    ("cuts", 0.3),
    ("nth", 0.3),
)
#: Names that occur more often are drawn more often.
_CLIENT_ACTS: tuple[ClientAct, ...] = (
    ("submit",) * 6
    + ("cancel", "cancel", "cancel_run", "cancel_run")
    + ("clear", "edit", "move", "fold", "wait", "look", "drop", "drop", "pause", "delete", "leave")
)
_WHEN_BUSY: tuple[WhenBusy | None, ...] = (None, None, None, "queue", "queue", "fold", "fold", "interrupt", "reject")
_LAST_STEPS = (
    "say 1",
    "say 2",
    "say 4",
    "say 4",
    "say 6",
    "say 2 fail",
    "busy 1 say 2",
    "busy 9 say 1",
    "say 1 wait 3",
    "say 1 busy 1 say 2",
    "wait 2 say 1",
    "say 2 wait 1 say 2 wait 1 say 2",
    "say 1 wait 20",
)
_STEPS = (
    "say 1 run quick",
    "run quick run quick",
    "say 2 run hang",
    "run stubborn",
    "run leaver",
    "run broken",
    "run risky",
    "run risky run quick",
    "say 1 ask",
    "agent 2",
    "agent 3 run quick",
    "run quick run risky",
)
_TYPED = ("typed quick", "typed quick", "typed hang", "typed stubborn", "typed leaver", "typed broken")
#: The time span of all acts. Seconds.
SPAN_S = 6.0
#: Probabilities in one plan: the clock is set, a user runs a command, a client waits for a Run from its start, a
#: context is full, titles are on, a queue is reordered.
CLOCK_RATE, SHELL_RATE, WAIT_RATE, FULL_RATE, TITLES_RATE, ORDER_RATE = 0.15, 0.15, 0.25, 0.15, 0.25, 0.05
#: In one plan: a client rewinds a session to one of its prompts, and then sends another prompt.
REWIND_RATE = 0.25
#: In one plan: clients switch the mode of a session, and some prompts bring one.
MODE_RATE = 0.25
#: In one plan: a Step makes the same call three times, so that one answer can settle the others.
SAME_CALLS_RATE = 0.1
#: In one plan: the store is full or slow when a cancel comes; and for how long at most. Seconds.
FULL_STORE_RATE, SLOW_RATE = 0.2, 0.05
AWAY_S_MAX = (0.5, 5.0, 30.0, 120.0)
#: The node of an act: the one that holds the workspace.
HOLDER = -1
#: The clock is set by whole days. Seconds.
DAY_S = 86_400


class Act(Struct, frozen=True):
    at: float
    kind: Kind
    client: int = 0
    session: int = 0
    #: The number of the prompt it names; prompts are numbered in the order of the plan.
    run: int = 0
    #: For a move: the prompt to move it before; None: to the end.
    before: int | None = None
    script: str = ""
    when_busy: WhenBusy | None = None
    #: The client chooses the run id, and so may repeat the submit.
    own_id: bool = True
    is_bound_to_client: bool = False
    #: For a mode: the one to switch to. For a submit: that of its Run; None: the session's.
    mode: Mode | None = None
    #: The node that has the fault; HOLDER: the one that has the lease of the workspace then.
    node: int = 0
    for_s: float = 0.0
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Plan(Struct, frozen=True):
    seed: int
    schedule: Schedule
    clients: int
    sessions: int
    on_crash: OnCrash
    queue_runs_max: int
    #: The size of the feed's ring. If small, slow readers fall out of it and read the log.
    ring_bytes: int
    #: How each client answers approvals.
    answers: tuple[Literal["allow", "deny", "allow_session", "silent"], ...]
    #: For each client: the session of its stream (None: all), and whether it gets Deltas.
    streams: tuple[tuple[int | None, bool], ...]
    acts: tuple[Act, ...]
    #: Requests pass through the client's HTTP library, too.
    uses_http_library: bool = False
    #: A small model writes titles.
    titles: bool = False
    #: More than one: servers with leases on one store, and clients that change the server with each request.
    nodes: int = 1


def draw(seed: int) -> Plan:
    rng = random.Random(seed)
    # Most plans are small: a race needs few participants, and many small plans cost as much as few large ones.
    is_small = rng.random() < 0.85
    clients = rng.choice((1, 1, 1, 2) if is_small else (1, 2, 2, 3))
    sessions = 1 if is_small else rng.choice((1, 1, 2))
    # Acts often cluster at nearly the same time: that is where races are.
    moments = [rng.random() * SPAN_S for _ in range(rng.choice((1, 2, 3)))]
    acts: list[Act] = []
    prompts = 0
    for _ in range(rng.randint(1, 4) if is_small else rng.randint(4, 9)):
        kind: ClientAct = rng.choice(_CLIENT_ACTS) if prompts else "submit"
        at = rng.choice(moments) if rng.random() < 0.6 else rng.random() * SPAN_S
        client, session = rng.randrange(clients), rng.randrange(sessions)
        acts.append(client_act(rng, kind, at, client, session, prompts))
        if kind == "submit" and rng.random() < 0.2:
            # A cancel soon enough to meet this Run while it is active.
            stop: ClientAct = rng.choice(("cancel", "cancel_run"))
            acts.append(Act(at + rng.random() ** 2 * 4, stop, rng.randrange(clients), session, prompts))
        prompts += kind == "submit"
    for fault, rate in FAULTS:
        if rng.random() < rate:
            acts.append(fault_act(rng, fault, rng.random() * (SPAN_S + 2)))
    plan = Plan(
        seed,
        rng.choice(("fifo", "random", "random", "priority")),
        clients,
        sessions,
        rng.choice(("resume", "resume", "end")),
        rng.choice((100, 100, 2)),
        rng.choice((1_000_000, 1_000_000, 3_000)),
        tuple(rng.choice(("allow", "allow", "deny", "allow_session", "silent")) for _ in range(clients)),
        tuple((rng.choice((None, None, 0)), rng.random() < 0.7) for _ in range(clients)),
        tuple(sorted(acts, key=lambda act: act.at)),
        seed % 32 == 0,
    )
    return _with_more(plan)


def _with_more(plan: Plan) -> Plan:
    """Add acts that were introduced later, with their own random numbers: older seeds keep the rest of their plan."""
    rng = random.Random(f"more of {plan.seed}")
    acts = list(plan.acts)
    if rng.random() < FULL_RATE:
        number = rng.choice([number for number, act in enumerate(acts) if act.kind == "submit"])
        acts[number] = replace(acts[number], script=_with_full_context(rng, acts[number].script))
    if rng.random() < SHELL_RATE:
        at = rng.choice(acts).at + rng.random() ** 2 * 4
        who = rng.randrange(plan.clients), rng.randrange(plan.sessions)
        acts.append(Act(at, "shell", *who, script=rng.choice(_TYPED)))
        if rng.random() < 0.4:
            acts.append(Act(at + rng.random(), "drop", who[0]))  # its client disconnects
    if rng.random() < WAIT_RATE:
        asked = rng.choice([act for act in acts if act.kind == "submit"])
        acts.append(Act(asked.at + rng.random(), "wait", asked.client, asked.session, asked.run))
    if rng.random() < CLOCK_RATE:
        acts.append(Act(rng.random() * (SPAN_S + 2), "clock", for_s=DAY_S * rng.choice((-30, -1, 1, 30))))
    titles = rng.random() < TITLES_RATE
    if rng.random() < ORDER_RATE:
        acts += _reordered(rng, plan, sum(act.kind == "submit" for act in acts))
    cancels = [act for act in acts if act.kind in ("cancel", "cancel_run")]
    away: tuple[tuple[Fault, float], ...] = (("store_full", FULL_STORE_RATE), ("store_slow", SLOW_RATE))
    for fault, rate in away:
        if rng.random() < rate and cancels:
            at = rng.choice(cancels).at - rng.random() ** 2
            acts.append(Act(max(at, 0.0), fault, for_s=rng.random() * rng.choice(AWAY_S_MAX)))
    if rng.random() < REWIND_RATE:
        acts += _rewound(rng, plan, acts)
    if rng.random() < MODE_RATE:
        acts = _with_modes(rng, plan, acts)
    if rng.random() < SAME_CALLS_RATE:
        number = rng.choice([number for number, act in enumerate(acts) if act.kind == "submit"])
        name, _, steps = acts[number].script.partition(":")
        acts[number] = replace(acts[number], script=f"{name}:run risky run risky run risky;{steps}")
    return replace(plan, acts=tuple(sorted(acts, key=lambda act: act.at)), titles=titles)


def _with_modes(rng: random.Random, plan: Plan, acts: list[Act]) -> list[Act]:
    """Switches of the mode about when commands that need an approval are called."""
    number = rng.choice([number for number, act in enumerate(acts) if act.kind == "submit"])
    target = acts[number]
    name, _, steps = target.script.partition(":")
    own = rng.choice((None, None, *MODES))
    acts[number] = replace(target, script=f"{name}:say 1 run risky;run risky run quick;{steps}", mode=own)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = max(0.0, target.at + rng.random() * rng.choice((0.5, 3.0)) - 0.2)
        acts.append(Act(at, "mode", rng.randrange(plan.clients), target.session, mode=rng.choice(MODES)))
    return acts


def _rewound(rng: random.Random, plan: Plan, acts: list[Act]) -> list[Act]:
    """A rewind, often after the Runs of the plan, since it is refused while one is live; and a prompt soon after it."""
    submits = [act for act in acts if act.kind == "submit"]
    target = rng.choice(submits)
    at = target.at + rng.random() * rng.choice((4.0, 20.0, 60.0))
    number, client = len(submits), rng.randrange(plan.clients)
    more = Act(at + rng.random() ** 3 * 2, "submit", client, target.session, number, script=f"p{number}:say 2")
    return [Act(at, "rewind", client, target.session, target.run), more]


def _reordered(rng: random.Random, plan: Plan, first: int) -> list[Act]:
    """Three queued prompts, of which the last is moved to the front: randomly drawn moves rarely change an order."""
    at, session = rng.random() * SPAN_S, rng.randrange(plan.sessions)
    asked = [
        Act(at + 0.05 * number, "submit", rng.randrange(plan.clients), session, first + number, when_busy="queue")
        for number in range(3)
    ]
    acts = [replace(act, script=f"p{act.run}:say 1 wait 1") for act in asked]
    move = Act(at + 0.3 + rng.random(), "move", rng.randrange(plan.clients), session, first + 2, first + 1)
    return [*acts, move]


def _with_full_context(rng: random.Random, script: str) -> str:
    name, _, steps = script.partition(":")
    rows = steps.split(";")
    full = rng.randrange(len(rows))
    return f"{name}:{';'.join([*rows[:full], f'full {rows[full]}', *rows[full + 1 :]])}"


def client_act(rng: random.Random, kind: ClientAct, at: float, client: int, session: int, prompts: int) -> Act:
    if kind != "submit":
        before = rng.randrange(prompts) if rng.random() < 0.6 else None
        return Act(at, kind, client, session, rng.randrange(prompts), before, for_s=rng.random() * 4)
    is_bound = rng.random() < 0.15
    steps = [rng.choice(_STEPS) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]
    script = ";".join([*steps, rng.choice(_LAST_STEPS)])
    return Act(
        at,
        kind,
        client,
        session,
        prompts,
        script=f"p{prompts}:{script}",
        when_busy=rng.choice(_WHEN_BUSY),
        own_id=is_bound or rng.random() < 0.75,
        is_bound_to_client=is_bound,
    )


def fault_act(rng: random.Random, kind: Fault, at: float) -> Act:
    match kind:
        case "store_faults":
            rates = (rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.1)))
            return Act(at, kind, for_s=rng.random() * 3, rates=rates)
        case "cuts":
            return Act(at, kind, for_s=rng.random() * 3, rates=(rng.choice((0.02, 0.1, 0.3)), 0.0, 0.0))
        case "kill":
            return Act(0.0, kind, run=rng.randint(1, 500), for_s=rng.random() * 2)
        case "nth":
            # Small plans write about ten times, large ones sixty times: most of these happen in either.
            return Act(0.0, kind, run=1 + int(rng.random() ** 3 * 60), own_id=rng.random() < 0.5)
        case _:
            return Act(at, kind, for_s=rng.random() * 2)
