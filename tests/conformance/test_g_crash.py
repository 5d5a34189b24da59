"""SCENARIOS G: kill -9, and the recovery by the next process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx2
import pytest

from kedge.core.commands import RESUMES_MAX
from tests.conformance.harness import WAIT_S, Endpoint, Json, Peer, Server, Stream, finish_of, outline, text_of, unique
from tests.conformance.watching import another, check_history, words


async def replay(peer: Peer) -> Stream:
    """Read the whole log again."""
    last = await peer.session("the last event")
    async with peer.stream(after=0) as stream:
        await stream.until(lambda stream: any(frame.payload.get("id") == last for frame in stream.of("session")))
    return stream


async def check_ended_once(peer: Peer, run_ids: Iterable[str]) -> None:
    """Check that each Run has ended with one terminal event that agrees with the Run."""
    log = await replay(peer)
    assert log.positions == sorted(set(log.positions))
    for run in await asyncio.gather(*map(peer.run, run_ids)):
        run_id = run["run_id"]
        assert run["state"] == "ended"
        (complete,) = log.completes(run_id)
        assert (complete["outcome"], complete["text"]) == (run["outcome"], run["text"])
        ends = [frame for frame in log.of("run") if frame.payload["run_id"] == run_id]
        assert ends[-1].payload["state"] == "ended"


async def check_next_prompt(peer: Peer, endpoint: Endpoint, session: str) -> None:
    """Check that the session accepts a prompt, and that its model request is valid."""
    tag = unique("next")
    receipt = await peer.submit(session, f"script: tag {tag} | say next", run_id=unique("run"))
    run = await peer.wait(receipt["run_id"])
    assert (run["outcome"], run["text"]) == ("completed", "next")
    (request,) = endpoint.requests(tag)
    check_history(request.messages)


# --- G1: every phase at once -----------------------------------------------------------------------------------------


class Phases:
    """One session per phase of a Run. `keys` release them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.key = unique("key")
        self.tags: dict[str, str] = {}
        self.sessions: dict[str, str] = {}
        self.runs: dict[str, list[str]] = {}

    async def submit(self, peer: Peer, phase: str, script: str, *, own_id: bool = True) -> None:
        if phase not in self.sessions:
            self.sessions[phase], self.tags[phase], self.runs[phase] = await peer.session(phase), unique("tag"), []
        prompt = f"script: tag {self.tags[phase]} | {script}" if own_id else script
        named: Json = {"run_id": unique("run")} if own_id else {}
        receipt = await peer.submit(self.sessions[phase], prompt, **named)
        self.runs[phase].append(receipt["run_id"])

    async def begin(self, peer: Peer, stream: Stream) -> None:
        hold, wait = f"hold {self.key}", self.endpoint.wait_requests
        await self.submit(peer, "ended", "say over")
        await stream.until_complete(*self.runs["ended"])
        await self.submit(peer, "silent model", f"{hold} | say answer")
        await self.submit(peer, "model stream", f"pause 5 | words 100 | {hold} | say and more")
        await self.submit(peer, "between steps", f"say looking | tool nothing {{}} | {hold} | say found")
        for number in range(3):
            await self.submit(peer, "queue", f"{hold} | say answer {number}")
        await self.submit(peer, "fold", f"{hold} | say never said")
        await wait(self.tags["fold"], 1)  # else the first Step may already fold the next prompt
        await self.submit(peer, "fold", "a word more", own_id=False)
        for phase in ("silent model", "model stream", "queue"):
            await wait(self.tags[phase], 1)
        await wait(self.tags["between steps"], 2)
        await stream.until(
            lambda stream: any(
                text_of(frame.payload) == words(100) and frame.payload["session_id"] == self.sessions["model stream"]
                for frame in stream.of("message")
            )
        )
        await self.submit(peer, "accept", f"{hold} | say accepted")

    @property
    def all_runs(self) -> list[str]:
        return [run_id for runs in self.runs.values() for run_id in runs]


