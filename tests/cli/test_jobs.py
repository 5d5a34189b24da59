"""`kedge jobs`, the report of `kedge cancel` about kept commands, and the screens of the terminal interface."""

from __future__ import annotations

import json

from textual.widgets import OptionList

from kedge.client.client import Client
from kedge.client.view.job_text import job_state, runtime
from kedge.tui.panels.approval_panel import ApprovalPanel
from kedge.tui.screens.jobs_screen import JobsScreen
from kedge.wire.job_models import JobBody
from tests.client.process import Finished, Server
from tests.tui.rig import rig


def kedge(server: Server, *arguments: str) -> Finished:
    return server.home.kedge(*arguments, "--host", server.host)


def keep(command: str) -> str:
    return f"script: tool bash {json.dumps({'command': command, 'background': True, 'keep': True})} | say started"


async def test_kept_command_is_shown_and_ended_in_both_front_ends(server: Server, client: Client) -> None:
    assert kedge(server, "jobs").out == "no kept commands\n"
    command = "echo listening; exec sleep 1000"
    assert kedge(server, "run", "--mode", "yolo", keep(command)).out.strip() == "started"
    (listed,) = json.loads(kedge(server, "jobs", "list", "--json").out)
    id_, session_id = listed["id"], listed["session_id"]
    assert command in kedge(server, "jobs").out
    shown = kedge(server, "jobs", "show", id_[:6])
    assert (shown.out, "running" in shown.err) == ("listening\n", True)
    remains = f"1 kept command still runs; end it with: kedge jobs end {id_}"
    assert kedge(server, "cancel", session_id).out.splitlines()[-1] == remains
    assert kedge(server, "jobs", "end", id_).out == f"{id_}: ended\n"
    assert kedge(server, "jobs", "end", id_).out == f"{id_}: ended\n"
    assert "No kept command 'nothing'" in kedge(server, "jobs", "end", "nothing").err

    async with rig(server, size=(140, 40)) as r:
        await r.send(keep("echo ready; exec sleep 1000"))
        await r.until(lambda: r.app.part(ApprovalPanel).answerable("allow") is not None)
        await r.press("f2")
        await r.shows("Kept commands 1/2", "s  echo ready")
        r.app.action_jobs()
        await r.shows("d: end", "● running")
        assert isinstance(r.app.screen, JobsScreen)
        await r.until(lambda: any(line.strip(" │") == "ready" for line in r.lines))
        assert len(r.app.screen.query_one(OptionList).options) == 2
        await r.press("d")
        await r.shows_no("● running")
        await r.press("escape")
        await r.shows("Kept commands 0/2")


def test_states_and_runtimes_are_described() -> None:
    job = JobBody(id="k1", command="x", run_id="r1", state="running", started_at=0)
    assert (job_state(job), runtime(job, 59_999), runtime(job, 3 * 86_400_000)) == ("running", "59s", "3d")
    lost = JobBody(id="k1", command="x", run_id="r1", state="server_stopped", started_at=0)
    assert (job_state(lost), runtime(lost, 5000)) == ("ended with the server", "")
    failed = JobBody(id="k1", command="x", run_id="r1", state="exited", started_at=0, ended_at=120_000, exit_code=1)
    assert (job_state(failed), runtime(failed, 0)) == ("exit code 1", "2m")
