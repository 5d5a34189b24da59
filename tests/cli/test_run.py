from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from kedge.testing import HostedEndpoint
from tests.client.process import Home, Server, until


def test_stdout_has_only_the_answer(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "hello", "world")
    assert (done.code, done.out, done.err) == (0, "You said: hello world\n", "")


def test_run_starts_a_server_if_none_runs(in_home: Home) -> None:
    done = in_home.kedge("run", "hello")
    assert (done.code, done.out, done.errors) == (0, "You said: hello\n", "")


def test_text_is_printed_as_it_streams(server: Server, endpoint: HostedEndpoint) -> None:
    run = server.home.start_kedge("run", "--host", server.host, "script: say first words | hold cli-1 | say rest")
    assert until(run, "first") == "first"
    endpoint.release("cli-1")
    out, err = run.communicate(timeout=20)
    assert run.returncode == 0
    assert out.split() == ["words", "rest"]
    assert err == ""


def test_failed_run_is_exit_1_with_a_one_line_error(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "script: fail 400 the roof is on fire")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("kedge: ")
    assert done.err.count("\n") == 1
    assert "the roof is on fire" in done.err


def test_text_before_a_failure_is_kept(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "script: say half an | fail 400 broke")
    assert done.code == 1
    assert done.out.split() == ["half", "an"]


def test_timeout_is_exit_124(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "--timeout", "0.1", "script: hang")
    assert (done.code, done.out) == (124, "")
    assert done.err.startswith("kedge: ")


def test_step_limit_is_exit_1(server: Server) -> None:
    script = "script: tool no_such {} | tool no_such {} | say done"
    assert server.home.kedge("run", "--host", server.host, "--max-steps", "1", script).code == 1


def test_run_of_several_steps_ends_with_the_last_one(server: Server) -> None:
    """F2: a finish for tool use is not the end."""
    script = "script: say looking | tool no_such {} | say done"
    done = server.home.kedge("run", "--host", server.host, script)
    assert done.code == 0
    assert done.out.splitlines()[-1].strip() == "done"
    assert done.out.split() == ["looking", "done"]
    assert done.err == ""


def test_run_cancelled_by_another_client_is_exit_130(server: Server, endpoint: HostedEndpoint) -> None:
    run = server.home.start_kedge("run", "--host", server.host, "script: say on | hold never-1")
    assert until(run, "on") == "on"
    listed = json.loads(server.home.kedge("runs", "--host", server.host, "--json").out)
    run_id = next(one["run_id"] for one in listed if one["prompt"].endswith("never-1"))
    cancelled = server.home.kedge("cancel", "--host", server.host, run_id)
    assert cancelled.out == f"cancelled run {run_id} (was active)\n"
    _, err = run.communicate(timeout=20)
    assert (run.returncode, err) == (130, "kedge: the run was cancelled\n")


def test_interrupted_run_is_exit_1_with_a_message(own_server: Server) -> None:
    with own_server.home.config.open("a") as config:
        config.write('\n[runs]\non_crash = "end"\n')
    own_server.stop()
    own_server.start()
    run = own_server.home.start_kedge("run", "--host", own_server.host, "script: say on | hang")
    assert until(run, "on") == "on"
    own_server.stop(signal.SIGTERM)
    own_server.start()
    _, err = run.communicate(timeout=20)
    assert run.returncode == 1
    assert err.startswith("kedge: the run was interrupted (")
    assert err.count("\n") == 1


def test_permanently_lost_server_is_exit_4(own_server: Server) -> None:
    """F6."""
    run = own_server.home.start_kedge("run", "--host", own_server.host, "--reconnect", "0.3", "script: say on | hang")
    assert until(run, "on") == "on"
    own_server.kill()
    _, err = run.communicate(timeout=20)
    assert run.returncode == 4
    assert err.startswith("kedge: No server is listening at unix://")
    assert err.count("\n") == 1


