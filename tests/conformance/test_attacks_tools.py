"""Attacks by tool processes: on the secrets and the process of the server, and on local addresses through fetch."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from proof.figures import IS_LONG, proof, size
from tests.conformance.harness import Endpoint, Json, Peer, Server, results_of, unique
from tests.conformance.test_attacks_permissions import tried, tried_at_once
from tests.conformance.test_b_tools import marked, processes_with, until_gone, until_seen, until_there
from tests.conformance.test_i_agent import call

#: Variables that often contain secrets, besides those of kedge itself.
SECRET_VARIABLES = (
    "LOCAL_API_KEY",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "SSH_AUTH_SOCK",
    "BASH_ENV",
    "ENV",
    "PROMPT_COMMAND",
    "LD_PRELOAD_NOT",
    "PYTHONSTARTUP",
    "GIT_SSH_COMMAND",
    "DATABASE_URL",
)


async def is_answering(kedge: Peer) -> bool:
    return (await kedge.reply("GET", "/health")).status_code == 200


async def has_namespace(kedge: Peer) -> bool:
    """Return True if tools run in a pid namespace. Without one they can kill every process of the user."""
    (result,) = await tried(kedge, call("bash", command="readlink /proc/self/ns/pid"), mode="yolo")
    return str(result["content"]).strip() != os.readlink("/proc/self/ns/pid")


# --- the environment of a process ------------------------------------------------------------------------------------


async def test_tool_processes_cannot_read_the_servers_secrets(
    own_server: Callable[..., Server], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No secret is in its own environment nor in that of a process it can see."""
    canary = unique("canary")
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, canary)
    server = own_server('[providers.other]\nbase_url = "http://127.0.0.1:1/v1"\napi_key = "$LOCAL_API_KEY"\n')
    server.kill()
    server.start(token=f"{canary}-token-of-the-server")
    with suppress(PermissionError):  # only root may read it
        assert canary.encode() in Path(f"/proc/{server.pid}/environ").read_bytes()
    async with server.peer(workspace) as kedge:
        searched = "for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do tr '\\0' '\\n' < $f; done 2>/dev/null"
        commands = ["env", "set", "cat /proc/self/environ /proc/$PPID/environ; true"]
        if await has_namespace(kedge):
            commands += ["cat /proc/1/environ; true", searched]
        results = await tried_at_once(kedge, *(call("bash", command=command) for command in commands), mode="yolo")
        shell = f"{kedge.at}/agent/sessions/{await kedge.session()}/shell"
        typed = await kedge.call("POST", shell, {"command": "env"})
    for text in (*(result["content"] for result in results), typed["output"]):
        assert canary not in text
    assert "PATH=" in results[0]["content"]
    assert "PATH=" in typed["output"]


async def test_tool_processes_have_three_descriptors_and_no_tty(kedge: Peer) -> None:
    listed = "find /proc/$$/fd -type l -printf '%f %l\\n'; true"
    results = await tried(
        kedge, call("bash", command=listed), call("bash", command="echo x > /dev/tty; tty"), mode="yolo"
    )
    found = dict(line.split(" ", 1) for line in results[0]["content"].strip().split("\n"))
    assert {"0", "1", "2"} <= set(found) <= {"0", "1", "2", "255"}  # a shell has its own descriptor 255
    assert found["0"] == "/dev/null"
    assert found["1"].startswith("pipe:")
    assert found["2"].startswith("pipe:")
    assert "not a tty" in results[1]["content"]


