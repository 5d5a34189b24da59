"""Many Runs, prompts, child agents and waiting clients at once: each Run ends once, and in the order shown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from proof.figures import IS_LONG, proof, size
from tests.conformance.harness import Endpoint, Json, Peer, Server, Stream, results_of, unique
from tests.conformance.loops import Address, Wire, address_of
from tests.conformance.rounds import Ends
from tests.conformance.test_b_tools import processes_with
from tests.conformance.test_c_queue import end_order, held_run
from tests.conformance.test_g_crash import check_ended_once
from tests.conformance.test_i_agent import call
from tests.conformance.watching import open_files, words

#: Longer than any of these takes while other proofs run. Seconds.
LOAD_S = 120.0
#: Runs that may wait in a session: the default of `queue_runs_max`. Items.
QUEUE_MAX = 100

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600 if IS_LONG else 180)]


async def ended(stream: Stream, run_ids: list[str]) -> list[Json]:
    """Wait for the ends of all Runs, check that there is one of each, and return them."""
    ends = Ends(stream)
    await stream.until(lambda _: len(ends.all()) >= len(run_ids), LOAD_S)
    assert {run_id: len(completes) for run_id, completes in ends.all().items()} == dict.fromkeys(run_ids, 1)
    return [ends.of(run_id)[0] for run_id in run_ids]


# --- one queue --------------------------------------------------------------------------------------------------------


async def change_queue(
    address: Address, peer: Peer, session: str, run_ids: list[str], own: list[str], number: int, changes: int
) -> dict[str, str]:
    """Move any Run, edit the Runs in `own`, and list the queue. Returns the last text of each edited Run."""
    chance, wire, texts = random.Random(number), Wire(address), dict[str, str]()
    for change in range(changes):
        run_id = chance.choice(run_ids)
        match chance.randrange(3):
            case 0:
                before = chance.choice([None, *run_ids])
                await wire.expect(200, "POST", f"{peer.at}/agent/runs/{run_id}/move", {"before": before})
            case 1 if own:
                run_id, text = chance.choice(own), f"edit-{number}-{change}"
                await wire.expect(200, "PATCH", f"{peer.at}/agent/runs/{run_id}", {"prompt": f"script: say {text}"})
                texts[run_id] = text
            case _:
                runs = await wire.expect(200, "GET", f"{peer.at}/agent/sessions/{session}/runs")
                orders = [run["queue_order"] for run in runs if run["state"] == "queued"]
                assert len(orders) == len(set(orders)) == len(run_ids)
    wire.close()
    return texts


async def test_full_queue_keeps_one_order_under_many_changes(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, many_files: None
) -> None:
    prompts, clients, changes = size(150, 1_000), size(8, 40), size(25, 100)
    server = own_server()
    address = address_of(server.url, server.token)
    with proof(
        "G1", "prompts at once to one session, and changes of its queue", "lost, doubled or out of order"
    ) as figure:
        async with server.peer(workspace) as peer, peer.stream() as stream:
            session = await peer.session()
            active, _, key = await held_run(peer, endpoint, session)
            texts = {unique("run"): f"text-{number}" for number in range(prompts)}
            replies = await asyncio.gather(
                *(
                    peer.reply(
                        "POST",
                        f"{peer.at}/agent",
                        {"session_id": session, "prompt": f"script: say {text}", "run_id": run_id},
                    )
                    for run_id, text in texts.items()
                )
            )
            refused = [reply.json()["code"] for reply in replies if reply.status_code == 429]
            run_ids = [reply.json()["run_id"] for reply in replies if reply.status_code == 202]
            assert (len(run_ids), refused) == (QUEUE_MAX, ["queue_full"] * (prompts - QUEUE_MAX))
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        change_queue(address, peer, session, run_ids, run_ids[number::clients], number, changes)
                    )
                    for number in range(clients)
                ]
            for task in tasks:
                texts |= task.result()
            runs = [run for run in await peer.runs(session) if run["state"] == "queued"]
            order = [run["run_id"] for run in sorted(runs, key=lambda run: run["queue_order"])]
            endpoint.release(key)
            completes = await ended(stream, [active, *order])
            assert end_order(stream) == [active, *order]
            assert [complete["text"] for complete in completes[1:]] == [texts[run_id] for run_id in order]
            assert stream.positions == sorted(set(stream.positions))
        figure.count = prompts + clients * changes


# --- many sessions ----------------------------------------------------------------------------------------------------


async def test_many_active_runs_survive_cancels_and_a_kill(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, many_files: None
) -> None:
    count, tag, key = size(40, 500), unique("tag"), unique("key")
    server = own_server()
    with proof("G1", "Runs that are active at once, half cancelled, half killed", "lost or doubled") as figure:
        async with server.peer(workspace) as peer, peer.stream() as stream:
            sessions = await asyncio.gather(*(peer.session() for _ in range(count)))
            script = f"script: tag {tag} | say a | hold {key} | say done"
            receipts = await asyncio.gather(*(peer.submit(session, script) for session in sessions))
            run_ids = [receipt["run_id"] for receipt in receipts]
            await endpoint.wait_open(tag, count)
            await asyncio.gather(*map(peer.cancel, sessions[::2]))
            completes = await ended(stream, run_ids[::2])
            assert {(end["outcome"], end["cleanup"]) for end in completes} == {("cancelled", "clean")}
            live = [run["run_id"] for run in await peer.call("GET", "/runs")]
            assert sorted(live) == sorted(run_ids[1::2])
            await endpoint.wait_open(tag, count // 2)
            server.kill()
        await endpoint.wait_open(tag, 0)
        server.start()
        async with server.peer(workspace) as peer:
            await endpoint.wait_open(tag, count // 2)
            endpoint.release(key)
            runs = await asyncio.gather(*map(peer.wait, run_ids[1::2]))
            assert {(run["outcome"], run["text"]) for run in runs} == {("completed", "a done")}
            await check_ended_once(peer, run_ids)
        figure.count = count


async def test_many_child_agents_end_with_their_parents(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, many_files: None
) -> None:
    parents, calls, steps, tag = size(2, 4), size(8, 128), 2, unique("tag")
    server = own_server()
    server.checks_stalls = False

    def agents(step: int) -> str:
        prompts = (f"script: say finding-{step}-{number}" for number in range(calls))
        return " | ".join(call("agent", prompt=prompt, description="x") for prompt in prompts)

    with proof("G1", "child agents at once", "lost, doubled, or left by their parent") as figure:
        async with server.peer(workspace) as peer, peer.stream() as stream:
            script = " | step | ".join(agents(step) for step in range(steps))
            sessions = [await peer.session() for _ in range(parents)]
            receipts = [await peer.submit(session, f"script: {script} | say all") for session in sessions]
            run_ids = [receipt["run_id"] for receipt in receipts]
            total = parents * (1 + steps * calls)
            ends = Ends(stream)
            await stream.until(lambda _: len(ends.all()) >= total, LOAD_S)
            assert {len(completes) for completes in ends.all().values()} == {1}
            assert {end["outcome"] for (end,) in ends.all().values()} == {"completed"}
            assert [ends.of(run_id)[0]["text"] for run_id in run_ids] == ["all"] * parents
            findings = [f"finding-{step}-{number}" for step in range(steps) for number in range(calls)]
            for session in sessions:
                results = results_of(await peer.messages(session))
                assert sorted(result["content"] for result in results) == sorted(findings)
            held = " | ".join([call("agent", prompt=f"script: tag {tag} | say x | hang", description="x")] * calls)
            run_id = (await peer.submit(sessions[0], f"script: {held} | say never"))["run_id"]
            await endpoint.wait_open(tag, calls)
            await peer.cancel(sessions[0])
            (complete,) = await stream.until_complete(run_id)
            assert (complete["outcome"], complete["cleanup"]) == ("cancelled", "clean")
            await stream.until(lambda _: len(ends.all()) == total + 1 + calls, LOAD_S)
            await endpoint.wait_open(tag, 0)
            assert await peer.call("GET", "/runs") == []
            assert stream.positions == sorted(set(stream.positions))
        figure.count = total + 1 + calls


async def test_many_waiting_clients_are_answered_at_the_end(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, many_files: None
) -> None:
    count = size(100, 3_000)
    server = own_server()
    address = address_of(server.url, server.token)
    with proof("G15", "clients that wait for one Run", "not answered") as figure:
        async with server.peer(workspace) as peer:
            session = await peer.session()
            run_id, _, _ = await held_run(peer, endpoint, session)
            wires = [Wire(address) for _ in range(count)]
            path = f"{peer.at}/agent/runs/{run_id}/wait?timeout_s={LOAD_S}"
            waiting = [asyncio.create_task(wire.expect(200, "GET", path)) for wire in wires]
            while open_files(server.pid) < count:
                await peer.run(run_id)
            await peer.cancel(session)
            runs = await asyncio.gather(*waiting)
            assert {(run["run_id"], run["outcome"]) for run in runs} == {(run_id, "cancelled")}
            for wire in wires:
                wire.close()
        figure.count = count


async def test_many_commands_at_once_have_their_own_results(
    own_server: Callable[..., Server], workspace: Path, many_files: None
) -> None:
    sessions, calls = size(2, 10), size(8, 128)
    server = own_server()
    server.checks_stalls = False
    with proof("G5", "commands at once", "wrong, lost or left") as figure:
        async with server.peer(workspace) as peer, peer.stream() as stream:
            mark, run_ids = unique("mark"), dict[str, str]()
            for number in range(sessions):
                session = await peer.session()
                echo = (f"export KEDGE_MARK={mark}; sleep 0.1; echo {number}-{index}" for index in range(calls))
                script = " | ".join(call("bash", command=command) for command in echo)
                receipt = await peer.submit(session, f"script: {script} | say done", mode="yolo")
                run_ids[session] = receipt["run_id"]
            completes = await ended(stream, list(run_ids.values()))
            assert {(end["outcome"], end["cleanup"]) for end in completes} == {("completed", "clean")}
            for number, session in enumerate(run_ids):
                results = [result["content"] for result in results_of(await peer.messages(session))]
                assert sorted(results) == sorted(f"{number}-{index}" for index in range(calls))
            assert processes_with(mark) == []
        assert "the process keeper does not answer" not in server.log
        figure.count = sessions * calls


async def test_many_fast_streams_deliver_every_word(own_server: Callable[..., Server], workspace: Path) -> None:
    runs, count = size(3, 10), size(1_000, 100_000)
    server = own_server()
    server.checks_stalls = False
    with proof("G4", "words of concurrent streams at full speed", "lost, doubled or out of order") as figure:
        async with server.peer(workspace) as peer, peer.stream(deltas=1) as stream:
            sessions = [await peer.session() for _ in range(runs)]
            receipts = await asyncio.gather(*(peer.submit(session, f"script: words {count}") for session in sessions))
            completes = await ended(stream, [receipt["run_id"] for receipt in receipts])
            text = words(count)
            assert {(end["outcome"], end["text"]) for end in completes} == {("completed", text)}
            for end in completes:
                assert stream.text(end["message_id"]) == text
            assert stream.positions == sorted(set(stream.positions))
        figure.count = runs * count
