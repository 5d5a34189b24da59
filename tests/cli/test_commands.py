from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from kedge import __version__
from kedge.cli.main import COMMANDS, main
from kedge.testing import HostedEndpoint
from tests.client.fixtures import server_pids
from tests.client.process import Home, Server, until

EVERY_COMMAND = [
    *([name] for name in COMMANDS if name not in ("sessions", "config", "workspaces", "store")),
    *(["workspaces", name] for name in ("list", "remove")),
    *(["store", name] for name in ("check", "copy")),
    *(["sessions", name] for name in ("list", "show", "rename", "delete", "export", "search")),
    *(["sessions", name] for name in ("files", "undo", "model", "summarize")),
    *(["approvals", name] for name in ("list", "allow", "deny", "answer", "grants", "revoke")),
    *(["config", name] for name in ("path", "show")),
    ["mcp", "serve"],
]


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_every_command_has_help_with_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert "Examples:\n    " in capsys.readouterr().out


def test_no_command_prints_help(home: Home) -> None:
    done = home.kedge()
    assert (done.code, done.err) == (0, "")
    assert 'kedge run "' in done.out
    assert home.kedge("--version").out == f"kedge {__version__}\n"
    assert "sessions" in home.kedge("--help").out


# --- stop ------------------------------------------------------------------------------------------------------------


def test_stop_interrupts_runs_only_if_forced(own_server: Server) -> None:
    command, _, _ = hanging(own_server, "stop-1")
    refused = own_server.home.kedge("stop", "--host", own_server.host)
    assert (refused.code, refused.out) == (1, "")
    assert "Runs or commands are active" in refused.err
    assert refused.err.count("\n") == 1
    forced = own_server.home.kedge("stop", "--host", own_server.host, "--force")
    assert (forced.code, forced.out, forced.err) == (0, "stopped\n", "")
    assert own_server.process
    assert own_server.process.wait(20) == 0
    command.communicate(timeout=60)
    assert command.returncode != 0
    gone = own_server.home.kedge("stop", "--host", own_server.host)
    assert (gone.code, gone.out) == (4, "")


def test_next_command_starts_a_server_after_stop(in_home: Home) -> None:
    assert in_home.kedge("stop").out == "no server is running\n"
    in_home.kedge("run", "hello")
    before = server_pids(in_home)
    assert in_home.kedge("stop").out == "stopped\n"
    assert server_pids(in_home) == []
    assert in_home.kedge("run", "hello").out == "You said: hello\n"
    assert server_pids(in_home) != before
    assert in_home.kedge("stop").code == 0


# --- runs and cancel ------------------------------------------------------------------------------------------------


def hanging(server: Server, key: str, *arguments: str) -> tuple[subprocess.Popen[str], str, str]:
    """A command whose Run holds until `key` is released, its run id and its session id."""
    command = server.home.start_kedge(
        "run",
        "--host",
        server.host,
        "--output",
        "stream-json",
        *arguments,
        f"script: say on | hold {key} | say last\nmore",
    )
    assert command.stdout
    run = json.loads(command.stdout.readline())["payload"]["payload"]
    return command, run["run_id"], run["session_id"]


def test_runs_lists_live_runs(server: Server) -> None:
    command, run_id, session_id = hanging(server, "runs-1")
    listed = server.home.kedge("runs", "--host", server.host)
    line = next(line for line in listed.out.splitlines() if run_id in line)
    assert line.split()[:3] == [run_id, session_id, "active"]
    assert line.endswith("script: say on | hold runs-1 | say last")
    found = json.loads(server.home.kedge("runs", "--host", server.host, "--json").out)
    assert run_id in [run["run_id"] for run in found]
    cancelled = server.home.kedge("cancel", "--host", server.host, "--json", session_id)
    assert [covered["run_id"] for covered in json.loads(cancelled.out)["covered"]] == [run_id]
    command.communicate(timeout=20)
    assert command.returncode == 130
    again = server.home.kedge("cancel", "--host", server.host, session_id)
    assert (again.code, again.out) == (0, f"session {session_id} is idle: nothing to cancel\n")
    ended = server.home.kedge("cancel", "--host", server.host, run_id)
    assert (ended.code, ended.out) == (0, f"run {run_id} has ended (cancelled): nothing to cancel\n")


