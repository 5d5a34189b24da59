"""What happens in one simulation, drawn from its seed: who asks for what and when, and what goes wrong meanwhile.

A plan is a list of acts with their times, so that one which ends badly can be made smaller: acts are left out, one by
one, for as long as it still ends badly.
"""

from __future__ import annotations

import random
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.commands import OnCrash, WhenBusy
from proof.sim.loop import Schedule

#: What clients do.
Deed = Literal[
    "submit",
    "cancel",
    "cancel_run",
    "clear",
    "edit",
    "move",
    "fold",
    "delete",
    "wait",
    "look",
    "shell",
    "drop",
    "pause",
    "leave",
]
#: What goes wrong.
Fault = Literal["crash", "kill", "restart", "store_down", "store_faults", "cuts", "nth", "clock"]
Kind = Deed | Fault
#: Faults, and how likely each is in one plan.
FAULTS: tuple[tuple[Fault, float], ...] = (
    *(("crash", 0.15), ("kill", 0.3), ("kill", 0.2), ("restart", 0.15), ("store_down", 0.2), ("store_faults", 0.25)),
    *(("cuts", 0.3), ("nth", 0.3)),
)
_DEEDS: tuple[Deed, ...] = (
    *("submit", "submit", "submit", "submit", "submit", "submit", "cancel", "cancel", "cancel_run", "cancel_run"),
    *("clear", "edit", "move", "fold", "wait", "look", "drop", "drop", "pause", "delete", "leave"),
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
    *("say 1 run quick", "run quick run quick", "say 2 run hang", "run stubborn", "run leaver", "run broken"),
    *("run risky", "run risky run quick", "say 1 ask", "agent 2", "agent 3 run quick", "run quick run risky"),
)
_TYPED = ("typed quick", "typed quick", "typed hang", "typed stubborn", "typed leaver", "typed broken")
#: Everything happens within as long. Seconds.
SPAN_S = 6.0
#: How likely one plan has these: the machine's clock is set, a person has a command run, somebody waits for the end of
#: a Run from its beginning, a context is full, titles, a queue whose order is changed.
CLOCK_RATE, SHELL_RATE, WAIT_RATE, FULL_RATE, TITLES_RATE, ORDER_RATE = 0.15, 0.15, 0.25, 0.15, 0.25, 0.05
#: The clock is set by whole days. Seconds.
DAY_S = 86_400


class Act(Struct, frozen=True):
    at: float
    kind: Kind
    client: int = 0
    session: int = 0
    #: Number of the prompt it speaks of; prompts are numbered in the order of the plan.
    run: int = 0
    #: For a move: the one it is to stand before; None: it becomes the last.
    before: int | None = None
    script: str = ""
    when_busy: WhenBusy | None = None
    #: The client names the Run, and so may repeat the submit.
    own_id: bool = True
    is_bound_to_client: bool = False
    for_s: float = 0.0
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Plan(Struct, frozen=True):
    seed: int
    schedule: Schedule
    clients: int
    sessions: int
    on_crash: OnCrash
    queue_runs_max: int
    #: Of what readers share. Small: some fall out of it and have to read the log.
    ring_bytes: int
    #: Who answers approvals, and how: one entry for each client.
    answers: tuple[Literal["allow", "deny", "allow_session", "silent"], ...]
    #: Whether a client's stream is of one session, and whether it takes Deltas.
    streams: tuple[tuple[int | None, bool], ...]
    acts: tuple[Act, ...]
    #: Through the HTTP library of the client as well.
    takes_the_long_way: bool = False
    #: A small model names the sessions.
    titles: bool = False


def draw(seed: int) -> Plan:
    chance = random.Random(seed)
    # Most are small: a bug of order needs few to take part, and many small ones are as quick as few large ones.
    is_small = chance.random() < 0.85
    clients = chance.choice((1, 1, 1, 2) if is_small else (1, 2, 2, 3))
    sessions = 1 if is_small else chance.choice((1, 1, 2))
    # Often everything happens at nearly the same time: that is where races are.
    moments = [chance.random() * SPAN_S for _ in range(chance.choice((1, 2, 3)))]
    acts: list[Act] = []
    prompts = 0
    for _ in range(chance.randint(1, 4) if is_small else chance.randint(4, 9)):
        deed: Deed = chance.choice(_DEEDS) if prompts else "submit"
        at = chance.choice(moments) if chance.random() < 0.6 else chance.random() * SPAN_S
        client, session = chance.randrange(clients), chance.randrange(sessions)
        acts.append(_deed(chance, deed, at, client, session, prompts))
        if deed == "submit" and chance.random() < 0.2:
            # Somebody thinks better of it, soon enough to meet this very Run at work.
            stop: Deed = chance.choice(("cancel", "cancel_run"))
            acts.append(Act(at + chance.random() ** 2 * 4, stop, chance.randrange(clients), session, prompts))
        prompts += deed == "submit"
    for fault, rate in FAULTS:
        if chance.random() < rate:
            acts.append(_fault(chance, fault, chance.random() * (SPAN_S + 2)))
    plan = Plan(
        seed,
        chance.choice(("fifo", "random", "random", "priority")),
        clients,
        sessions,
        chance.choice(("resume", "resume", "end")),
        chance.choice((100, 100, 2)),
        chance.choice((1_000_000, 1_000_000, 3_000)),
        tuple(chance.choice(("allow", "allow", "deny", "allow_session", "silent")) for _ in range(clients)),
        tuple((chance.choice((None, None, 0)), chance.random() < 0.7) for _ in range(clients)),
        tuple(sorted(acts, key=lambda act: act.at)),
        seed % 32 == 0,
    )
    return _with_more(plan)


