"""One writer per Lane: two real nodes on one PostgreSQL are killed, paused and cut off, while clients that change node
at every request submit, cancel and read. Every promise to a client is checked, and the model counts every Step.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kedge.core.commands import RESUMES_MAX
from proof.figures import IS_LONG, proof, size
from tests.cluster.faults import FaultyNode, inflict, two_faulty_nodes
from tests.cluster.travel import Traveller, Unknown, follow
from tests.conformance.harness import Endpoint, Json, unique
from tests.conformance.loops import Envelope, Follower, replay, seeds, whole_log
from tests.conformance.test_i_agent import call
from tests.conformance.watching import words
from tests.polling import until
from tests.postgres_server import FAST, PostgresServer
from tests.warden.support import marked, new_mark

CONFIG = '[permissions]\nallow = ["bash"]'
WORKSPACES, PLAYERS_EACH, READERS_EACH = 4, 4, 2
#: Only a hang reaches it. Seconds.
LIMIT_S = 1800 if IS_LONG else 300
#: A reply of 0.4 s, so that faults meet it.
WORDS = "pause 20 | words 20"
#: The rounds of a player.
KINDS = ("talk", "talk", "use_tools", "cancel", "hang")


@dataclass
class Sent:
    """One prompt, and the knowledge of its client."""

    run_id: str
    workspace: str
    #: The text of its last message if it completes, and the Steps that this takes.
    text: str
    steps: int
    cancel: str = "none"  # or "sent", or "acknowledged"
    #: Of its tool, which never ends.
    mark: str = ""
    #: Set when a stream has reported its end.
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class SharedWorkspace:
    """One workspace with its readers."""

    directory: Path
    workspace: str = ""
    readers: list[Follower] = field(default_factory=list)

    @property
    def effects(self) -> Path:
        return self.directory / "effects.txt"


class Siege:
    def __init__(self, nodes: tuple[FaultyNode, FaultyNode], endpoint: Endpoint, home: Path, runs: int) -> None:
        self.nodes, self.endpoint = nodes, endpoint
        self.addresses = [node.address for node in nodes]
        self.workspaces = [SharedWorkspace(home / f"workspace-{number}") for number in range(WORKSPACES)]
        self.sent: dict[str, Sent] = {}
        self.key = unique("key")
        #: Runs that may still be submitted before the next fault; the rest; Runs that have been submitted.
        self.tickets, self.left, self.taken = asyncio.Semaphore(0), runs, 0
        self.met: Counter[str] = Counter()

    # --- clients ----------------------------------------------------------------------------------------------------

    async def play(self, shared: SharedWorkspace, number: int, chance: random.Random) -> None:
        traveller = Traveller(self.addresses, shared.directory, number)
        await traveller.open()
        shared.workspace = traveller.workspace
        while self.left > 0:
            session = await traveller.session()
            await getattr(self, chance.choice(KINDS))(traveller, session, chance)
        traveller.close()

    async def submit(
        self, traveller: Traveller, session: str, script: str, text: str, steps: int = 1, mark: str = ""
    ) -> Sent:
        await self.tickets.acquire()
        self.left, self.taken = self.left - 1, self.taken + 1
        sent = Sent(unique("run"), traveller.workspace, text, steps, mark=mark)
        self.sent[sent.run_id] = sent
        prompt = f"script: tag {sent.run_id} | {script.replace('RUN', sent.run_id)}"
        body = {"session_id": session, "prompt": prompt, "run_id": sent.run_id}
        await traveller.call("POST", f"{traveller.at}/agent", body)
        return sent

    async def talk(self, traveller: Traveller, session: str, chance: random.Random) -> None:
        runs = []
        for _ in range(chance.randrange(1, 4)):
            looks = chance.randrange(4)
            script = f"{'tool nothing {} | step | ' * looks}{WORDS} | say done"
            runs.append(await self.submit(traveller, session, script, f"{words(20)} done", looks + 1))
        await until_ended(*runs)

    async def use_tools(self, traveller: Traveller, session: str, chance: random.Random) -> None:
        """Call tools whose effects are counted: none may be repeated."""
        calls = (call("bash", command=f"echo RUN-{number} >> effects.txt; sleep 0.1") for number in range(3))
        sent = await self.submit(traveller, session, f"{' | step | '.join(calls)} | say done", "done", 4)
        await until_ended(sent)

    async def cancel(self, traveller: Traveller, session: str, chance: random.Random) -> None:
        """A active, B queued, cancel, then C: the cancel covers exactly A and B."""
        covered = [await self.submit(traveller, session, f"say shown | hold {self.key}", "shown")]
        if chance.randrange(2):
            covered.append(await self.submit(traveller, session, "say late", "late"))
        for sent in covered:
            sent.cancel = "sent"
        try:
            reply = await traveller.once("POST", f"{traveller.at}/agent/sessions/{session}/cancel")
        except Unknown:
            reply = {"recorded": False}
        if reply.get("recorded", True):
            reported = {run["run_id"] for run in reply["covered"]}
            assert reported <= {sent.run_id for sent in covered}
            for sent in covered:
                if sent.run_id in reported:
                    sent.cancel = "acknowledged"
                    self.met["Runs that an acknowledged cancel covered"] += 1
                else:
                    await sent.ended.wait()  # it had ended before, because it had been resumed too often
            # Long enough for a cancel that comes twice to hit it.
            covered.append(await self.submit(traveller, session, f"{WORDS} | say spared", f"{words(20)} spared"))
        else:
            await self.end(traveller, *covered)
        await until_ended(*covered)

    async def hang(self, traveller: Traveller, session: str, chance: random.Random) -> None:
        """A tool that only a cancel or the loss of its node ends. Nothing of it may survive its Run."""
        mark = new_mark()
        command = call("bash", command=f"touch {mark}; exec -a {mark} sleep 1000")
        sent = await self.submit(traveller, session, f"{command} | say done", "done", 2, mark)
        await until(lambda: sent.ended.is_set() or (traveller.directory / mark).exists())
        sent.cancel = "sent"
        await self.end(traveller, sent)

    async def end(self, traveller: Traveller, *runs: Sent) -> None:
        for sent in runs:
            while (await traveller.run(sent.run_id))["state"] != "ended":
                with suppress(Unknown):
                    await traveller.once("POST", f"{traveller.at}/agent/runs/{sent.run_id}/cancel")
            await sent.ended.wait()
            assert not sent.mark or marked(sent.mark) == [], f"a tool has survived its Run: {sent}"

    # --- the course -------------------------------------------------------------------------------------------------

    async def run(self, faults: int, seed: int) -> None:
        chance = random.Random(seed)
        share = self.left // (faults + 1)
        async with asyncio.TaskGroup() as group:
            players: list[asyncio.Task[None]] = []
            following: list[asyncio.Task[None]] = []
            for shared in self.workspaces:
                shared.directory.mkdir()
                opener = Traveller(self.addresses, shared.directory, len(following))
                await opener.open()
                opener.close()
                for number in range(PLAYERS_EACH):
                    players.append(group.create_task(self.play(shared, number, random.Random(chance.random()))))
                for number in range(READERS_EACH):
                    reader = Follower(opener.workspace, deltas=number == 0, position=0, hook=self.look)
                    shared.readers.append(reader)
                    work = follow(shared.directory, self.addresses, reader, random.Random(chance.random()))
                    following.append(group.create_task(work))
            for number in range(faults):
                until_taken = self.taken + share // 2
                self.release(share)
                await until(lambda bound=until_taken: self.taken >= bound)  # type: ignore[misc]
                self.met[await inflict(seed + number, self.nodes, chance)] += 1
            self.release(self.left + len(players) * 4)
            for player in players:
                await player
            await self.check()
            for task in following:
                task.cancel()

    def release(self, count: int) -> None:
        for _ in range(count):
            self.tickets.release()

    def look(self, position: int | None, envelope: Envelope) -> None:
        if envelope.type == "run_complete":
            self.sent[envelope.payload.payload.run_id].ended.set()

    # --- checks -------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        requests = Counter(request.tag for request in self.endpoint.hosted.requests)
        for shared in self.workspaces:
            traveller = Traveller(self.addresses, shared.directory)
            await traveller.open()
            assert await traveller.call("GET", "/runs") == []
            for sent in [sent for sent in self.sent.values() if sent.workspace == shared.workspace]:
                self.check_run(await traveller.run(sent.run_id), sent, requests[sent.run_id])
            await self.check_stream(traveller, shared)
            done = Counter(shared.effects.read_text().split()) if shared.effects.exists() else Counter[str]()
            assert {line: count for line, count in done.items() if count > 1} == {}, "a tool was repeated"
            traveller.close()

    def check_run(self, run: Json, sent: Sent, requests: int) -> None:
        assert run["state"] == "ended", f"{sent}: {run}"
        resumes = sum(entry["kind"] == "resume" for entry in run.get("trace", []))
        allowed = {"none": {"completed"}, "sent": {"completed", "cancelled"}, "acknowledged": {"cancelled"}}[
            sent.cancel
        ]
        if resumes >= RESUMES_MAX and sent.cancel != "acknowledged":
            allowed.add("interrupted")
        assert run["outcome"] in allowed, f"{sent}: {run}"
        # A Step whose node was lost is repeated once by the next node, which records that it has resumed the Run.
        assert requests <= sent.steps + resumes, f"{requests} model requests, {resumes} resumes: {sent}"
        if run["outcome"] == "completed":
            assert run["text"] == sent.text, f"{sent}: {run}"
            assert requests >= sent.steps, f"{requests} model requests: {sent}"
        self.met["Runs that another process continued"] += resumes > 0

    async def check_stream(self, traveller: Traveller, shared: SharedWorkspace) -> None:
        marker = await traveller.session()
        await until(lambda: all(reader.seen and reader.seen[-1][2] == marker for reader in shared.readers))
        last = shared.readers[0].position or 0
        logs = [await whole_log(address, shared.workspace, last) for address in self.addresses]
        assert logs[0] == logs[1]
        ends = Counter(kind[2] for kind in logs[0] if kind[1] == "run_complete")
        own = [sent.run_id for sent in self.sent.values() if sent.workspace == shared.workspace]
        assert ends == dict.fromkeys(own, 1), "Runs that ended twice or never"
        for reader in shared.readers:
            assert reader.gaps == 0
            assert reader.seen == logs[0]
        self.met["events"] += len(logs[0])
        self.met["streams resumed"] += sum(reader.connects for reader in shared.readers)


async def until_ended(*runs: Sent) -> None:
    for sent in runs:
        await sent.ended.wait()


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer(FAST)
    server.start()
    yield server
    server.close()


@pytest.mark.proof
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("seeds_", seeds(1, 8, each=1), ids=str)
async def test_two_nodes_under_faults_keep_all_promises(
    postgres: PostgresServer, endpoint: Endpoint, tmp_path: Path, seeds_: range
) -> None:
    (seed,) = seeds_
    runs, faults = size(80, 250), size(3, 14)
    with proof("G13", "Runs on two nodes that are killed, paused and cut off", "lost, doubled or stuck") as figure:
        async with two_faulty_nodes(tmp_path, postgres, endpoint.hosted.url, CONFIG) as nodes:
            siege = Siege(nodes, endpoint, tmp_path, runs)
            try:
                async with asyncio.timeout(LIMIT_S):
                    await siege.run(faults, seed)
                await asyncio.to_thread(nodes[0].server.kedge, "store", "check", nodes[0].store, cwd=tmp_path)
            except BaseException:
                print(replay("tests/cluster/test_faults.py", seed))
                for node in nodes:
                    print(f"node {node.server.home.name}:\n{node.server.log[-4000:]}")
                raise
            figure.count = len(siege.sent)
            figure.notes |= {**siege.met, "restarts of nodes that lost a lease": sum(node.restarts for node in nodes)}