def test_cancel_takes_a_prefix_and_lists_covered_runs(server: Server) -> None:
    first, run_id, session_id = hanging(server, "cancel-1")
    second, queued_id, _ = hanging(server, "cancel-2", "-s", session_id)
    one = server.home.kedge("cancel", "--host", server.host, queued_id[:13])
    assert one.out == f"cancelled run {queued_id} (was queued)\n"
    second.communicate(timeout=20)
    third, third_id, _ = hanging(server, "cancel-3", "-s", session_id)
    both = server.home.kedge("cancel", "--host", server.host, session_id[:-1])
    assert sorted(both.out.splitlines()) == sorted(
        [f"cancelled run {run_id} (was active)", f"cancelled run {third_id} (was queued)"]
    )
    for command in (first, third):
        command.communicate(timeout=20)
        assert command.returncode == 130


def test_cancel_of_an_unknown_run_is_exit_1(server: Server) -> None:
    for target in ("no-such-thing", "", ".."):
        done = server.home.kedge("cancel", "--host", server.host, target)
        assert (done.code, done.out) == (1, "")
        assert "List live runs with: kedge runs" in done.err


def test_runs_and_cancel_start_no_server(home: Home) -> None:
    done = home.kedge("runs")
    assert (done.code, done.out, done.err) == (0, "no server is running\n", "")
    assert home.kedge("runs", "--json").out == "[]\n"
    assert home.kedge("cancel", "x").code == 4
    attached = home.kedge("attach", "x")
    assert attached.code == 4
    assert "kedge sessions show" in attached.err
    assert not (home.data / "server.log").exists()
    assert home.kedge("runs", "--host", "unix:///nowhere.sock").code == 4


# --- sessions -------------------------------------------------------------------------------------------------------


def test_session_commands(server: Server) -> None:
    def sessions(*arguments: str) -> str:
        done = server.home.kedge("sessions", arguments[0], "--host", server.host, *arguments[1:])
        assert (done.code, done.err) == (0, "")
        return done.out

    assert "no sessions yet" in sessions("list")
    assert json.loads(sessions("list", "--json")) == []
    server.home.kedge("run", "--host", server.host, "script: say unusual | tool no_such {} | say words")
    (session,) = json.loads(sessions("list", "--json"))
    prefix = session["id"][:8]
    assert session["id"] in sessions("list")
    shown = sessions("show", prefix)
    assert "> script: say unusual" in shown
    assert "* no_such {}" in shown
    assert "words" in shown
    assert json.loads(sessions("show", prefix, "--json"))["messages"][0]["role"] == "user"
    assert sessions("rename", prefix, "A new name") == f"renamed session {session['id']} to 'A new name'\n"
    assert json.loads(sessions("rename", prefix, "Another", "--json"))["title"] == "Another"
    assert "unusual" in sessions("export", prefix)
    assert "Another" in json.dumps(json.loads(sessions("export", prefix, "--format", "json")))
    target = server.home.workspace / "talk.html"
    assert sessions("export", prefix, "--format", "html", "-o", str(target)) == ""
    assert target.read_text().lstrip().lower().startswith("<!doctype html")
    assert session["id"] in sessions("search", "unusual")
    assert json.loads(sessions("search", "unusual", "--json"))[0]["session_id"] == session["id"]
    assert sessions("search", "nowheretobefound") == "no matches\n"
    refused = server.home.kedge("sessions", "delete", "--host", server.host, prefix)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert sessions("delete", prefix, "--yes") == f"deleted session {session['id']}\n"
    gone = server.home.kedge("sessions", "show", "--host", server.host, prefix)
    assert gone.code == 1


def test_failed_export_is_reported_in_one_line(server: Server) -> None:
    server.home.kedge("run", "--host", server.host, "hello")
    (session,) = json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out)
    done = server.home.kedge("sessions", "export", "--host", server.host, session["id"], "-o", "/no/such/place")
    assert (done.code, done.err) == (1, "kedge: /no/such/place: No such file or directory\n")


