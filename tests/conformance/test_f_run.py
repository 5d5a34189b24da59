"""SCENARIOS F: `kedge run` as a real process against the server under test. tests/cli has the details."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.harness import WAIT_S, Endpoint, Peer, Server, unique


@dataclass
class Command:
    """`kedge run` with one server."""

    url: str
    token: str
    directory: Path

    @asynccontextmanager
    async def start(self, *arguments: str, stdin: int = DEVNULL) -> AsyncIterator[Process]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KEDGE_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kedge",
            "run",
            "--host",
            self.url.replace("http://", "tcp://"),
            "--cwd",
            str(self.directory),
            *arguments,
            env={**environment, "KEDGE_TOKEN": self.token},
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def __call__(self, *arguments: str, given: bytes | None = None) -> tuple[int, str, str]:
        """Run the command, and return (exit code, stdout, stderr)."""
        async with self.start(*arguments, stdin=DEVNULL if given is None else PIPE) as process:
            async with asyncio.timeout(WAIT_S):
                out, err = await process.communicate(given)
            return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture
def run(shared: tuple[str, str], kedge: Peer) -> Command:
    return Command(*shared, kedge.directory)


async def test_f1_it_exits_only_on_its_own_end(run: Command, kedge: Peer, endpoint: Endpoint) -> None:
    """Other Runs, errors and sessions do not end it."""
    key, tag = unique("key"), unique("tag")
    session, other = await kedge.session(), await kedge.session()
    first = await kedge.submit(session, f"script: tag {tag} | hold {key} | say foreign", run_id=unique("r"))
    await endpoint.wait_open(tag)
    async with kedge.stream() as stream:
        async with run.start("--session", session, "script: say mine") as process:
            await stream.until(lambda s: len([f for f in s.of("run") if f.change == "created"]) >= 1)
            elsewhere = await kedge.submit(other, "script: fail 500 on purpose")
            await stream.until_complete(elsewhere["run_id"])
            endpoint.release(key)
            await stream.until_complete(first["run_id"])
            out, _ = await process.communicate()
            assert (process.returncode, out.decode()) == (0, "mine\n")


async def test_f2_a_finish_by_tool_use_does_not_end_it(run: Command) -> None:
    code, out, _ = await run("script: say first | tool nothing {} | say second")
    assert (code, out.split()) == (0, ["first", "second"])


@pytest.mark.parametrize("script", ["words 300", "say one | pause 5 | words 20", "say x"])
async def test_f3_text_is_printed_once_and_complete(run: Command, kedge: Peer, script: str) -> None:
    code, out, _ = await run(f"script: {script}")
    sessions = await kedge.call("GET", f"{kedge.at}/sessions")
    (done,) = await kedge.runs(sessions[0]["id"])
    assert (code, out) == (0, done["text"] + "\n")


async def test_f4_each_outcome_has_its_exit_code(run: Command, kedge: Peer, endpoint: Endpoint) -> None:
    assert (await run("script: say fine"))[0] == 0
    code, _, err = await run("script: fail 500 out of order")
    assert (code, err.count("\n")) == (1, 1)
    assert (await run("--no-such-option"))[0] == 2
    assert (await run())[0] == 2
    assert (await run("--timeout", "0.2", "script: hang"))[0] == 124
    nobody = Command("http://127.0.0.1:9", run.token, run.directory)
    code, _, err = await nobody("hello")
    assert (code, err.count("\n")) == (4, 1)
    session, tag = await kedge.session(), unique("tag")
    async with run.start("--session", session, f"script: tag {tag} | hang") as process:
        await endpoint.wait_open(tag)
        await kedge.cancel(session)
        await process.communicate()
        assert process.returncode == 130


async def test_f5_ctrl_c_cancels_on_the_server(run: Command, kedge: Peer, endpoint: Endpoint) -> None:
    session, tag = await kedge.session(), unique("tag")
    async with run.start("--session", session, f"script: tag {tag} | say some | hang") as process:
        await endpoint.wait_open(tag)
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 130
    (ended,) = await kedge.runs(session)
    assert ended["outcome"] == "cancelled"
    await endpoint.wait_open(tag, 0)


async def test_f6_it_survives_a_restart_and_fails_for_a_dead_server(
    own_server: Callable[..., Server], endpoint: Endpoint, workspace: Path
) -> None:
    server = own_server()
    port = server.url.rpartition(":")[2]
    key, tag = unique("key"), unique("tag")
    run = Command(server.url, server.token, workspace)
    async with run.start(f"script: tag {tag} | say before | hold {key} | say after") as process:
        await endpoint.wait_open(tag)
        server.kill()
        server.start(port=int(port), token=server.token)
        endpoint.release(key)
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert out.decode().endswith("after\n")
    tag = unique("tag")
    async with run.start("--reconnect", "0.5", f"script: tag {tag} | hang") as process:
        await endpoint.wait_open(tag)
        server.kill()
        _, err = await process.communicate()
        assert process.returncode == 4, err.decode()


async def test_f7_without_a_terminal_there_are_no_escape_codes(run: Command) -> None:
    code, out, err = await run("script: pause 20 | words 30")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "\r" not in out


async def test_f9_standard_input_closed_open_or_huge_is_handled(run: Command) -> None:
    assert await run("hello", given=b"") == (0, "You said: hello\n", "")
    code, out, _ = await run("what is this?", given=b"piped text")
    assert (code, out) == (0, "You said: piped text\n\nwhat is this?\n")
    code, out, err = await run("hello", given=b"x" * (2 * 1024 * 1024))
    assert (code, out, err.count("\n")) == (2, "", 1)
    async with run.start("hello", stdin=PIPE) as process:  # open, and never written to
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.read(), WAIT_S) == b"You said: hello\n"


async def test_f10_stream_json_prints_the_events_of_the_stream(run: Command, kedge: Peer) -> None:
    async with kedge.stream(deltas=1) as stream:
        code, out, _ = await run("--output", "stream-json", "script: say hello there")
        lines = [json.loads(line) for line in out.splitlines()]
        assert code == 0
        run_id = lines[-1]["payload"]["payload"]["run_id"]
        await stream.until_complete(run_id)
        assert lines[-1]["type"] == "run_complete"
        seen = [(f.type, f.payload) for f in stream.durable if f.type != "session"]
        reported = [
            (line["type"], line["payload"]["payload"]) for line in lines if line["type"] not in ("delta", "session")
        ]
        assert [entry for entry in reported if entry in seen] == reported