@pytest.mark.parametrize("path", [".:{path}", "{path}:", "./:bin:{path}"])
async def test_a_repository_cannot_replace_an_unapproved_command(
    own_server: Callable[..., Server], workspace: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """`ls` and `echo` need no approval, so they must be the programs of the machine, even if PATH contains the
    workspace."""
    monkeypatch.setenv("PATH", path.format(path=os.environ["PATH"]))
    for name in ("ls", "bash", "sh", "echo", "pwd", "whoami", "rg", ".bashrc", ".profile", ".bash_profile"):
        for trap in (workspace / name, workspace / "bin" / name):
            trap.parent.mkdir(exist_ok=True)
            trap.write_text("#!/bin/sh\n/bin/touch trapped\n")
            trap.chmod(0o755)
    (workspace / ".ripgreprc").write_text("--pre=./sh\n")
    calls = [call("bash", command=command) for command in ("ls", "echo hi", "pwd", "whoami", "which ls")]
    async with own_server().peer(workspace) as kedge:
        results = await tried_at_once(kedge, *calls, call("grep", pattern="x"), call("glob", pattern="*"), call("ls"))
    assert not any(result["is_error"] for result in results)
    assert list(workspace.rglob("trapped")) == []


async def test_a_nested_bare_repository_runs_nothing_under_a_git_rule(kedge: Peer) -> None:
    """A clone may contain a bare repository as plain files, whose configuration names a program. A rule for
    `git status` must not run it."""
    hidden = kedge.directory / "docs"
    for directory in ("objects", "refs"):
        (hidden / directory).mkdir(parents=True)
    (hidden / "HEAD").write_text("ref: refs/heads/main\n")
    (hidden / "config").write_text(
        f'[core]\nrepositoryformatversion = 0\nbare = false\nworktree = "{hidden}"\n'
        f'fsmonitor = "touch {kedge.directory}/trapped; false"\n'
    )
    # Check that the trap works at all. The settings of the user who runs this test are not used.
    plain = {"PATH": os.environ["PATH"], "HOME": str(kedge.directory), "GIT_CONFIG_NOSYSTEM": "1"}
    git = await asyncio.create_subprocess_exec("git", "status", cwd=hidden, env=plain, stdout=subprocess.DEVNULL)
    await git.wait()
    assert (kedge.directory / "trapped").exists()
    (kedge.directory / "trapped").unlink()
    for command in ("git status", "git diff", "git add -A"):
        await tried(kedge, call("bash", command=command, cwd="docs"), allow=["bash(git status)", "bash(git *)"])
    assert not (kedge.directory / "trapped").exists()


# --- the server process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "kill -9 -1; sleep 1000",
        "kill -TERM -1; sleep 1000",
        "trap '' TERM INT HUP; sleep 1000 & sleep 1000; sleep 1000",
        "(setsid nohup sh -c 'trap \"\" TERM HUP; touch daemon; while :; do sleep 1000; done' >/dev/null 2>&1 &); "
        "until [ -e daemon ] && [ -e seen ]; do sleep 0.1; done; exit 0",
        # A bounded fork bomb: each process starts two more, seven times.
        "f() { [ $1 -eq 0 ] && sleep 1000; f $(($1 - 1)) & f $(($1 - 1)) & wait; }; f 7",
        "kill -STOP $$",
        "exec 1>&- 2>&-; sleep 1000",
    ],
    ids=["kill-all", "term-all", "deaf", "daemon", "bomb", "stopped", "mute"],
)
async def test_the_server_survives_any_command_and_the_run_ends(kedge: Peer, command: str) -> None:
    if command.startswith("kill") and "-1" in command and not await has_namespace(kedge):
        pytest.skip("without a pid namespace this kills all processes of the user")
    session, mark = await kedge.session(), unique("mark")
    # Long enough to be seen before the timeout on a busy machine.
    bash = call("bash", command=marked(mark, f"touch ready; {command}"), timeout_s=3)
    async with kedge.stream(session_id=session) as stream:
        run_id = (await kedge.submit(session, f"script: {bash} | say over", mode="yolo"))["run_id"]
        await until_there(kedge.directory / "ready")
        await until_seen(mark)
        (kedge.directory / "seen").touch()
        assert await is_answering(kedge)
        (complete,) = await stream.until_complete(run_id)
        assert (complete["outcome"], complete["text"], complete["cleanup"]) == ("completed", "over", "clean")
        assert processes_with(mark) == []
    assert await is_answering(kedge)


