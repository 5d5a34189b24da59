"""A process keeper that hangs while Runs of two sessions use tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Server, results_of, unique
from tests.conformance.test_i_agent import call
from tests.warden.hanging import hung
from tests.warden.newcomers import Newcomers
from tests.warden.support import is_alive


def keeper_of(server_pid: int) -> int:
    """Return the pid of the keeper, a child of the server."""
    children = [int(pid) for pid in Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()]
    (pid,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "kedge-keeper\n"]
    return pid


@pytest.mark.timeout(120)
@pytest.mark.found(
    "fault 12",
    "while the keeper hung, no tool of any session began, and a cancelled command stayed alive; the keeper is replaced "
    "within some seconds, other commands begin in the new one, and the cancelled Run ends clean",
)
async def test_hung_keeper_harms_no_other_session(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    async with server.peer(workspace) as kedge, kedge.stream() as stream:
        newcomers = Newcomers(mark := unique("mark"))
        first, second = await kedge.session(), await kedge.session()
        script = f"script: {call('bash', command=f'KEDGE_MARK={mark} sleep 300; echo never')} | say never"
        run_id = (await kedge.submit(first, script, mode="yolo"))["run_id"]
        while not newcomers.alive():
            assert not stream.completes(run_id)
            await kedge.run(run_id)
        keeper_pid = keeper_of(server.pid)
        with hung(keeper_pid):
            script = f"script: {call('bash', command='echo two')} | say done"
            other_id = (await kedge.submit(second, script, mode="yolo"))["run_id"]
            await kedge.cancel(first)
            cancelled, other = await kedge.wait(run_id), await kedge.wait(other_id)
        assert (cancelled["outcome"], cancelled["cleanup"]) == ("cancelled", "clean")
        assert newcomers.alive() == []
        assert (other["outcome"], other["text"]) == ("completed", "done")
        (result,) = results_of(await kedge.messages(second))
        assert result["content"] == "two"
        assert not is_alive(keeper_pid)
        assert keeper_of(server.pid) != keeper_pid
    assert "the process keeper does not answer" in server.log