@pytest.mark.parametrize("on_crash", ["resume", "end"])
async def test_g1_after_a_kill_in_every_phase_all_runs_end_once(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, on_crash: str
) -> None:
    server = own_server(f'[runs]\non_crash = "{on_crash}"')
    phases = Phases(endpoint)
    async with server.peer(workspace) as peer, peer.stream(after=0) as stream:
        await phases.begin(peer, stream)
        server.kill()
        before = peer.workspace
    server.start()
    async with server.peer(workspace) as peer:
        assert peer.workspace == before
        for run_id in phases.all_runs:
            assert (await peer.run(run_id))["state"] in ("queued", "active", "ended")
        live = {run["run_id"] for run in await peer.call("GET", "/runs")}
        assert live <= set(phases.all_runs)
        endpoint.release(phases.key)
        runs = {phase: [await peer.wait(run_id) for run_id in of_phase] for phase, of_phase in phases.runs.items()}
        said = {phase: [(run["outcome"], run["text"]) for run in of_phase] for phase, of_phase in runs.items()}
        if on_crash == "resume":
            assert said == {
                "ended": [("completed", "over")],
                "silent model": [("completed", "answer")],
                "model stream": [("completed", f"{words(100)} and more")],
                "between steps": [("completed", "found")],
                "queue": [("completed", f"answer {number}") for number in range(3)],
                "fold": [("completed", "You said: a word more")] * 2,
                "accept": [("completed", "accepted")],
            }
            assert runs["fold"][1]["folded_into"] == runs["fold"][0]["run_id"]
        else:
            # A Run without a Step is resumed: nothing was done, so nothing can be repeated.
            assert said.pop("accept") in ([("completed", "accepted")], [("interrupted", "")])
            ((outcome, kept),) = said.pop("model stream")
            assert outcome == "interrupted"
            check_kept(kept)
            assert said == {
                "ended": [("completed", "over")],
                "silent model": [("interrupted", "")],
                "between steps": [("interrupted", "")],
                "queue": [("interrupted", ""), ("completed", "answer 1"), ("completed", "answer 2")],
                "fold": [("interrupted", ""), ("completed", "You said: a word more")],
            }
        await check_ended_once(peer, phases.all_runs)
        for phase, session in phases.sessions.items():
            await check_next_prompt(peer, endpoint, session)
            for request in endpoint.requests(phases.tags[phase]):
                check_history(request.messages)
            assert not (await peer.call("GET", f"{peer.at}/sessions/{session}"))["is_busy"]
        await check_transcripts(peer, phases, on_crash)


def check_kept(text: str) -> None:
    """Check that a prefix of half a second of text is stored, and not nothing. G6 checks how much."""
    assert text
    assert words(100).startswith(text)


async def check_transcripts(peer: Peer, phases: Phases, on_crash: str) -> None:
    """Check that every message has ended, and that text a client has seen is stored."""
    for session in phases.sessions.values():
        for message in await peer.messages(session):
            assert message["role"] != "assistant" or finish_of(message)
    streamed = outline(await peer.messages(phases.sessions["model stream"]))
    assert (streamed[1][0], streamed[1][2]) == ("assistant", "error")
    check_kept(streamed[1][1])
    if on_crash == "resume":
        assert streamed[2] == ("assistant", f"{words(100)} and more", "end_turn")
    steps = await peer.messages(phases.sessions["between steps"])
    assert [message["role"] for message in steps][:4] == ["user", "assistant", "tool", "assistant"]
    assert finish_of(steps[1]) == "tool_use"


# --- G1: random moments ----------------------------------------------------------------------------------------------