@pytest.mark.proof
@pytest.mark.timeout(600 if IS_LONG else 60)
@pytest.mark.parametrize(
    ("source", "count"),
    [
        pytest.param("head -c {count} /dev/zero", 1_000_000_000, id="one line"),
        pytest.param("yes | head -c {count}", size(100_000_000, 10_000_000_000), id="lines"),
    ],
)
async def test_gigabytes_of_output_do_not_block_the_server(kedge: Peer, source: str, count: int) -> None:
    session = await kedge.session()
    bash = call("bash", command=f"touch ready; {source.format(count=count)}; echo the end", timeout_s=500)
    with proof("G14", "megabytes poured out by commands", "servers that did not answer") as figure:
        # The stream keeps the workspace open: this may take longer than the grace.
        async with kedge.stream():
            run_id = (await kedge.submit(session, f"script: {bash} | say over", mode="yolo"))["run_id"]
            await until_there(kedge.directory / "ready")
            answers = 0
            while (await kedge.run(run_id))["state"] != "ended":
                assert await is_answering(kedge)
                answers += 1
        assert answers > 0
        (result,) = results_of(await kedge.messages(session))
        assert len(result["content"]) < 40_000
        assert "the end" in result["content"]
        figure.count = count // 1_000_000


async def test_a_cancel_ends_every_process_of_a_fork_bomb(kedge: Peer) -> None:
    session, mark = await kedge.session(), unique("mark")
    bomb = marked(mark, "f() { [ $1 -eq 0 ] && sleep 1000; f $(($1 - 1)) & f $(($1 - 1)) & touch ready; wait; }; f 7")
    run_id = (await kedge.submit(session, f"script: {call('bash', command=bomb)} | say never", mode="yolo"))["run_id"]
    await until_there(kedge.directory / "ready")
    await until_seen(mark)
    await kedge.cancel_run(run_id)
    run = await kedge.wait(run_id)
    assert (run["outcome"], run["cleanup"]) == ("cancelled", "clean")
    assert processes_with(mark) == []


async def test_a_daemon_ends_with_a_killed_server(own_server: Callable[..., Server], workspace: Path) -> None:
    server, mark = own_server(), unique("mark")
    daemon = "(setsid sh -c 'trap \"\" TERM HUP; touch ready; while :; do sleep 1; done' &); sleep 1000"
    async with server.peer(workspace) as kedge:
        bash = call("bash", command=marked(mark, daemon), background=True)
        await kedge.submit(await kedge.session(), f"script: {bash} | hang", mode="yolo")
        await until_there(workspace / "ready")
        await until_seen(mark)
    server.kill()
    await until_gone(mark)


# --- the server itself as a target -----------------------------------------------------------------------------------

ASK_THE_SERVER = """
import http.client, json, pathlib, socket, sys
class Local(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1])
local = Local("localhost")
local.request("PUT", sys.argv[2], json.dumps({"mode": "yolo"}), {"content-type": "application/json"})
print("answered", local.getresponse().status)
"""


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
async def test_a_command_cannot_change_the_mode(
    own_server: Callable[..., Server], workspace: Path, sandbox: str
) -> None:
    """One allowed command tries to allow all later ones through the socket of the server."""
    server = own_server(f'[sandbox]\nmode = "{sandbox}"\n')
    async with server.peer(workspace) as kedge:
        (workspace / "ask.py").write_text(ASK_THE_SERVER)
        session = await kedge.session()
        switch = f"python3 ask.py {server.socket} /v1{kedge.at}/sessions/{session}"
        (result,) = await tried(kedge, call("bash", command=switch), allow=[f"bash({switch})"])
        assert "Traceback" in result["content"], "the connection was refused"
        assert "answered" not in result["content"].splitlines()
        assert await kedge.mode(session) == "ask"