def _with_more(plan: Plan) -> Plan:
    """What came to be played later, with a chance of its own: so seeds that found something draw the same as then."""
    chance = random.Random(f"more of {plan.seed}")
    acts = list(plan.acts)
    if chance.random() < FULL_RATE:
        number = chance.choice([number for number, act in enumerate(acts) if act.kind == "submit"])
        acts[number] = replace(acts[number], script=_with_full_context(chance, acts[number].script))
    if chance.random() < SHELL_RATE:
        at = chance.choice(acts).at + chance.random() ** 2 * 4
        who = chance.randrange(plan.clients), chance.randrange(plan.sessions)
        acts.append(Act(at, "shell", *who, script=chance.choice(_TYPED)))
        if chance.random() < 0.4:
            acts.append(Act(at + chance.random(), "drop", who[0]))  # nobody waits for it any more
    if chance.random() < WAIT_RATE:
        asked = chance.choice([act for act in acts if act.kind == "submit"])
        acts.append(Act(asked.at + chance.random(), "wait", asked.client, asked.session, asked.run))
    if chance.random() < CLOCK_RATE:
        acts.append(Act(chance.random() * (SPAN_S + 2), "clock", for_s=DAY_S * chance.choice((-30, -1, 1, 30))))
    titles = chance.random() < TITLES_RATE
    if chance.random() < ORDER_RATE:
        acts += _reordered(chance, plan, sum(act.kind == "submit" for act in acts))
    return replace(plan, acts=tuple(sorted(acts, key=lambda act: act.at)), titles=titles)


def _reordered(chance: random.Random, plan: Plan, first: int) -> list[Act]:
    """Three prompts one behind the other, and the last is moved to the front: by chance alone few moves change much."""
    at, session = chance.random() * SPAN_S, chance.randrange(plan.sessions)
    asked = [
        Act(at + 0.05 * number, "submit", chance.randrange(plan.clients), session, first + number, when_busy="queue")
        for number in range(3)
    ]
    acts = [replace(act, script=f"p{act.run}:say 1 wait 1") for act in asked]
    move = Act(at + 0.3 + chance.random(), "move", chance.randrange(plan.clients), session, first + 2, first + 1)
    return [*acts, move]


def _with_full_context(chance: random.Random, script: str) -> str:
    name, _, steps = script.partition(":")
    rows = steps.split(";")
    full = chance.randrange(len(rows))
    return f"{name}:{';'.join([*rows[:full], f'full {rows[full]}', *rows[full + 1 :]])}"


def _deed(chance: random.Random, kind: Deed, at: float, client: int, session: int, prompts: int) -> Act:
    if kind != "submit":
        before = chance.randrange(prompts) if chance.random() < 0.6 else None
        return Act(at, kind, client, session, chance.randrange(prompts), before, for_s=chance.random() * 4)
    is_bound = chance.random() < 0.15
    steps = [chance.choice(_STEPS) for _ in range(chance.choice((0, 0, 0, 1, 1, 2)))]
    script = ";".join([*steps, chance.choice(_LAST_STEPS)])
    return Act(
        at,
        kind,
        client,
        session,
        prompts,
        script=f"p{prompts}:{script}",
        when_busy=chance.choice(_WHEN_BUSY),
        own_id=is_bound or chance.random() < 0.75,
        is_bound_to_client=is_bound,
    )


def _fault(chance: random.Random, kind: Fault, at: float) -> Act:
    match kind:
        case "store_faults":
            rates = (chance.choice((0.0, 0.1, 0.3)), chance.choice((0.0, 0.1, 0.3)), chance.choice((0.0, 0.1)))
            return Act(at, kind, for_s=chance.random() * 3, rates=rates)
        case "cuts":
            return Act(at, kind, for_s=chance.random() * 3, rates=(chance.choice((0.02, 0.1, 0.3)), 0.0, 0.0))
        case "kill":
            return Act(0.0, kind, run=chance.randint(1, 500), for_s=chance.random() * 2)
        case "nth":
            # Small plans write ten times or so, large ones sixty times: most of these come to pass in either.
            return Act(0.0, kind, run=1 + int(chance.random() ** 3 * 60), own_id=chance.random() < 0.5)
        case _:
            return Act(at, kind, for_s=chance.random() * 2)