def test_sessions_list_starts_a_server(in_home: Home) -> None:
    assert in_home.kedge("sessions", "list", "--json").out == "[]\n"


# --- attach ---------------------------------------------------------------------------------------------------------


def test_attach_prints_the_transcript_then_new_events(server: Server, endpoint: HostedEndpoint) -> None:
    server.home.kedge("run", "--host", server.host, "first prompt")
    run = server.home.start_kedge(
        "run", "--host", server.host, "-C", "script: say alpha | hold att-1 | say beta | tool no_such {} | fail 400 oh"
    )
    assert until(run, "alpha") == "alpha"
    (session,) = json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out)
    attached = server.home.start_kedge("attach", "--host", server.host, session["id"])
    assert until(attached, "> script") == "> first prompt\nYou said: first prompt\n> script"
    assert until(attached, "\nalpha").count("\n") == 1
    endpoint.release("att-1")
    run.communicate(timeout=20)
    assert until(attached, "\n") == " beta\n"
    assert until(attached, "\n") == "* no_such {}\n"
    assert until(attached, "\n").startswith("  -> failed: ")
    assert until(attached, "\n").startswith("[failed: ")
    attached.send_signal(signal.SIGINT)
    assert attached.wait(20) == 0


def test_attach_json_prints_the_wire_envelopes(server: Server) -> None:
    server.home.kedge("run", "--host", server.host, "hello")
    (session,) = json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out)
    attached = server.home.start_kedge("attach", "--json", "--host", server.host, session["id"])
    assert attached.stdout
    told = [json.loads(attached.stdout.readline()) for _ in range(2)]
    assert [one["payload"]["payload"]["role"] for one in told] == ["user", "assistant"]
    server.home.kedge("sessions", "delete", "--yes", "--host", server.host, session["id"])
    _, err = attached.communicate(timeout=20)
    assert (attached.returncode, err) == (0, "the session was deleted\n")


def test_attach_finds_a_session_of_another_open_workspace(server: Server, endpoint: HostedEndpoint) -> None:
    command, _, session_id = hanging(server, "att-other")
    elsewhere = server.home.root / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    attached = server.home.start_kedge("attach", "--host", server.host, "--cwd", str(elsewhere), session_id)
    assert attached.stdout
    assert attached.stdout.readline() == "> script: say on | hold att-other | say last\n"
    attached.send_signal(signal.SIGINT)
    assert attached.wait(20) == 0
    endpoint.release("att-other")
    command.communicate(timeout=20)
    unknown = server.home.kedge("attach", "--host", server.host, "no-such-session")
    assert (unknown.code, "kedge sessions list" in unknown.err) == (1, True)


# --- config and doctor ----------------------------------------------------------------------------------------------


def test_config_path_and_show_mask_secrets(server: Server) -> None:
    assert server.home.kedge("config", "path").out == f"{server.home.config}\n"
    assert json.loads(server.home.kedge("config", "path", "--json").out)["exists"] is True
    shown = server.home.kedge("config", "show", "--host", server.host)
    assert "model = local/fake-large" in shown.out
    as_json = server.home.kedge("config", "show", "--host", server.host, "--json")
    assert json.loads(as_json.out)["model"] == "local/fake-large"
    assert "secret-canary-key" not in shown.out + as_json.out


