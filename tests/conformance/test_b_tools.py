"""SCENARIOS B, D, G with tools and approvals: cancels, crashes and late clients during a tool call."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Endpoint, Json, Peer, Server, finish_of, open_http, results_of, unique
from tests.conformance.test_i_agent import MODELS, call
from tests.polling import until


def processes_with(mark: str) -> list[int]:
    """Return the processes of this machine whose command line or environment contains the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            about = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in about and state not in "ZX":
            found.append(int(entry.name))
    return found


def marked(mark: str, command: str) -> str:
    """Return the command with the mark in the environment of all its processes. A mark in the command line is lost when
    a shell replaces itself, and a daemon never has it. The second shell gives it to the first process, too."""
    return f"export KEDGE_MARK={mark}; exec bash -c {shlex.quote(command)}"


async def until_seen(mark: str) -> None:
    """Wait until a marked process is visible, so that a later empty result means something. During `exec` a process has
    no environment for a moment, so one check may miss it."""
    await until(lambda: processes_with(mark))


async def until_gone(mark: str) -> None:
    await until(lambda: not processes_with(mark))


async def until_there(path: Path) -> None:
    await until(path.exists)


#: Three stubborn processes: one ignores TERM, one has its own session, one is a daemon.
STUBBORN = (
    "trap '' TERM; (setsid sh -c 'while :; do sleep 1000; done' &); "
    "(sh -c 'trap \"\" TERM; while :; do sleep 1000; done' &); echo started; touch ready; while :; do sleep 1000; done"
)


@pytest.mark.parametrize("model", MODELS)
async def test_b9_a_cancel_ends_the_process_tree_of_a_tool_first(kedge: Peer, model: str) -> None:
    session, mark = await kedge.session(), unique("mark")
    command = call("bash", command=marked(mark, STUBBORN))
    async with kedge.stream(session_id=session) as stream:
        run_id = (await kedge.submit(session, f"script: {command} | say never", model=model, mode="yolo"))["run_id"]
        await until_there(kedge.directory / "ready")
        await until_seen(mark)
        assert (await kedge.cancel(session))["covered"][0]["run_id"] == run_id
        (complete,) = await stream.until_complete(run_id)
        assert (complete["outcome"], complete["cleanup"]) == ("cancelled", "clean")
        assert processes_with(mark) == []
    (result,) = results_of(await kedge.messages(session))
    assert result["is_error"]
    assert "cut off" in result["content"]
    assert (result["end"], result["content"].partition("\n")[0]) == ("cut_off", "started")
    assert finish_of((await kedge.messages(session))[-1]) == "canceled"
    # The endpoint refuses a history that violates the rules of its provider.
    other = next(other for other in MODELS if other != model)
    for next_model in (model, other):
        again = await kedge.wait((await kedge.submit(session, "script: say fine", model=next_model))["run_id"])
        assert (again["outcome"], again["text"]) == ("completed", "fine")


async def test_b10_a_cancel_withdraws_the_approval_for_all_clients(kedge: Peer) -> None:
    session = await kedge.session()
    command = call("bash", command="touch made")
    async with kedge.stream() as one, kedge.stream(session_id=session) as two:
        run_id = (await kedge.submit(session, f"script: {command} | say never"))["run_id"]
        (asked,) = await one.until(lambda stream: stream.of("permission_request"))
        await kedge.cancel(session)
        for stream in (one, two):
            (complete,) = await stream.until_complete(run_id)
            assert complete["outcome"] == "cancelled"
            (closed,) = stream.of("permission_notification")
            assert closed.payload["withdrawn"]
            assert closed.payload["id"] == asked.payload["id"]
        error = await kedge.answer(asked.payload["id"], "allow", expect=409)
        assert error["code"] == "ask_withdrawn"
    assert await kedge.call("GET", f"{kedge.at}/permissions") == []
    assert not (kedge.directory / "made").exists()
    (result,) = results_of(await kedge.messages(session))
    assert (result["end"], result["summary"]) == ("not_run", "not run")


