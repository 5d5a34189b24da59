"""Many workspaces and clients, odd directory names, and directories that disappear during a Run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from proof.figures import IS_LONG, proof, size
from tests.conformance.harness import Endpoint, Peer, Server, results_of, unique
from tests.conformance.loops import Wire, address_of, open_workspace
from tests.conformance.test_i_agent import call
from tests.conformance.watching import until_metric

pytestmark = pytest.mark.timeout(600 if IS_LONG else 120)

#: Clients that send requests at the same time. Items.
WORKERS = 40
#: Names that a shell, a terminal, a JSON parser or a command line could misread, and the longest name of a directory.
NAMES = (
    "line\nbreak",
    'it\'s "quoted"',
    "$(touch made) `touch made` $HOME",
    "\x1b[31mred\x07",
    "größe-日本語-🚀",
    "--help",
    " blanks ",
    "a;b&c|d*?[e]~",
    "n" * 255,
)
#: Directories of 200 bytes below each other: in all, nearly the longest path of the kernel (4,095 bytes). Items.
DEPTH = 18


@pytest.mark.proof
async def test_many_workspaces_run_stream_and_close(
    own_server: Callable[..., Server], tmp_path: Path, many_files: None
) -> None:
    count = size(20, 300)
    server = own_server("[server]\ngrace_s = 0.5")
    server.checks_stalls = False
    with proof("G15", "workspaces at once, each with a stream and a Run", "mixed up, or kept open") as figure:
        async with server.http() as http:
            directories = [tmp_path / f"workspace-{number}" for number in range(count)]
            for directory in directories:
                directory.mkdir()
            peers = await asyncio.gather(*(Peer(http, directory).open() for directory in directories))
            assert len({peer.workspace for peer in peers}) == count
            async with AsyncExitStack() as stack:
                streams = [await stack.enter_async_context(peer.stream()) for peer in peers]
                sessions = await asyncio.gather(*(peer.session() for peer in peers))
                receipts = await asyncio.gather(
                    *(
                        peer.submit(session, f"script: say {session}")
                        for peer, session in zip(peers, sessions, strict=True)
                    )
                )
                for stream, session, receipt in zip(streams, sessions, receipts, strict=True):
                    (complete,) = await stream.until_complete(receipt["run_id"])
                    assert (complete["outcome"], complete["text"]) == ("completed", session)
                    assert len(stream.of("run_complete")) == 1
                    assert stream.positions == sorted(set(stream.positions))
            await until_metric(http, "kedge_workspaces_open", lambda open_now: open_now == 0)
        figure.count = count


@pytest.mark.proof
async def test_many_clients_of_one_directory_share_a_workspace(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    count = size(200, 6_000)
    server = own_server()
    address = address_of(server.url, server.token)

    async def open_many(number: int) -> set[str]:
        wire = Wire(address)
        ids = {await open_workspace(wire, workspace) for _ in range(number, count, WORKERS)}
        wire.close()
        return ids

    with proof("G15", "clients that open one directory", "other workspaces") as figure:
        opened = await asyncio.gather(*map(open_many, range(WORKERS)))
        assert len(set().union(*opened)) == 1
        figure.count = count


async def check_tools(peer: Peer) -> None:
    """Use each kind of tool in the workspace, and check that it worked in this directory."""
    session = await peer.session()
    steps = " | step | ".join(
        (
            call("write", path="a.txt", content="a needle\n"),
            call("grep", pattern="needle"),
            call("ls"),
            call("bash", command='cat a.txt; printf %s "$PWD" > where'),
        )
    )
    run = await peer.wait((await peer.submit(session, f"script: {steps} | say done", mode="yolo"))["run_id"])
    assert (run["outcome"], run["text"]) == ("completed", "done")
    written, grepped, listed, shown = (result["content"] for result in results_of(await peer.messages(session)))
    assert "a.txt" in written
    assert "a needle" in grepped
    assert "a.txt" in listed
    assert shown == "a needle"
    assert (peer.directory / "a.txt").read_text() == "a needle\n"
    assert (peer.directory / "where").read_bytes() == os.fsencode(peer.directory)
    assert sorted(os.listdir(peer.directory)) == ["a.txt", "where"]


async def test_tools_work_in_directories_with_odd_names(kedge: Peer, tmp_path: Path) -> None:
    directories = [tmp_path / name for name in NAMES]
    directories.append(tmp_path.joinpath(*["d" * 199] * DEPTH))
    for directory in directories:
        directory.mkdir(parents=True)
        await check_tools(await Peer(kedge.http, directory).open())
    too_long = tmp_path.joinpath(*["d" * 199] * (DEPTH + 7))
    reply = await kedge.reply("POST", "/workspaces", {"path": str(too_long), "client_id": unique()})
    assert reply.status_code == 400, reply.text
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("how", ["deleted", "renamed", "a file"])
async def test_run_completes_without_its_directory(kedge: Peer, endpoint: Endpoint, tmp_path: Path, how: str) -> None:
    session, tag, key = await kedge.session(), unique("tag"), unique("key")
    calls = (call("ls"), call("bash", command="pwd"), call("view", path="z.txt"))
    script = f"script: tag {tag} | say a | hold {key} | {' | step | '.join(calls)} | say done"
    run_id = (await kedge.submit(session, script, mode="yolo"))["run_id"]
    await endpoint.wait_open(tag)
    kedge.directory.rename(tmp_path / "moved") if how == "renamed" else kedge.directory.rmdir()
    if how == "a file":
        kedge.directory.write_text("a file")
    endpoint.release(key)
    run = await kedge.wait(run_id)
    assert (run["outcome"], run["text"], run["cleanup"]) == ("completed", "done", "clean")
    results = results_of(await kedge.messages(session))
    assert [result["is_error"] for result in results] == [True] * len(calls), results
    assert kedge.directory.is_file() if how == "a file" else not kedge.directory.exists()