async def test_sandboxed_commands_cannot_write_kedges_own_files(
    own_server: Callable[..., Server], workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration, the trust list, the database and the hooks of another repository stay unchanged."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # the default one contains the whole test
    server = own_server('[sandbox]\nmode = "workspace-write"\n')
    config = server.home / "config.toml"
    before = config.read_bytes()
    async with server.peer(workspace) as kedge:
        targets = (config, server.data_dir / "trusted.json", server.data_dir / "token", tmp_path / "elsewhere/x")
        commands = [f"echo x >> {target}" for target in targets]
        results = await tried(kedge, *(call("bash", command=command) for command in commands), mode="yolo")
        refusals = ("denied", "Read-only file system", "No such file")  # the last: kedge's data directory is hidden
        assert all(any(text in result["content"] for text in refusals) for result in results)
        await tried(kedge, call("bash", command="echo x >> here"), mode="yolo")
    assert (workspace / "here").read_text() == "x\n"
    assert config.read_bytes() == before
    assert not (server.data_dir / "trusted.json").exists()


# --- fetch -----------------------------------------------------------------------------------------------------------


async def test_fetch_never_reaches_local_addresses(kedge: Peer, endpoint: Endpoint) -> None:
    port, before = endpoint.hosted.url.split(":")[2].split("/")[0], len(endpoint.hosted.requests)
    hosts = (
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "127.1",
        "0x7f.1",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.1.",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[fe80::1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "[fd00::1]",
        "224.0.0.1",
        "x.localhost",
        "\uff11\uff12\uff17.0.0.1",
        "127\u30020.0.1",
        "\u2460\u2461\u2466.0.0.1",
    )
    urls = [f"http://{host}:{port}/v1/models" for host in hosts]
    urls += [f"file://{Path('/etc/passwd')}", f"http://user:x@127.0.0.1:{port}/", "http://127.0.0.1:22/"]
    urls += ["gopher://127.0.0.1/", f"https://localhost:{port}/", f"http:\\\\127.0.0.1:{port}/", "http:///etc/passwd"]
    results = await tried_at_once(kedge, *(call("fetch", url=url) for url in urls), mode="yolo")
    reached = [url for url, result in zip(urls, results, strict=True) if not result["is_error"]]
    assert reached == []
    assert all("fake-large" not in result["content"] and "root:" not in result["content"] for result in results)
    assert {request.headers.get("user-agent") for request in endpoint.hosted.requests[before:]} & {"kedge"} == set()


async def test_fetch_asks_for_the_url_and_grants_the_host(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    urls = (
        "http://docs.python.org@127.0.0.1:{port}/",
        "http://127.0.0.1:{port}/?docs.python.org",
        "http://docs.python.org.evil.example/",
        "http://evil.example/docs.python.org",
    )
    port = endpoint.hosted.url.split(":")[2].split("/")[0]
    calls = [call("fetch", url=url.format(port=port)) for url in urls]
    script = f"script: {' | '.join(calls)} | say over"
    rules: Json = {"allow": ["fetch(docs.python.org)"], "on_approval": "fail"}
    await kedge.wait((await kedge.submit(session, script, **rules))["run_id"])
    assert all(result["is_error"] for result in results_of(await kedge.messages(session)))
    async with kedge.stream(session_id=session) as stream:
        made = call("fetch", url="https://ex\u0430mple.org/\u202egpj.exe")
        run_id = (await kedge.submit(session, f"script: {made} | say over"))["run_id"]
        (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        assert "xn--" in asked.payload["params"]["url"]
        assert asked.payload["grant"].startswith("fetch(xn--")
        assert json.dumps(asked.payload).isascii()
        assert not {"\u202e", "\x1b", "\u0430"} & set(str(asked.payload["params"]) + asked.payload["description"])
        await kedge.cancel_run(run_id)
        await stream.until_complete(run_id)


async def test_many_hanging_commands_do_not_block_the_server(kedge: Peer) -> None:
    busy = "while :; do :; done"
    sessions = [await kedge.session() for _ in range(5)]
    runs = [
        await kedge.submit(session, f"script: {call('bash', command=busy)} | say never", mode="yolo")
        for session in sessions
    ]
    again = await kedge.wait((await kedge.submit(await kedge.session(), "script: say fine"))["run_id"])
    assert again["text"] == "fine"
    await asyncio.gather(*(kedge.cancel(session) for session in sessions))
    ended = await asyncio.gather(*(kedge.wait(run["run_id"]) for run in runs))
    assert {run["outcome"] for run in ended} == {"cancelled"}


# --- limits of a Step ------------------------------------------------------------------------------------------------


@pytest.mark.found(
    "attack round 2: tools that take time or memory",
    "one Step could view an image of 4 MB 128 times, which took 2 GB; the images of a Step share a limit",
)
async def test_images_of_one_step_share_a_limit(kedge: Peer) -> None:
    (kedge.directory / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(3_900_000))
    results = await tried_at_once(kedge, *[call("view", path="p.png")] * 5)
    assert sorted(result["is_error"] for result in results) == [False] * 3 + [True] * 2
    refused = [str(result["content"]) for result in results if result["is_error"]]
    assert all("the pictures of one step are larger than 20 MB" in content for content in refused)