@pytest.mark.parametrize(
    "script",
    [
        "script: fail 503 retry-after=100 times=5 | say never",
        "script: summary hang | usage 3900 1 | tool ls {} | say never",
    ],
    ids=["retry", "compaction"],
)
async def test_b11_a_cancel_takes_effect_in_every_phase(kedge: Peer, script: str) -> None:
    session = await kedge.session()
    async with kedge.stream(session_id=session) as stream:
        run_id = (await kedge.submit(session, script, model="local/fake-narrow"))["run_id"]
        if "retry" in script:
            await stream.until(lambda stream: stream.of("agent_event"))
        else:
            await stream.until(lambda stream: any(f.payload.get("steps") == 2 for f in stream.of("run")))
        await kedge.cancel_run(run_id)
        (complete,) = await stream.until_complete(run_id)
        assert complete["outcome"] == "cancelled"
    again = await kedge.wait((await kedge.submit(session, "script: say fine"))["run_id"])
    assert again["text"] == "fine"


async def test_b11_a_cancel_ends_the_title_request_too(
    own_server: Callable[..., Server], endpoint: Endpoint, workspace: Path
) -> None:
    server, tag = own_server(titles=True), unique("tag")
    async with open_http(server.url, server.token) as http:
        kedge = await Peer(http, workspace).open()
        session = await kedge.session()
        async with kedge.stream(session_id=session, deltas=1) as stream:
            run_id = (await kedge.submit(session, f"script: tag {tag} | say x | title hang | hang"))["run_id"]
            await stream.until(lambda stream: stream.of("delta"))
            hosted = endpoint.hosted
            await asyncio.to_thread(hosted.wait_until, lambda model: any(tag in aside.text for aside in model.asides))
            (title,) = [aside for aside in hosted.asides if tag in aside.text]
            assert (title.aside, title.closed.is_set()) == ("title", False)
            await kedge.cancel_run(run_id)
            (complete,) = await stream.until_complete(run_id)
            assert (complete["outcome"], complete["cleanup"]) == ("cancelled", "clean")
            await asyncio.to_thread(hosted.wait_closed, title)
            await endpoint.wait_open(tag, 0)
            (request,) = endpoint.requests(tag)
            assert (title.closed_early, request.closed_early) == (True, True)


async def test_b15_nothing_that_a_run_started_outlives_it(kedge: Peer, endpoint: Endpoint) -> None:
    """A background command writes a file forever; the Run completes."""
    session, mark = await kedge.session(), unique("mark")
    writer = f"while :; do echo {mark} >> log; sleep 0.01; done"
    script = f"script: {call('bash', command=writer, background=True)} | say left it running"
    run = await kedge.wait((await kedge.submit(session, script, mode="yolo"))["run_id"])
    assert (run["outcome"], run["cleanup"]) == ("completed", "clean")
    assert processes_with(mark) == []
    size = (kedge.directory / "log").stat().st_size
    await kedge.wait((await kedge.submit(session, "script: say a while later"))["run_id"])
    assert (kedge.directory / "log").stat().st_size == size


async def test_i10_background_commands_are_listed_read_and_ended(kedge: Peer) -> None:
    session = await kedge.session()
    started = call("bash", command="echo begun; sleep 1000", background=True)
    steps = [started, call("jobs", action="list"), call("jobs", action="output", id="b1")]
    steps.append(call("jobs", action="kill", id="b1"))
    run = await kedge.wait(
        (await kedge.submit(session, f"script: {' | step | '.join(steps)} | say ok", mode="yolo"))["run_id"]
    )
    assert run["outcome"] == "completed"
    begun, listed, _, killed = results_of(await kedge.messages(session))
    assert "begun" in begun["content"]
    assert "b1" in listed["content"]
    assert "sleep 1000" in listed["content"]
    assert not killed["is_error"]


async def test_i10_output_is_bounded_whatever_a_command_writes(kedge: Peer) -> None:
    session = await kedge.session()
    noisy = "head -c 50000000 /dev/zero | tr '\\0' x; echo; seq 200000; printf '\\377\\376 binary \\000 end'"
    run = await kedge.wait(
        (await kedge.submit(session, f"script: {call('bash', command=noisy)} | say ok", mode="yolo"))["run_id"]
    )
    assert run["outcome"] == "completed"
    (result,) = results_of(await kedge.messages(session))
    assert len(result["content"]) < 40_000
    assert "left out" in result["content"]
    assert "binary" in result["content"]


