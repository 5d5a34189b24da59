"""The store takes no writes: a cancel stops its Run at once, and a Run with tools waits for the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.harness import Server, results_of, unique
from tests.conformance.test_b_tools import marked, until_gone, until_seen, until_there
from tests.conformance.test_g_crash import check_ended_once
from tests.conformance.test_i_agent import call
from tests.conformance.test_lost_parts import locked, small_disk


@pytest.mark.parametrize("fault", ["full", "locked"])
@pytest.mark.found(
    "fault 1",
    "a Run whose command had filled the disk could not be stopped: its cancel could not be written; the Run is now "
    "stopped at once, and the cancel is written when the store takes it",
)
async def test_a_cancel_stops_its_run_without_the_store(
    own_server: Callable[..., Server], tmp_path: Path, workspace: Path, fault: str
) -> None:
    data_dir, mark = tmp_path / "server-0" / "data", unique("mark")
    with small_disk(data_dir), ExitStack() as lock:
        server = own_server()
        filling = f"cat /dev/zero > {data_dir}/filler; " if fault == "full" else ""
        bash = call("bash", command=marked(mark, f"{filling}touch ready; sleep 1000"))
        async with server.peer(workspace) as peer, peer.stream() as stream:
            session = await peer.session()
            run_id = (await peer.submit(session, f"script: {bash} | say never", mode="yolo"))["run_id"]
            await until_there(workspace / "ready")
            await until_seen(mark)
            if fault == "locked":
                lock.enter_context(locked(data_dir))
            reply = await peer.cancel_run(run_id, expect=202)
            assert (reply["recorded"], [run["run_id"] for run in reply["covered"]]) == (False, [run_id])
            await until_gone(mark)
            assert (await peer.run(run_id))["state"] == "active", "its end is not recorded yet"
            lock.close()
            (data_dir / "filler").unlink(missing_ok=True)
            (complete,) = await stream.until_complete(run_id)
            assert (complete["outcome"], complete["cleanup"]) == ("cancelled", "clean")
            later = await peer.submit(session, "script: say again")
            assert (await peer.wait(later["run_id"]))["text"] == "again"
        server.kill()
        server.start()
        async with server.peer(workspace) as peer:
            await check_ended_once(peer, [run_id])
        server.kill()


@pytest.mark.found(
    "fault 9",
    "another program held the database's lock for ten seconds, and every Run with tools failed; a Run now waits for "
    "the store for a minute, and the stream shows it",
)
async def test_a_run_with_tools_waits_for_the_store(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    steps = f"{call('bash', command='touch ready; while ! test -e go; do sleep 0.02; done; echo one')} | step | say two"
    async with server.peer(workspace) as peer, peer.stream(deltas=1) as stream:
        session = await peer.session()
        run_id = (await peer.submit(session, f"script: {steps}", mode="yolo"))["run_id"]
        await until_there(workspace / "ready")
        with locked(server.data_dir):
            (workspace / "go").touch()
            await stream.until(lambda seen: any(frame.payload.get("type") == "retry" for frame in seen.frames))
        run = await peer.wait(run_id)
        assert (run["outcome"], run["text"], run["steps"]) == ("completed", "two", 2)
        (result,) = results_of(await peer.messages(session))
        assert "one" in result["content"]
