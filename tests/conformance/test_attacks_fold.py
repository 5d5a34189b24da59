"""Attacks by folding: a prompt that joins a Run with more permissions."""

from __future__ import annotations

import pytest

from tests.conformance.harness import Json, Peer
from tests.conformance.test_i_agent import call


@pytest.mark.found(
    "attack: a prompt folded into a Run with more permissions",
    "a prompt that joined an active Run got the permissions of that Run: its own deny rules did not hold, and a host "
    "that skipped approvals skipped them for it; now a rule that denies for one denies for all, and only what all "
    "allow is allowed",
)
@pytest.mark.parametrize("mode", [None, "ask", "edits"])
async def test_a_folded_prompt_keeps_its_own_rules(kedge: Peer, mode: str | None) -> None:
    session = await kedge.session()
    wait = call("bash", command="touch ready; while [ ! -e go ]; do sleep 0.05; done")
    async with kedge.stream(session_id=session, deltas=1) as stream:
        host = (await kedge.submit(session, f"script: {wait} | step | say over", mode="yolo"))["run_id"]
        await stream.until(lambda stream: stream.of("progress"))
        script = f"script: {call('bash', command='touch denied')} | {call('bash', command='touch unasked')} | say over"
        options: Json = {"deny": ["bash(touch denied)"], "on_approval": "fail", "when_busy": "fold"}
        options |= {"mode": mode} if mode else {}
        joining = kedge.submit(session, script, **options)
        joined = (await joining)["run_id"]
        (kedge.directory / "go").touch()
        (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        await kedge.answer(asked.payload["id"], "deny")
        await stream.until_complete(host)
    assert (await kedge.run(joined))["folded_into"] == host
    assert "touch unasked" in asked.payload["params"]["command"]
    assert not (kedge.directory / "denied").exists()
    assert not (kedge.directory / "unasked").exists()