async def test_d6_a_late_client_gets_pending_approvals(kedge: Peer, endpoint: Endpoint) -> None:
    session, key = await kedge.session(), unique()
    script = f"script: {call('bash', command='touch made')} | hold {key} | say ok"
    run_id = (await kedge.submit(session, script))["run_id"]
    async with kedge.stream(session_id=session) as first:
        (asked,) = await first.until(lambda stream: stream.of("permission_request"))
        ask_id = asked.payload["id"]
        async with kedge.stream() as late:
            (again,) = await late.until(lambda stream: stream.of("permission_request"))
            assert again.payload == asked.payload
            assert again.position is None
            assert [pending["id"] for pending in await kedge.call("GET", f"{kedge.at}/permissions")] == [ask_id]
            answers = await asyncio.gather(*(kedge.answer(ask_id, action) for action in ("allow", "deny") * 5))
            winners = [answer for answer in answers if answer["resolved"]]
            assert len(winners) == 1
            endpoint.release(key)  # not earlier: an answer after the end of the Run is refused with another error
            (complete,) = await late.until_complete(run_id)
            assert complete["outcome"] == "completed"
            (closed,) = late.of("permission_notification")
            others = {answer["answered"] for answer in answers if not answer["resolved"]}
            assert others == {closed.payload["answer"]}
    assert (kedge.directory / "made").exists() == closed.payload["granted"]


async def test_approvals_of_different_sessions_wait_concurrently(kedge: Peer) -> None:
    one, two = await kedge.session(), await kedge.session()
    async with kedge.stream() as stream:
        ids = [
            (await kedge.submit(session, f"script: {call('bash', command=f'touch {name}')} | say ok"))["run_id"]
            for session, name in ((one, "a"), (two, "b"))
        ]
        first, second = await stream.until(lambda stream: len(found := stream.of("permission_request")) == 2 and found)
        await kedge.answer(second.payload["id"], "allow")
        await stream.until_complete(second.payload["run_id"])
        assert not stream.completes(first.payload["run_id"])
        await kedge.answer(first.payload["id"], "allow")
        await stream.until_complete(*ids)
    assert {path.name for path in kedge.directory.iterdir()} == {"a", "b"}


@pytest.mark.parametrize(("scope", "asked_in_another_session"), [("allow_session", True), ("allow_always", False)])
async def test_a_grant_covers_exactly_its_rule(kedge: Peer, scope: str, asked_in_another_session: bool) -> None:
    session, other = await kedge.session(), await kedge.session()
    command, more = call("bash", command="touch made"), call("bash", command="touch another")
    async with kedge.stream() as stream:

        async def asks(session_id: str, script: str) -> Json | None:
            before = len(stream.of("permission_request"))
            run_id = (await kedge.submit(session_id, f"script: {script} | say ok"))["run_id"]
            await stream.until(lambda stream: stream.completes(run_id) or len(stream.of("permission_request")) > before)
            new: list[Json] = [frame.payload for frame in stream.of("permission_request")[before:]]
            return new[0] if new else None

        first = await asks(session, command)
        assert first is not None
        assert first["grant"] == "bash(touch made)"
        await kedge.answer(first["id"], scope)
        await stream.until_complete(first["run_id"])
        assert await asks(session, command) is None
        assert await asks(session, more) is not None
        assert (await asks(other, command) is not None) == asked_in_another_session
    grants = await kedge.call("GET", f"{kedge.at}/permissions/grants")
    assert [grant["rule"] for grant in grants] == ["bash(touch made)"]
    await kedge.call("DELETE", f"{kedge.at}/permissions/grants/{grants[0]['id']}")
    assert await kedge.call("GET", f"{kedge.at}/permissions/grants") == []