async def test_g1_kills_at_random_moments_lose_and_double_nothing(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    """Short Runs in short queues, so that kills hit ends, starts, steps and accepts."""
    chance = random.Random(11)
    server = own_server()
    sent: dict[str, str] = {}
    sessions: list[str] = []
    for _ in range(4):
        async with server.peer(workspace) as peer, peer.stream() as stream:
            sessions = sessions or [await peer.session() for _ in range(8)]
            moment = chance.randrange(1, 14)
            await submit_short_runs(peer, sessions, sent, chance)
            await stream.until(lambda stream, moment=moment: len(stream.of("run_complete")) >= moment)  # type: ignore[misc]
            server.kill()
        server.start()
    async with server.peer(workspace) as peer:
        for run_id, expected in sent.items():
            run = await peer.wait(run_id)
            assert (run["outcome"], run["text"]) == ("completed", expected)
        await check_ended_once(peer, sent)
        for session in sessions:
            # In the order of acceptance, none missing, none twice.
            mine = [run for run in await peer.runs(session) if run["run_id"] in sent]
            prompts = [message["run_id"] for message in await peer.messages(session) if message["role"] == "user"]
            assert prompts == [run["run_id"] for run in sorted(mine, key=lambda run: int(run["seq"]))]
            await check_next_prompt(peer, endpoint, session)


async def submit_short_runs(peer: Peer, sessions: list[str], sent: dict[str, str], chance: random.Random) -> None:
    async def submit(session: str) -> None:
        for _ in range(2):
            run_id, answer = unique("run"), unique("answer")
            steps = "tool nothing {} | " * chance.randrange(3)
            await peer.submit(session, f"script: {steps}say {answer}", run_id=run_id)
            sent[run_id] = answer

    await asyncio.gather(*(submit(session) for session in sessions))


@pytest.mark.parametrize("on_crash", ["resume", "end"])
async def test_g1_a_cancelled_run_ends_cancelled_after_a_restart(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, on_crash: str
) -> None:
    """The kill comes after some of the replies: those cancels are durable, the others may be."""
    tag, key, count = unique("tag"), unique("key"), 24
    server = own_server(f'[runs]\non_crash = "{on_crash}"')
    async with server.peer(workspace) as peer:
        sessions = [await peer.session() for _ in range(count)]
        prompts = (f"script: tag {tag} | say shown | hold {key} | say more", "script: say late")
        active, behind = [
            {session: (await peer.submit(session, prompt, run_id=unique("run")))["run_id"] for session in sessions}
            for prompt in prompts
        ]
        await endpoint.wait_open(tag, count)
        replies: dict[str, Json] = {}

        async def cancel(session: str) -> None:
            try:
                replies[session] = await peer.cancel(session)
            except httpx2.TransportError:
                assert len(replies) >= count // 3, "no connection is lost before the kill"
                return
            if len(replies) == count // 3:
                server.kill()

        await asyncio.gather(*(cancel(session) for session in sessions))
        assert len(replies) >= count // 3
    server.start()
    endpoint.release(key)
    async with server.peer(workspace) as peer:
        for session in sessions:
            outcomes = [(await peer.wait(runs[session]))["outcome"] for runs in (active, behind)]
            if session in replies:
                assert len(replies[session]["covered"]) == 2
                assert outcomes == ["cancelled", "cancelled"]
                finishes = [finish_of(message) for message in await peer.messages(session)]
                assert finishes == [None, "canceled"] * 2
            else:
                spared = "completed" if on_crash == "resume" else "interrupted"
                assert outcomes in (["cancelled", "cancelled"], [spared, "completed"])
        await check_ended_once(peer, [*active.values(), *behind.values()])
        await check_next_prompt(peer, endpoint, sessions[0])


async def test_g1_a_run_that_crashes_the_server_is_given_up(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    tag = unique("tag")
    server = own_server()
    async with server.peer(workspace) as peer:
        session = await peer.session()
        fatal = (await peer.submit(session, f"script: tag {tag} | say boom | hang"))["run_id"]
        behind = (await peer.submit(session, "script: say alive", run_id=unique("run")))["run_id"]
    for attempt in range(1, RESUMES_MAX + 2):
        await endpoint.wait_requests(tag, attempt)
        server.kill()
        server.start()
    async with server.peer(workspace) as peer:
        assert (await peer.wait(fatal))["outcome"] == "interrupted"
        assert (await peer.wait(behind))["text"] == "alive"
        assert len(endpoint.requests(tag)) == RESUMES_MAX + 1
        await check_ended_once(peer, [fatal, behind])


async def test_g1_early_ends_after_a_restart_keep_the_workspace_open(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    """Each Run ends as soon as it is resumed, while the server recovers the next one. Without a grace, only the Runs
    keep the workspace open."""
    tag, key = unique("tag"), unique("key")
    server = own_server("[server]\ngrace_s = 0")
    async with server.peer(workspace) as peer:
        prompt = f"script: tag {tag} | hold {key} | say quick"
        runs = [(await peer.submit(await peer.session(), prompt))["run_id"] for _ in range(60)]
        await endpoint.wait_open(tag, 60)
        server.kill()
    endpoint.release(key)
    server.start()
    async with server.peer(workspace) as peer:
        await another(peer).open()  # keeps it open for the checks
        for run_id in runs:
            assert (await peer.wait(run_id))["text"] == "quick"
        await check_ended_once(peer, runs)


async def test_g1_clients_get_a_new_grace_after_a_restart(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    """With `on_disconnect: cancel`: the streams were lost with the process, not closed by the clients."""
    tag, key = unique("tag"), unique("key")
    server = own_server("[server]\ngrace_s = 5")
    async with server.peer(workspace) as peer, peer.stream():
        prompt = f"script: tag {tag} | hold {key} | say still wanted"
        receipt = await peer.submit(await peer.session(), prompt, on_disconnect="cancel")
        await endpoint.wait_open(tag)
        server.kill()
    server.start()
    async with server.peer(workspace) as peer, peer.stream() as stream:
        endpoint.release(key)
        run = await peer.wait(receipt["run_id"])
        assert (run["outcome"], run["text"]) == ("completed", "still wanted")
        assert not stream.of("agent_event")


async def test_g1_an_abandoned_run_is_cancelled_after_a_crash(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    tag = unique("tag")
    server = own_server("[server]\ngrace_s = 0.3")
    async with server.peer(workspace) as peer, peer.stream():
        receipt = await peer.submit(await peer.session(), f"script: tag {tag} | hang", on_disconnect="cancel")
        await endpoint.wait_open(tag)
        server.kill()
    await endpoint.wait_open(tag, 0)
    server.start()
    async with server.http() as http:
        async with asyncio.timeout(WAIT_S):
            while (await http.get("/v1/runs")).json():
                pass
        peer = await Peer(http, workspace).open()
        assert (await peer.run(receipt["run_id"]))["outcome"] == "cancelled"


# --- G6 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_crash", ["resume", "end"])
async def test_g6_text_already_shown_survives_a_kill(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, on_crash: str
) -> None:
    """All but about the last 0.25 s: 50 words at 5 ms each; twice that on a busy machine."""
    server = own_server(f'[runs]\non_crash = "{on_crash}"')
    async with server.peer(workspace) as peer, peer.stream(deltas=1) as stream:
        session = await peer.session()
        await peer.submit(session, "script: pause 5 | words 2000")
        message_id = await stream.until(
            lambda stream: stream.of("delta") and stream.of("delta")[0].payload["message_id"]
        )
        await stream.until(lambda stream: len(stream.text(message_id).split()) >= 150)
        server.kill()
        shown = stream.text(message_id)
    server.start()
    async with server.peer(workspace) as peer:
        stored = next(message for message in await peer.messages(session) if message["id"] == message_id)
        assert words(2000).startswith(text_of(stored))
        assert words(2000).startswith(shown)
        assert len(text_of(stored).split()) >= len(shown.split()) - 100
        assert finish_of(stored) == "error"
        if on_crash == "resume":
            await peer.cancel(session)


# --- a hundred Runs --------------------------------------------------------------------------------------------------


async def test_g1_a_kill_during_a_hundred_runs_loses_none(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    tag = unique("tag")
    server = own_server()
    async with server.peer(workspace) as peer, peer.stream(deltas=1) as stream:
        sessions = await asyncio.gather(*(peer.session() for _ in range(100)))
        lengths = {session: 10 + number for number, session in enumerate(sessions)}
        receipts = await asyncio.gather(
            *(
                peer.submit(session, f"script: tag {tag} | pause 10 | words {length}", run_id=unique("run"))
                for session, length in lengths.items()
            )
        )
        await stream.until(lambda stream: len(stream.of("run_complete")) >= 30)
        server.kill()
    server.start()
    async with server.peer(workspace) as peer:
        found = await asyncio.gather(*(peer.run(receipt["run_id"]) for receipt in receipts))
        assert {run["state"] for run in found} <= {"active", "ended"}
        assert sum(run["state"] == "ended" for run in found) >= 30
        runs = await asyncio.gather(*(peer.wait(receipt["run_id"]) for receipt in receipts))
        for run in runs:
            assert (run["outcome"], run["text"]) == ("completed", words(lengths[run["session_id"]]))
        await check_ended_once(peer, [run["run_id"] for run in runs])
        for transcript in await asyncio.gather(*map(peer.messages, sessions)):
            roles = [message["role"] for message in transcript]
            assert roles in (
                ["user", "assistant"],
                ["user", "assistant", "assistant"],
            )  # the second: interrupted and repeated
        assert 100 < len(endpoint.requests(tag)) <= 200 - 30
        assert endpoint.open(tag) == 0
