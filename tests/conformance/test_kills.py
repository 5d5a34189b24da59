"""G3 and G4 with real processes: servers on one data directory are killed in every phase, again and again, while
clients submit, cancel, answer, and resume their streams. Every promise to a client is checked."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from kedge.core.commands import RESUMES_MAX
from proof.figures import IS_LONG, proof
from tests.conformance.harness import WAIT_S, Endpoint, Json, text_of, unique
from tests.conformance.loops import (
    Address,
    Envelope,
    Follower,
    Leaving,
    Lost,
    Nest,
    Refused,
    Wire,
    nest,
    open_workspace,
    replay,
    seeds,
    whole_log,
)
from tests.conformance.test_i_agent import call
from tests.conformance.watching import words

#: Phase -> (the event that a client sees, the most of those, the longest delay of the kill in seconds).
PHASES: dict[str, tuple[str, int, float]] = {
    "start-up and recovery": ("", 0, 0.6),
    "just recovered": ("listening", 1, 0.02),
    "accepting": ("accepted", 6, 0.004),
    "streaming": ("shown", 60, 0.02),
    "a text's checkpoint": ("shown", 1, 1.5),
    "tool running": ("tool output", 1, 0.02),
    "approval pending": ("asked", 2, 0.01),
    "answering": ("answering", 2, 0.01),
    "cancelling": ("cancelling", 4, 0.02),
    "finishing": ("ended", 5, 0.004),
    "shutting down": ("accepted", 6, 0.05),
    "the store's checkpoint": ("accepted", 4, 0.1),
}
#: Texts are saved every 0.2 s; the rest is for a busy machine. Seconds.
LOSS_S_MAX = 1.0
#: Processes of a Run: the first one and its resumptions. A Run that is killed in all of them is given up. Items.
LIVES_MAX = 1 + RESUMES_MAX
#: Filler of a prompt, so that a few prompts fill the WAL and force a checkpoint. Bytes.
LARGE_BYTES = 300_000
#: Printed repeatedly: progress is transient, and a stream that is opened later does not show it.
SAY_BEGUN = "for _ in $(seq 100); do echo begun; sleep 0.1; done"
#: A start takes at least 30 ms: some kills within this time come before the server listens. Seconds.
EARLY_S = 0.05
ASKED_FOR_TOOLS = ("tool running",)
ASKED_FOR_ANSWERS = ("approval pending", "answering")


def phase_of(seed: int) -> tuple[str, bool]:
    """Return the phase of a round, and whether the kill uses its first event, which always occurs: a quarter does."""
    return list(PHASES)[seed % len(PHASES)], seed // len(PHASES) % 4 == 0


@dataclass
class Sent:
    """One prompt, and the knowledge of its client."""

    run_id: str
    session: str
    #: The expected text of a completed Run; None: it depends on the events.
    expected: str | None
    is_accepted: bool = False
    cancel: str = "none"  # or "sent", or "acknowledged"
    kills: int = 0
    was_terminated: bool = False


@dataclass
class Shown:
    """The text of a streaming message that a client has seen."""

    session: str
    text: str = ""
    killed_at: float = 0.0
    #: (time, number of characters) of each growth.
    grew: list[tuple[float, int]] = field(default_factory=list)


class Siege:
    def __init__(self, nest: Nest, endpoint: Endpoint, directory: Path) -> None:
        self.nest, self.endpoint, self.directory = nest, endpoint, directory
        self.effects, self.key = directory / "effects.txt", unique("key")
        self.address: Address | None = None
        self.workspace = self.phase = ""
        self.kills = self.kills_before_it_listened = 0
        #: Kills by phase that hit the moment of the phase, and not the end of the round.
        self.met: Counter[str] = Counter()
        self.sent: dict[str, Sent] = {}
        #: Not checked since the last kill.
        self.fresh: list[Sent] = []
        self.ended: set[str] = set()
        #: Runs whose command has started.
        self.begun: dict[str, asyncio.Event] = {}
        self.asks: dict[str, str] = {}
        self.answering: set[asyncio.Task[None]] = set()
        #: Of this process and of earlier ones, not compared with the store yet.
        self.shown: dict[str, Shown] = {}
        self.cut_off: list[tuple[str, Shown]] = []
        self.loss_s = 0.0
        self.followers: list[Follower] = []
        self._countdown, self._delay_s, self._is_due, self._is_early = 0, 0.0, False, False
        self._killed_at, self._is_down = 0.0, False
        #: Of the present server: it was killed, or asked to shut down. Any other failure is a fault.
        self._is_killed, self._is_leaving = False, False
        self._chance = random.Random(0)

    # --- the moment ----------------------------------------------------------------------------------------------

    def saw(self, what: str) -> None:
        """Count an event that a phase waits for."""
        if self._is_due or what != PHASES[self.phase][0]:
            return
        self._countdown -= 1
        if self._countdown <= 0:
            self._is_due = True
            if self.phase == "shutting down":
                for sent in self.sent.values():
                    sent.was_terminated = sent.was_terminated or sent.run_id not in self.ended
                self._is_leaving = True
                self.nest.signal(SIGTERM)
            asyncio.get_running_loop().call_later(self._delay_s, self._kill, self.nest.pid)

    def _kill(self, pid: int) -> None:
        if pid == self.nest.pid:
            self._is_killed, self._killed_at = True, asyncio.get_running_loop().time()
            self.nest.signal()

    async def round(self, seed: int) -> None:
        self._chance = chance = random.Random(seed)
        self.phase, self._is_early = phase_of(seed)
        _, count, delay_s = PHASES[self.phase]
        self._countdown = 1 if self._is_early else chance.randint(1, max(count, 1))
        self._delay_s = chance.uniform(0, EARLY_S if self._is_early and not count else delay_s)
        self._is_due, self._is_killed, self._is_leaving = False, False, False
        await self.nest.start()
        if self.phase == "start-up and recovery":
            asyncio.get_running_loop().call_later(self._delay_s, self._kill, self.nest.pid)
        else:
            await self.live()
        code = await self.nest.gone()
        self.address = None
        for sent in self.sent.values():
            sent.kills += sent.run_id not in self.ended
        for message_id, shown in self.shown.items():
            shown.killed_at = self._killed_at
            self.cut_off.append((message_id, shown))
        self.shown = {}
        assert code == -9 or (code == 0 and self._is_leaving), f"the server exited unexpectedly with {code}"
        self.kills += code == -9
        if self.phase == "start-up and recovery":
            self.met[self.phase] += 1  # the kill has no event: any moment is right
            self.kills_before_it_listened += not self.nest.has_listened

    async def live(self) -> None:
        """Run one server up to the kill."""
        self.address = await self.nest.listening()
        assert self.address is not None
        wire = Wire(self.address)
        following: list[asyncio.Task[None]] = []
        try:
            self.workspace = await open_workspace(wire, self.directory)
            self.followers = self.followers or [Follower(self.workspace, deltas=on, position=0) for on in (True, False)]
            self.followers[0].hook = self.look
            self._is_down = False
            following = [asyncio.create_task(self.follow(follower, self.address)) for follower in self.followers]
            self.saw("listening")
            await self.check_promises(wire)
            await asyncio.gather(*self.players(self.address))
            await asyncio.gather(*self.answering)
            while self._is_early and PHASES[self.phase][0] == "ended" and not (self._is_due or self._is_down):  # noqa: ASYNC110
                await asyncio.sleep(0)  # the Runs have ended; the stream reports it a moment later
            self.met[self.phase] += self._is_due
            if not self._is_due:  # everything ended before the moment: kill now
                self._is_due = True
                self._kill(self.nest.pid)
        except Lost:
            self.check_lost()
            self.met[self.phase] += self._is_due
        except BaseException:
            self._kill(self.nest.pid)  # or the followers would continue
            raise
        finally:
            wire.close()
            await asyncio.gather(*following)

    async def follow(self, follower: Follower, address: Address) -> None:
        try:
            await follower.follow(address)
            self.check_lost()
        except Refused:
            if not self._is_leaving:  # or the workspace would be closed
                raise
        finally:
            self._is_down = True
            for begun in self.begun.values():
                begun.set()  # wake the waiters

    def check_lost(self) -> None:
        assert self._is_killed or self._is_leaving, "the server closed the connection"

    # --- events of a client --------------------------------------------------------------------------------------

    def look(self, position: int | None, envelope: Envelope) -> None:
        body, now = envelope.payload.payload, asyncio.get_running_loop().time()
        match envelope.type:
            case "delta":
                self.show(body.message_id, "", body.text, now)
            case "message" if body.role == "assistant":
                text = "".join(part["data"]["text"] for part in body.parts if part["type"] == "text")
                self.shown.setdefault(body.id, Shown(body.session_id)).text = ""
                self.show(body.id, body.session_id, text, now)
            case "progress" if not body.text.startswith("$ "):
                self.begun.setdefault(body.run_id, asyncio.Event()).set()
                self.saw("tool output")
            case "permission_request":
                self.ask(body.id)
            case "run_complete":
                self.ended.add(body.run_id)
                self.saw("ended")

    def show(self, message_id: str, session: str, text: str, now: float) -> None:
        shown = self.shown.setdefault(message_id, Shown(session))
        shown.text += text
        shown.grew.append((now, len(shown.text)))
        if text:
            self.saw("shown")

    def ask(self, ask_id: str) -> None:
        """Handle an Ask, which every later stream shows again; answer it once, or until there is a reply."""
        self.saw("asked")
        if ask_id not in self.asks and self.address is not None:
            self.asks[ask_id] = "sent"
            task = asyncio.create_task(self.answer(ask_id, self.address))
            self.answering.add(task)
            task.add_done_callback(self.answering.discard)

    async def answer(self, ask_id: str, address: Address) -> None:
        wire = Wire(address)
        try:
            self.saw("answering")
            body = {"id": ask_id, "action": "allow", "message": ""}
            path = f"/permissions/grant?client_id={self.followers[0].client_id}"
            status, reply = await self.call(wire, "POST", path, body)
            # Settled: it ended, or an answer that was sent at the kill had arrived.
            assert status in (200, 404, 409), f"{status} {reply}"
            self.asks[ask_id] = "settled"
        except (Lost, Leaving):
            self.check_lost()
            del self.asks[ask_id]
        finally:
            wire.close()

    # --- actions of clients -----------------------------------------------------------------------------------------

    def players(self, address: Address) -> Iterator[asyncio.Task[None]]:
        kinds = [self.talk, self.talk, self.cancel]
        kinds += [self.use_tool] * (self.phase in ASKED_FOR_TOOLS)
        kinds += [self.ask_first] * 2 * (self.phase in ASKED_FOR_ANSWERS)
        kinds += [self.cancel_stubborn] * (self.phase == "cancelling")
        kinds += [self.write_much] * 6 * (self.phase == "the store's checkpoint")
        for kind in kinds:
            yield asyncio.create_task(self.play(kind, address, random.Random(self._chance.random())))

    async def play(self, kind: object, address: Address, chance: random.Random) -> None:
        wire = Wire(address)
        try:
            session = (await wire.expect(200, "POST", f"/workspaces/{self.workspace}/sessions", {"title": ""}))["id"]
            await kind(wire, session, chance)  # type: ignore[operator]
        except (Lost, Leaving):
            self.check_lost()
        finally:
            wire.close()

    async def call(self, wire: Wire, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        """Send a request in the workspace. Only a server that was asked to shut down may reply that it does."""
        status, reply = await wire.call(method, f"/workspaces/{self.workspace}{path}", body)
        if status == 503 and self._is_leaving:
            raise Leaving
        return status, reply

    async def submit(self, wire: Wire, session: str, script: str, expected: str | None, **more: object) -> Sent:
        """Submit with a run id, so that the client can query a Run whose receipt it did not get."""
        sent = Sent(unique("run"), session, expected)
        self.sent[sent.run_id] = sent
        self.fresh.append(sent)
        prompt = f"script: {script.replace('RUN', sent.run_id)}"
        body = {"session_id": session, "prompt": prompt, "run_id": sent.run_id, **more}
        try:
            status, reply = await self.call(wire, "POST", "/agent", body)
        except Leaving:
            del self.sent[sent.run_id]
            self.fresh.remove(sent)
            raise
        assert status == 202, f"{status} {reply}"
        sent.is_accepted = True
        self.saw("accepted")
        return sent

    async def wait(self, wire: Wire, run_id: str) -> Json:
        status, run = await self.call(wire, "GET", f"/agent/runs/{run_id}/wait?timeout_s={WAIT_S}")
        assert status == 200, f"{status} {run}"
        return dict(run)

    async def talk(self, wire: Wire, session: str, chance: random.Random) -> None:
        long = PHASES[self.phase][0] == "shown"  # a short Run may end before a client has seen a part of it
        count, pause = (150, 10) if long else (chance.randint(10, 100), 2)
        sent = [await self.submit(wire, session, f"pause {pause} | words {count}", words(count))]
        for _ in range(chance.randrange(3)):
            looks = "tool nothing {} | " * chance.randrange(3)
            sent.append(await self.submit(wire, session, f"{looks}say behind", "behind"))
        for one in sent:
            await self.wait(wire, one.run_id)

    async def cancel(self, wire: Wire, session: str, chance: random.Random) -> None:
        """Cancel a held Run. A kill before the cancel leaves a Run for the next server to recover."""
        script = f"say shown | hold {self.key} | say released"
        before = [await self.submit(wire, session, script, "shown released")]
        if chance.randrange(2):
            before.append(await self.submit(wire, session, "say late", "late"))
        await self.cancel_session(wire, session, *before)
        after = await self.submit(wire, session, "say spared", "spared")
        for sent in (*before, after):
            await self.wait(wire, sent.run_id)

    async def cancel_stubborn(self, wire: Wire, session: str, chance: random.Random) -> None:
        """Cancel a Run that ends slowly, so that a kill can hit between the reply of the cancel and the end."""
        command = call("bash", command=f"trap '' TERM; {SAY_BEGUN}")
        sent = await self.submit(wire, session, f"{command} | say done", "done", mode="yolo")
        begun = self.begun.setdefault(sent.run_id, asyncio.Event())
        if not self._is_down:
            async with asyncio.timeout(WAIT_S):
                await begun.wait()
            wire.close()  # the server may have closed the idle connection
        await self.cancel_session(wire, session, sent)
        await self.wait(wire, sent.run_id)

    async def cancel_session(self, wire: Wire, session: str, *covered: Sent) -> None:
        for sent in covered:
            sent.cancel = "sent"
        self.saw("cancelling")
        status, reply = await self.call(wire, "POST", f"/agent/sessions/{session}/cancel")
        assert status == 200, f"{status} {reply}"
        assert {run["run_id"] for run in reply["covered"]} == {sent.run_id for sent in covered}
        for sent in covered:
            sent.cancel = "acknowledged"
        self.saw("cancelling")

    async def use_tool(self, wire: Wire, session: str, chance: random.Random) -> None:
        command = call("bash", command=f"echo RUN >> {self.effects.name}; {SAY_BEGUN}")
        sent = await self.submit(wire, session, f"{command} | say done", "done", mode="yolo")
        await self.wait(wire, sent.run_id)

    async def ask_first(self, wire: Wire, session: str, chance: random.Random) -> None:
        command = f"echo RUN >> {self.effects.name}"
        sent = await self.submit(wire, session, f"{call('bash', command=command)} | say done", "done")
        await self.wait(wire, sent.run_id)

    async def write_much(self, wire: Wire, session: str, chance: random.Random) -> None:
        script = f"pause 2 | words 20 | title say {'x' * LARGE_BYTES}"
        sent = await self.submit(wire, session, script, words(20))
        await self.wait(wire, sent.run_id)

    # --- checks ---------------------------------------------------------------------------------------------

    async def check_promises(self, wire: Wire) -> None:
        """Check after a kill that accepted Runs exist, and that shown text is stored, but for the last moment."""
        while self.fresh:
            sent = self.fresh[0]
            status, run = await wire.call("GET", f"/workspaces/{self.workspace}/agent/runs/{sent.run_id}")
            assert status == 200 or (status == 404 and not sent.is_accepted), f"lost: {sent} {status} {run}"
            if status == 404:
                del self.sent[sent.run_id]
            self.fresh.pop(0)
        while self.cut_off:
            await self.check_shown(wire, *self.cut_off[0])
            self.cut_off.pop(0)

    async def check_shown(self, wire: Wire, message_id: str, shown: Shown) -> None:
        if not shown.session or not shown.text:
            return
        messages = await wire.expect(200, "GET", f"/workspaces/{self.workspace}/sessions/{shown.session}/messages")
        stored = next((text_of(message) for message in messages if message["id"] == message_id), "")
        if len(stored) >= len(shown.text):
            assert stored.startswith(shown.text), f"stored {stored[:200]!r}, shown {shown.text[:200]!r}"
            return
        assert shown.text.startswith(stored), f"stored {stored[:200]!r}, shown {shown.text[:200]!r}"
        first_lost = next(when for when, size in shown.grew if size > len(stored))
        self.loss_s = max(self.loss_s, shown.killed_at - first_lost)
        assert self.loss_s < LOSS_S_MAX, f"text shown {self.loss_s:.2f} s before the kill is not stored"

    async def settle(self) -> None:
        """Without further kills, check that every Run ends once and every stream has all events."""
        self.phase, self._is_due = "start-up", True
        self._is_killed, self._is_leaving = False, False
        self.endpoint.release(self.key)
        await self.nest.start()
        self.address = address = await self.nest.listening()
        assert address is not None
        wire = Wire(address)
        await open_workspace(wire, self.directory)
        following = [asyncio.create_task(self.follow(follower, address)) for follower in self.followers]
        try:
            await self.check_promises(wire)
            runs = [await self.wait(wire, run_id) for run_id in self.sent]
            for run in runs:
                self.check_end(run, self.sent[run["run_id"]])
            assert await wire.expect(200, "GET", "/runs") == []
            await self.check_streams(wire, address)
            self.check_effects()
        finally:
            self._kill(self.nest.pid)
            await asyncio.gather(*following)
            await self.nest.gone()
            wire.close()

    def check_end(self, run: Json, sent: Sent) -> None:
        assert run["state"] == "ended", f"{sent}: {run}"
        outcome = run["outcome"]
        by_cancel = {"none": {"completed"}, "sent": {"completed", "cancelled"}, "acknowledged": {"cancelled"}}
        allowed = by_cancel[sent.cancel]
        if sent.cancel != "acknowledged" and (sent.was_terminated or sent.kills >= LIVES_MAX):
            allowed.add("interrupted")
        assert outcome in allowed, f"{sent}: {run}"
        if outcome == "completed" and sent.expected is not None:
            assert run["text"] == sent.expected, f"{sent}: {run}"

    async def check_streams(self, wire: Wire, address: Address) -> None:
        marker = await wire.expect(200, "POST", f"/workspaces/{self.workspace}/sessions", {"title": "last"})
        async with asyncio.timeout(WAIT_S):
            while not all(follower.seen and follower.seen[-1][2] == marker["id"] for follower in self.followers):
                await wire.expect(200, "GET", "/health")
        log = await whole_log(address, self.workspace, self.followers[0].position or 0)
        ends = Counter(kind[2] for kind in log if kind[1] == "run_complete")
        assert {run_id: ends[run_id] for run_id in self.sent if ends[run_id] != 1} == {}
        for follower in self.followers:
            assert follower.gaps == 0
            assert follower.seen == log, f"a follower has {len(follower.seen)} of {len(log)} events"

    def check_effects(self) -> None:
        """Check that a call that may have begun was never repeated."""
        done = Counter(self.effects.read_text().split()) if self.effects.exists() else Counter[str]()
        assert {run_id: count for run_id, count in done.items() if count > 1} == {}


@pytest.fixture
def ram_disk() -> Iterator[Path]:
    """A directory in memory: a killed process loses nothing it has written, so a fast disk is enough."""
    memory = Path("/dev/shm")
    directory = tempfile.mkdtemp(prefix="kedge-kills-", dir=memory if memory.is_dir() else None)
    yield Path(directory)
    shutil.rmtree(directory)


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 180)
@pytest.mark.parametrize("seeds_", seeds(100, 5_000, each=50 if IS_LONG else 25), ids=str)
async def test_a_server_killed_in_every_phase_keeps_its_promises(
    endpoint: Endpoint, ram_disk: Path, seeds_: range
) -> None:
    (ram_disk / "workspace").mkdir()
    with proof("G3", "kills of a real server", "lost, doubled or stuck") as figure:
        async with nest(ram_disk / "server", endpoint.hosted.url) as servers:
            siege = Siege(servers, endpoint, ram_disk / "workspace")
            seed = seeds_[0]
            try:
                for seed in seeds_:
                    await siege.round(seed)
                await siege.settle()
            except BaseException:
                print(f"phase {siege.phase}; {replay('tests/conformance/test_kills.py', seed)}\n{servers.log[-3000:]}")
                raise
        # In the large size, all phases.
        assert [phase for phase, is_early in map(phase_of, seeds_) if is_early and not siege.met[phase]] == []
        figure.count = siege.kills
        figure.notes |= {"runs": len(siege.sent), "events": sum(len(follower.seen) for follower in siege.followers)}
        figure.notes |= {"approvals": len(siege.asks), "at the moment meant": siege.met.total()}
        figure.notes |= {f"met: {phase}": siege.met[phase] for phase in PHASES}
        figure.notes["killed before it listened"] = siege.kills_before_it_listened
        figure.notes["text lost by a kill at the most"] = f"{siege.loss_s * 1000:.0f} ms"
        figure.notes["streams resumed"] = sum(follower.connects for follower in siege.followers)