async def test_deny_rules_of_a_run_win_over_skipping(kedge: Peer) -> None:
    session = await kedge.session()
    made, denied = call("bash", command="touch made"), call("bash", command="true && rm made")
    script = f"script: {made} | {denied} | say ok"
    rules: Json = {"allow": ["bash(touch made)"], "deny": ["bash(rm *)"], "mode": "yolo"}
    run = await kedge.wait((await kedge.submit(session, script, **rules))["run_id"])
    assert run["outcome"] == "completed"
    assert (kedge.directory / "made").exists()
    assert {result["is_error"] for result in results_of(await kedge.messages(session))} == {False, True}
    error = await kedge.submit(session, "x", allow=["bash(("], expect=400)
    assert "rule" in error["message"]


async def test_f8_a_run_that_cannot_ask_ends_with_approval_needed(kedge: Peer) -> None:
    session = await kedge.session()
    script = f"script: {call('bash', command='touch made')} | say never"
    run = await kedge.wait((await kedge.submit(session, script, on_approval="fail"))["run_id"])
    assert (run["outcome"], run["reason"]) == ("failed", "approval_needed")
    assert "bash" in run["error"]
    assert "--allow" in run["error"]
    assert not (kedge.directory / "made").exists()


async def test_an_edit_is_refused_if_the_file_changed_meanwhile(kedge: Peer) -> None:
    file = kedge.directory / "a.txt"
    file.write_text("one\n")
    session = await kedge.session()
    edit = call("edit", path="a.txt", old_string="one", new_string="two")
    async with kedge.stream(session_id=session) as stream:
        run_id = (await kedge.submit(session, f"script: {call('view', path='a.txt')} | step | {edit} | say ok"))[
            "run_id"
        ]
        (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        assert "+two" in asked.payload["params"]["diff"]
        file.write_text("one and only\n")
        await kedge.answer(asked.payload["id"], "allow")
        await stream.until_complete(run_id)
    assert results_of(await kedge.messages(session))[-1]["is_error"]
    assert file.read_text() == "one and only\n"


async def test_undo_restores_files_unless_they_changed(kedge: Peer) -> None:
    file = kedge.directory / "a.txt"
    file.write_text("one\n")
    session = await kedge.session()
    edit = call("edit", path="a.txt", old_string="one", new_string="two")
    new = call("write", path="new/b.txt", content="b")
    script = f"script: {call('view', path='a.txt')} | step | {edit} | {new} | say ok"
    run_id = (await kedge.submit(session, script, allow=["edit"]))["run_id"]
    assert (await kedge.wait(run_id))["outcome"] == "completed"
    assert file.read_text() == "two\n"
    results = {result["name"]: result for result in results_of(await kedge.messages(session))}
    assert "-one" in json.loads(results["edit"]["metadata"])["diff"]
    undo = f"{kedge.at}/sessions/{session}/undo"
    file.write_text("three\n")
    error = await kedge.call("POST", undo, {}, expect=409)
    assert "a.txt" in error["message"]
    assert (kedge.directory / "new/b.txt").exists()
    file.write_text("two\n")
    done = await kedge.call("POST", undo, {"run_id": run_id})
    assert done["run_id"] == run_id
    assert file.read_text() == "one\n"
    assert not (kedge.directory / "new/b.txt").exists()
    assert (await kedge.call("POST", undo, {}, expect=404))["code"] == "run_not_found"


async def restarted(server: Server, kedge: Peer) -> None:
    server.kill()
    server.start(port=int(server.url.rpartition(":")[2]), token=server.token)
    await kedge.open()


async def test_g2_a_tool_in_flight_is_not_repeated_after_a_crash(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server, mark = own_server(), unique("mark")
    async with open_http(server.url, server.token) as http:
        kedge = await Peer(http, workspace).open()
        session = await kedge.session()
        command = marked(mark, "echo once >> log; touch ready; sleep 1000")
        run_id = (await kedge.submit(session, f"script: {call('bash', command=command)} | say over", mode="yolo"))[
            "run_id"
        ]
        await until_there(workspace / "ready")
        await until_seen(mark)
        await restarted(server, kedge)
        run = await kedge.wait(run_id)
        assert (run["outcome"], run["text"]) == ("completed", "over")
        await until_gone(mark)
        assert (workspace / "log").read_text() == "once\n"
        (result,) = results_of(await kedge.messages(session))
        assert "cut off" in result["content"]


async def test_g2_a_pending_approval_survives_a_crash(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    async with open_http(server.url, server.token) as http:
        kedge = await Peer(http, workspace).open()
        session = await kedge.session()
        command = call("bash", command="echo once >> log")
        run_id = (await kedge.submit(session, f"script: {command} | say over"))["run_id"]
        async with kedge.stream() as stream:
            (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        await restarted(server, kedge)
        async with kedge.stream() as stream:
            (again,) = await stream.until(lambda stream: stream.of("permission_request"))
            assert again.payload["id"] == asked.payload["id"]
            await kedge.answer(asked.payload["id"], "allow")
            (complete,) = await stream.until_complete(run_id)
        assert (complete["outcome"], complete["text"]) == ("completed", "over")
        assert (workspace / "log").read_text() == "once\n"


@pytest.mark.parametrize("on_crash", ["resume", "end"])
async def test_g1_sessions_survive_a_kill_during_compaction_or_retry(
    own_server: Callable[..., Server], endpoint: Endpoint, workspace: Path, on_crash: str
) -> None:
    server = own_server(f'[runs]\non_crash = "{on_crash}"\n')
    key = unique()
    async with open_http(server.url, server.token) as http:
        kedge = await Peer(http, workspace).open()
        one, two = await kedge.session(), await kedge.session()
        async with kedge.stream() as stream:
            script = f"script: summary hold {key} | usage 3900 1 | {call('ls')} | say over"
            compacting = (await kedge.submit(one, script, model="local/fake-narrow"))["run_id"]
            script = f"script: tag {unique()} | fail 503 retry-after=100 times=1 | say over"
            retrying = (await kedge.submit(two, script))["run_id"]
            await stream.until(lambda stream: stream.of("agent_event"))
            await stream.until(lambda stream: any(f.payload.get("steps") == 2 for f in stream.of("run")))
        await restarted(server, kedge)
        endpoint.release(key)
        expected = {"resume": "completed", "end": "interrupted"}[on_crash]
        for session, run_id in ((one, compacting), (two, retrying)):
            assert (await kedge.wait(run_id))["outcome"] == expected
            again = await kedge.wait((await kedge.submit(session, "script: say fine"))["run_id"])
            assert (again["outcome"], again["text"]) == ("completed", "fine")


async def test_e12_closing_a_workspace_spares_the_tools_of_another(
    own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, mark = own_server("[server]\ngrace_s = 0.1\n"), unique("mark")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with open_http(server.url, server.token) as http:
        stays, goes = await Peer(http, tmp_path / "a").open(), await Peer(http, tmp_path / "b").open()
        async with stays.stream() as stream:
            session = await stays.session()
            command = marked(mark, "touch ready; while [ ! -e go ]; do sleep 0.01; done; echo went")
            run_id = (await stays.submit(session, f"script: {call('bash', command=command)} | say over", mode="yolo"))[
                "run_id"
            ]
            await until_there(tmp_path / "a" / "ready")
            async with goes.stream():
                other = await goes.session()
                script = f"script: {call('bash', command='echo hi')} | say ok"
                assert (await goes.wait((await goes.submit(other, script, mode="yolo"))["run_id"]))[
                    "outcome"
                ] == "completed"
                await goes.call("DELETE", goes.at, client_id=goes.client_id)
            while (await goes.reply("GET", goes.at)).status_code != 404:
                pass
            assert processes_with(mark)
            (tmp_path / "a" / "go").touch()
            (complete,) = await stream.until_complete(run_id)
            assert complete["outcome"] == "completed"
        assert "went" in results_of(await stays.messages(session))[0]["content"]


async def test_e11_a_shutdown_ends_the_tools_first(own_server: Callable[..., Server], workspace: Path) -> None:
    server, mark = own_server(), unique("mark")
    async with open_http(server.url, server.token) as http:
        kedge = await Peer(http, workspace).open()
        session = await kedge.session()
        command = marked(mark, "touch ready; sleep 1000")
        await kedge.submit(session, f"script: {call('bash', command=command)} | say over", mode="yolo")
        await until_there(workspace / "ready")
        await until_seen(mark)
    assert server.terminate() == 0
    assert processes_with(mark) == []
