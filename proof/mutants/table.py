"""All seeded faults, by name. What each would mean for users is said beside it."""

from __future__ import annotations

from itertools import chain

from proof.mutants import table_around, table_engine, table_judged, table_steps, table_tests
from proof.mutants.apply import Mutant

ALL: tuple[Mutant, ...] = tuple(
    chain(
        *(table_engine.LANE, table_engine.DOOR, table_engine.OPENLANE, table_engine.RUNNER),
        *(table_steps.ASKING, table_steps.CALLS, table_steps.CLOSING, table_steps.DRAFT, table_steps.APPROVING),
        table_steps.ENGINE,
        *(table_around.FEED, table_around.WORKSPACES, table_around.STORE, table_around.SERVER, table_around.CLIENT),
        *(table_judged.DEEDS, table_judged.TOLD, table_judged.ANSWERED, table_judged.BESIDE, table_judged.REVIEWED),
        table_judged.REFUSED,
        *(table_tests.STORES, table_tests.CORE, table_tests.ENGINE, table_tests.SERVER, table_tests.WARDEN),
    )
)
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in ALL}

#: No faults: the same text again, by each way that a fault takes.
CONTROLS: tuple[Mutant, ...] = (
    Mutant("nothing, simulated", "core.lane", "latest = lane.next_seq - 1", "latest = lane.next_seq - 1", ""),
    Mutant("nothing, walked", "core.lane", "latest = lane.next_seq - 1", "latest = lane.next_seq - 1", "", "walk"),
    Mutant(
        "nothing, tested",
        "warden.child",
        "    os.setsid()\n",
        "    os.setsid()\n",
        "",
        "tests",
        (
            "tests/store/test_contract_approvals.py",
            "tests/warden/test_processes.py::test_a_process_leads_its_own_session_without_a_terminal",
            "tests/conformance/test_bad_access.py::test_from_a_foreign_page_no_route_answers",
        ),
    ),
)
