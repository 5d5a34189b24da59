"""SCENARIOS A: accept."""

from __future__ import annotations

from tests.conformance.harness import Endpoint, Peer, outline, unique


async def test_a1_a_prompt_is_answered_at_once_while_the_model_is_silent(kedge: Peer, endpoint: Endpoint) -> None:
    tag, key = unique("tag"), unique("key")
    session = await kedge.session()
    receipt = await kedge.submit(session, f"script: tag {tag} | hold {key} | say hello")
    assert receipt["state"] == "active"
    assert receipt["seq"] == 1
    await endpoint.wait_open(tag)
    assert (await kedge.run(receipt["run_id"]))["state"] == "active"
    endpoint.release(key)
    run = await kedge.wait(receipt["run_id"])
    assert (run["outcome"], run["text"]) == ("completed", "hello")
    transcript = outline(await kedge.messages(session))
    assert transcript[1] == ("assistant", "hello", "end_turn")
