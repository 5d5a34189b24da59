"""The list of kept commands of a session, and how it is described."""

from __future__ import annotations

from msgspec.structs import replace

from kedge.core.approvals import Grant, Intent, IntentPart, parse_rules, permit
from kedge.core.kept_commands import KEPT_PER_SESSION_MAX, kept_now, kept_prompt, new_kept, state_text

RUNNING = new_kept("k1", "npm run dev\n", "r1", 1)
EXITED = replace(RUNNING, id="k2", state="exited", exit_code=1, ended_at=2)


def test_command_of_an_earlier_process_has_ended_with_it() -> None:
    assert kept_now((RUNNING, EXITED), {}) == (replace(RUNNING, state="server_stopped"), EXITED)
    assert kept_now((RUNNING, EXITED), {"k1": RUNNING}) == (RUNNING, EXITED)


def test_oldest_ended_commands_are_dropped_first() -> None:
    ended = [replace(EXITED, id=f"e{number}") for number in range(KEPT_PER_SESSION_MAX)]
    own = {"k1": RUNNING, "k9": replace(RUNNING, id="k9")}
    listed = kept_now((RUNNING, *ended), own)
    assert [one.id for one in listed] == ["k1", *(one.id for one in ended[2:]), "k9"]


def test_states_are_described() -> None:
    states = [
        RUNNING,
        EXITED,
        replace(EXITED, exit_code=-9),
        replace(EXITED, exit_code=None),
        replace(EXITED, state="ended"),
        replace(EXITED, state="server_stopped"),
    ]
    assert [state_text(entry) for entry in states] == [
        "is running",
        "has ended (exit code 1)",
        "has ended (signal 9)",
        "has ended",
        "was ended",
        "ended with its server",
    ]


def test_model_receives_the_commands_that_earlier_runs_kept() -> None:
    assert kept_prompt(()) == ""
    assert kept_prompt((RUNNING, EXITED)).splitlines()[-2:] == [
        "- k1 is running: $ npm run dev",
        "- k2 has ended (exit code 1): $ npm run dev",
    ]


def test_grant_or_reading_does_not_allow_to_outlive_the_run() -> None:
    npm, grep = IntentPart(("npm", "start")), IntentPart(("grep", "x"), is_read_only=True)
    intent = Intent(("bash",), "execute", "", "", "", "", "", parts=(npm, grep), outlives_run=True)
    grants = (Grant("g", "w", "", "bash(npm start)", 0),)
    assert permit(replace(intent, outlives_run=False), parse_rules([], []), grants).decision == "allow"
    assert permit(intent, parse_rules([], []), grants).decision == "ask"
    assert permit(intent, parse_rules(["bash(npm start)"], []), ()).decision == "allow"
    assert permit(replace(intent, parts=(grep,)), parse_rules([], []), ()).decision == "ask"