def findings(home: Home, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = home.kedge("doctor", "--json", *arguments)
    assert done.err == ""
    return done.code, {finding["subject"]: finding for finding in json.loads(done.out)}


def test_doctor_works_without_a_server_and_starts_none(home: Home) -> None:
    home.data.chmod(0o700)
    home.config.chmod(0o600)
    code, found = findings(home)
    assert code == 0
    assert {finding["status"] for finding in found.values()} == {"ok"}
    assert "not running" in found["server"]["message"]
    assert {"processes", "sandbox", "ripgrep"} <= set(found)
    # On any machine, it does not report the network as confined.
    assert "Not restricted: reading, the network" in found["sandbox"]["message"]
    assert found["model"]["message"] == f"local/fake-large ({home.config})"
    assert not (home.data / "server.log").exists()
    home.data.rmdir()
    assert findings(home)[1]["data directory"]["status"] == "ok"
    assert not home.data.exists()


def test_doctor_with_a_server_names_it_and_the_model(own_server: Server) -> None:
    code, found = findings(own_server.home, "--host", own_server.host)
    assert code == 0
    assert own_server.process
    assert f"version {__version__}, pid {own_server.process.pid}" in found["server"]["message"]
    assert found["configuration"]["status"] == "ok"
    assert found["model"]["message"] == f"local/fake-large ({own_server.home.config})"
    text = own_server.home.kedge("doctor", "--host", own_server.host).out
    assert all(line.startswith(("ok  ", "warn", "      -> ")) for line in text.splitlines())


def test_doctor_reports_a_missing_model(home: Home) -> None:
    home.config.unlink()
    server = Server(home).start()
    try:
        code, found = findings(home, "--host", server.host)
    finally:
        server.stop()
    assert (code, found["model"]["status"]) == (0, "warn")
    assert str(home.config) in found["model"]["what_to_do"]
    assert str(home.config) in found


def test_doctor_reports_problems_with_remedies(home: Home) -> None:
    home.config.write_text("model = [broken")
    home.data.chmod(0o755)
    (home.data / "token").write_text("secret")
    (home.data / "token").chmod(0o644)
    (home.data / "run").mkdir()
    (home.data / "run" / findings(home)[1]["socket"]["message"].split()[0]).write_text("not a socket")
    code, found = findings(home)
    assert code == 1
    assert (found[str(home.config)]["status"], found["socket"]["status"]) == ("fail", "fail")
    assert (found["data directory"]["status"], found["token file"]["status"]) == ("warn", "warn")
    assert found["token file"]["what_to_do"] == f"chmod 600 {home.data}/token"
    assert all(finding["what_to_do"] for finding in found.values() if finding["status"] != "ok")
    assert findings(home, "--host", "unix:///nowhere.sock")[1]["server"]["status"] == "fail"


def test_doctor_reports_a_stale_socket(in_home: Home) -> None:
    in_home.kedge("runs")
    in_home.kedge("run", "hello")
    _, found = findings(in_home)
    pid = int(found["server"]["message"].rpartition("pid ")[2])
    watched = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([watched], [], [], 20)[0], "it is not our child: this is how its end is waited for"
    os.close(watched)
    code, found = findings(in_home)
    assert (code, found["server"]["status"]) == (0, "warn")
    assert "the next server replaces it" in found["server"]["what_to_do"]


# --- serve ----------------------------------------------------------------------------------------------------------


def test_serve_passes_its_options_to_the_server(home: Home) -> None:
    other = home.root / "other-data"
    server = Server(home, "--data-dir", str(other), "--store", "memory:").start()
    try:
        assert server.tcp.startswith("tcp://127.0.0.1:")
        assert (other / "token").exists()
    finally:
        server.stop()
    refused = home.kedge("serve", "--host", "tcp://0.0.0.0:0")
    assert (refused.code, "--allow-remote" in refused.err) == (1, True)
    bad = home.kedge("serve", "--host", "nonsense")
    assert (bad.code, bad.err.startswith("kedge: ")) == (1, True)


CLIENT_COMMANDS = ("run", "runs", "sessions", "attach", "approvals", "init", "stop", "serve", "tui")
SERVER_MODULES = (
    "kedge.server",
    "kedge.engine",
    "kedge.agent",
    "kedge.store",
    "kedge.warden",
    "uvicorn",
    "apsw",
    "pydantic",
    "textual",
    "rich",
)


def loaded_by(*commands: str) -> list[str]:
    code = (
        f"import sys, kedge.client.sync_client, {', '.join(COMMANDS[name] for name in commands)}\nprint(*sys.modules)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_client_commands_load_neither_server_nor_config() -> None:
    heavy = (*SERVER_MODULES, "kedge.config", "kedge.llm", "kedge.tools")
    assert [name for name in loaded_by(*CLIENT_COMMANDS) if name.startswith(heavy)] == []


def test_no_command_loads_the_server_for_its_help() -> None:
    assert [name for name in loaded_by(*COMMANDS) if name.startswith(SERVER_MODULES)] == []