def test_run_survives_a_server_restart(own_server: Server, endpoint: HostedEndpoint) -> None:
    """F6. The resumed Run repeats text that the killed server had sent but not stored, in a separate message."""
    run = own_server.home.start_kedge("run", "--host", own_server.host, "script: say on | hold cli-back | say end")
    assert until(run, "on") == "on"
    own_server.kill()
    own_server.start()
    endpoint.release("cli-back")
    out, err = run.communicate(timeout=30)
    assert (run.returncode, err) == (0, "")
    assert out.split()[-1] == "end"


def test_unreachable_host_is_exit_4(home: Home) -> None:
    done = home.kedge("run", "--host", "unix:///nowhere.sock", "hello")
    assert (done.code, done.out) == (4, "")
    assert done.err == "kedge: No server is listening at unix:///nowhere.sock. Start one with: kedge serve\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "   "],
        ["run", "--timeout", "0", "x"],
        ["run", "--timeout", "nan", "x"],
        ["run", "--max-steps", "0", "x"],
        ["run", "--output", "xml", "x"],
        ["run", "--budget", "0", "x"],
        ["run", "--allow", "no rule (", "x"],
        ["run", "--deny", "", "x"],
        ["run", "--attach", "/no/such/file", "x"],
        ["run", "--attach", "/", "x"],
        ["run", "!"],
        ["run", "--attach", "/dev/null", "!ls"],
        ["approvals", "no-such-command"],
        ["approvals", "allow"],
        ["approvals", "answer", "x"],
        ["approvals", "allow", "x", "--session", "--always"],
        ["run", "--when-busy", "panic", "x"],
        ["run", "-C", "-s", "abc", "x"],
        ["run", "--cwd", "/no/such/directory", "x"],
        ["run", "--no-such-option", "x"],
        ["no-such-command"],
        ["cancel"],
        ["sessions", "show"],
        ["sessions", "no-such-command"],
    ],
)
def test_wrong_usage_is_exit_2_with_one_line(home: Home, arguments: list[str]) -> None:
    done = home.kedge(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("kedge: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith(" --help\n")


def test_invalid_host_is_exit_1(home: Home) -> None:
    done = home.kedge("run", "--host", "nonsense", "x")
    assert done.code == 1
    assert "tcp://127.0.0.1:PORT" in done.err


def test_json_output_is_one_object(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "--output", "json", "hello")
    end = json.loads(done.out)
    assert done.code == 0
    assert (end["outcome"], end["text"]) == ("completed", "You said: hello")
    assert {"run_id", "session_id", "message_id", "usage", "cleanup", "reason"} <= set(end)
    failed = server.home.kedge("run", "--host", server.host, "--output", "json", "script: fail 400 no")
    assert (failed.code, json.loads(failed.out)["outcome"]) == (1, "failed")


def test_stream_json_prints_the_wire_envelopes(server: Server) -> None:
    """F10."""
    done = server.home.kedge("run", "--host", server.host, "--output", "stream-json", "script: words 5")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert all(set(line) == {"type", "payload"} and set(line["payload"]) == {"type", "payload"} for line in lines)
    assert {"message", "run", "run_complete"} <= {line["type"] for line in lines}
    assert lines[-1]["type"] == "run_complete"
    run_id = lines[-1]["payload"]["payload"]["run_id"]
    assert {line["payload"]["payload"].get("run_id", run_id) for line in lines} == {run_id}


def test_session_continues_by_id_prefix_and_continue(server: Server) -> None:
    first = json.loads(server.home.kedge("run", "--host", server.host, "--output", "json", "one").out)
    for choice in (["-s", first["session_id"]], ["-s", first["session_id"][:-2]], ["-C"]):
        done = server.home.kedge("run", "--host", server.host, "--output", "json", *choice, "more")
        assert json.loads(done.out)["session_id"] == first["session_id"]
    other = json.loads(server.home.kedge("run", "--host", server.host, "--output", "json", "new").out)
    assert other["session_id"] != first["session_id"]
    unknown = server.home.kedge("run", "--host", server.host, "-s", "nosuch", "x")
    assert unknown.code == 1
    assert "kedge sessions list" in unknown.err
    ambiguous = server.home.kedge("run", "--host", server.host, "-s", first["session_id"][:1], "x")
    assert ambiguous.code == 1
    assert "Give more of the id" in ambiguous.err


def test_continue_in_a_new_workspace_starts_a_session(server: Server) -> None:
    assert server.home.kedge("run", "--host", server.host, "-C", "hello").out == "You said: hello\n"


def test_cwd_names_another_workspace(server: Server) -> None:
    other = server.home.root / "other"
    other.mkdir()
    server.home.kedge("run", "--host", server.host, "--cwd", str(other), "there")
    listed = server.home.kedge("sessions", "list", "--host", server.host, "--json", cwd=other)
    assert len(json.loads(listed.out)) == 1
    assert json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out) == []


def test_busy_session_queues_by_default_and_can_reject(server: Server, endpoint: HostedEndpoint) -> None:
    """F1: the end of the earlier Run is not the end of this one."""
    first = server.home.start_kedge(
        "run", "--host", server.host, "--output", "stream-json", "script: say one | hold cli-busy"
    )
    assert first.stdout
    envelope = json.loads(first.stdout.readline())
    session_id = envelope["payload"]["payload"].get("session_id") or envelope["payload"]["payload"]["id"]
    rejected = server.home.kedge("run", "--host", server.host, "-s", session_id, "--when-busy", "reject", "no")
    assert (rejected.code, rejected.err.count("\n")) == (1, 1)
    queued = server.home.start_kedge("run", "--host", server.host, "-v", "-s", session_id, "two")
    assert queued.stderr
    assert queued.stderr.readline().endswith(": queued\n")
    endpoint.release("cli-busy")
    out, _ = queued.communicate(timeout=20)
    assert (queued.returncode, out) == (0, "You said: two\n")
    first.communicate(timeout=20)
    assert first.returncode == 0


def test_unknown_model_fails_with_a_remedy(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "-m", "no/such", "hello")
    assert done.code == 1
    assert done.err.startswith("kedge: ")


def test_effort_is_that_of_the_run(server: Server, endpoint: HostedEndpoint) -> None:
    for effort, sent in (("high", "high"), ("default", None)):
        server.home.kedge("run", "--host", server.host, "--effort", effort, f"script: tag cli-{effort} | say done")
        (request,) = (one for one in endpoint.requests if one.tag == f"cli-{effort}")
        assert request.body.get("reasoning_effort") == sent
    assert server.home.kedge("run", "--host", server.host, "--effort", "most", "hello").code == 2


def test_closed_stdout_prints_no_error(server: Server) -> None:
    run = server.home.start_kedge("run", "--host", server.host, "script: words 50000")
    assert run.stdout
    os.read(run.stdout.fileno(), 10)
    run.stdout.close()
    assert run.stderr
    assert run.stderr.read() == ""
    assert run.wait(20) == 1
    run.stderr.close()


def test_other_commands_exit_quietly_on_closed_stdout(server: Server) -> None:
    server.home.kedge("run", "--host", server.host, "hello")
    for command in (["sessions", "list", "--host", server.host], ["--help"], []):
        read, write = os.pipe()
        os.close(read)  # closed before the command starts
        run = server.home.start_kedge(*command, stdout=write)
        os.close(write)
        _, err = run.communicate(timeout=20)
        assert err == "", command


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_handles_are_not_mistaken_for_sockets(server: Server, closed: str) -> None:
    for prompt, code in (("hello", 0), ("script: fail 400 no", 1)):
        done = subprocess.run(
            ["sh", "-c", f'{sys.executable} -m kedge run --host {server.host} "$1" {closed}', "sh", prompt],
            env=server.home.env,
            cwd=server.home.workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert done.stdout == ("You said: hello\n" if code == 0 and " >" not in f" {closed}" else "")


def test_reasoning_is_not_part_of_the_answer(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "script: think secret thoughts | say hello")
    assert done.out == "hello\n"
