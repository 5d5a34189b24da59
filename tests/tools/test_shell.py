"""The bash tool, with real shells."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kedge.core.approvals import Grant, Intent, Rules, parse_rules, permit, rule_of
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, ToolContext, ToolFailed, ToolOutput
from kedge.tools.shell import COMMAND_BYTES_MAX, BashTool
from kedge.tools.view import ViewTool
from tests.polling import until
from tests.tools.contexts import PlainProcesses, RecordingHost, call, make_context, prepare
from tests.tools.sessions import SessionProcesses, of_session


class QuickBash(BashTool):
    """Waits as long as a test likes to."""

    AUTO_BACKGROUND_S = 0.05
    STARTUP_WAIT_S = 0.05


@pytest.fixture
def processes() -> Iterator[SessionProcesses]:
    processes = SessionProcesses()
    yield processes
    processes.close()


@pytest.fixture
def context(tmp_path: Path, processes: SessionProcesses) -> ToolContext:
    return make_context(tmp_path, processes=processes)


async def bash(context: ToolContext, command: str, **given: Any) -> ToolOutput:
    return await call(BashTool(), context, command=command, **given)


async def test_output_and_exit_code(context: ToolContext) -> None:
    output = await bash(context, "echo one; echo two >&2")
    assert output.content == "one\ntwo"
    assert output.metadata["exit_code"] == 0
    failed = await bash(context, "echo no; exit 3")
    assert failed.content == "no\n\nExit code 3"
    assert not failed.is_error
    assert (failed.metadata["exit_code"], failed.metadata["timed_out"], failed.metadata["truncated"]) == (
        3,
        False,
        False,
    )
    assert failed.metadata["output"] == "no"
    killed = await bash(context, "kill -KILL $$")
    assert killed.content == "(no output)\n\nEnded by signal 9"


async def test_fresh_shell_without_input_or_other_environment(context: ToolContext) -> None:
    await bash(context, "export KEPT=1; cd /")
    output = await bash(context, "pwd; echo $KEPT; cat; env | cut -d= -f1 | sort")
    assert output.content.split() == [str(context.root), "LC_ALL", "PATH", "PWD", "SHLVL", "_"]


async def test_command_runs_in_its_directory(context: ToolContext) -> None:
    (context.root / "sub").mkdir()
    assert (await bash(context, "pwd", cwd="sub")).content == str(context.root / "sub")


@pytest.mark.parametrize("cwd", ["missing", "file", "a\0b"])
async def test_invalid_directory_is_refused(context: ToolContext, cwd: str) -> None:
    (context.root / "file").write_text("")
    with pytest.raises(ToolFailed, match="directory"):
        await bash(context, "pwd", cwd=cwd)


@pytest.mark.parametrize("command", ["", " \n", "a\0b", "echo \ud800", "x" * (COMMAND_BYTES_MAX + 1)])
async def test_invalid_command_is_refused(context: ToolContext, command: str) -> None:
    with pytest.raises(ToolFailed):
        await bash(context, command)


async def test_terminal_sequences_are_removed(context: ToolContext) -> None:
    output = await bash(context, r"printf '\033[31mred\033[0m\r\n\033]0;title\007a\tb\b\000c \377 \342\202\254'")
    assert output.content == "red\na\tbc \ufffd €"


async def test_long_output_keeps_beginning_and_end(context: ToolContext) -> None:
    output = await bash(context, "seq 1 100000")
    assert output.content.startswith("1\n2\n3\n")
    assert output.content.endswith("\n99999\n100000")
    assert "lines (" in output.content
    assert len(output.content) <= OUTPUT_CHARS_MAX + 100
    assert output.metadata["truncated"]
    assert output.metadata["output"].splitlines()[-1] == "100000"


async def test_endless_line_is_bounded_in_memory(context: ToolContext) -> None:
    output = await bash(context, "echo start; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end", timeout_s=50)
    assert output.content.startswith("start\nx")
    assert output.content.endswith("x\nend")
    assert len(output.content) <= OUTPUT_CHARS_MAX + 100


async def test_endless_output_is_killed_at_the_timeout(context: ToolContext, processes: SessionProcesses) -> None:
    output = await bash(context, "yes", timeout_s=0.2)
    assert "Killed after 0.2 s" in output.content
    assert output.metadata["timed_out"]
    assert of_session(processes.processes[0].pid) == []


async def test_command_that_ignores_term_is_killed(
    context: ToolContext, processes: SessionProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.tools.shell.GRACE_S", 0.1)
    output = await bash(context, "trap '' TERM; echo ready; while :; do sleep 0.05; done", timeout_s=0.2)
    assert output.metadata["timed_out"]
    assert of_session(processes.processes[0].pid) == []


async def test_strays_are_ended_and_reported(context: ToolContext, processes: SessionProcesses) -> None:
    output = await bash(context, "sleep 1000 & echo started")
    assert output.content == (
        "started\n\n1 background processes that it left running were ended; use background: true to keep one running."
    )
    assert of_session(processes.processes[0].pid) == []


async def test_unreachable_process_holding_output_is_ignored(context: ToolContext) -> None:
    before = asyncio.all_tasks()
    output = await bash(context, "setsid sleep 5 & echo started")
    assert output.content.startswith("started")
    assert asyncio.all_tasks() == before  # no reader is left


async def test_progress_shows_the_end_of_the_output(tmp_path: Path, processes: SessionProcesses) -> None:
    host = RecordingHost()
    context = make_context(tmp_path, host=host, processes=processes)
    running = asyncio.create_task(bash(context, "seq 1 50; while [ ! -e go ]; do sleep 0.02; done"))
    await until(lambda: host.lines)
    (tmp_path / "go").touch()
    await running
    assert host.lines[0].splitlines()[-1] == "50"
    assert len(host.lines[0].splitlines()) == 20


async def started(processes: SessionProcesses, root: Path) -> int:
    await until((root / "ready").exists)
    return processes.processes[0].pid


@pytest.mark.parametrize("cancels", [1, 3])
async def test_cancelled_call_ends_its_processes(
    context: ToolContext, processes: SessionProcesses, monkeypatch: pytest.MonkeyPatch, cancels: int
) -> None:
    monkeypatch.setattr("kedge.tools.shell.GRACE_S", 0.5)
    running = asyncio.create_task(bash(context, "sleep 1000 & trap '' TERM; touch ready; while :; do sleep 0.05; done"))
    session = await started(processes, context.root)
    for _ in range(cancels):  # further cancels during the clean-up change nothing
        running.cancel()
        for _ in range(2):
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert of_session(session) == []
    assert context.background.survivors == set()


async def test_surviving_processes_are_recorded(context: ToolContext, processes: SessionProcesses) -> None:
    running = asyncio.create_task(bash(context, "touch ready; sleep 1000"))
    await started(processes, context.root)
    processes.processes[0].left = (4711,)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert context.background.survivors == {4711}
    assert await context.background.end_all() == (4711,)


async def test_long_command_moves_to_the_background(context: ToolContext, processes: SessionProcesses) -> None:
    output = await call(QuickBash(), context, command="echo hi; while [ ! -e go ]; do sleep 0.02; done; echo bye")
    assert "in the background as b1" in output.content
    assert output.metadata["background_id"] == "b1"
    running = context.background.get("b1")
    (context.root / "go").touch()
    assert await running.wait(30)
    assert running.exit_code == 0
    assert running.output.excerpt(100).text.endswith("bye\n")


async def test_background_command_failing_at_once_is_a_result(context: ToolContext) -> None:
    output = await call(BashTool(), context, command="echo no; exit 1", background=True)
    assert output.content == "no\n\nExit code 1"
    assert context.background.list() == {}


async def test_background_command_ends_with_the_run(context: ToolContext, processes: SessionProcesses) -> None:
    output = await call(QuickBash(), context, command="echo up; sleep 1000", background=True)
    assert "as b1" in output.content
    assert await context.background.end_all() == ()
    assert of_session(processes.processes[0].pid) == []


async def test_sh_replaces_missing_bash(tmp_path: Path) -> None:
    processes = PlainProcesses({"PATH": str(tmp_path / "bin")})
    output = await bash(make_context(tmp_path, processes=processes), "echo $0")
    assert output.content == "/bin/sh"
    assert processes.started == [("/bin/sh", "-c", "echo $0")]


async def test_shell_start_failure_is_reported(tmp_path: Path) -> None:
    workspace, bin_ = tmp_path / "workspace", tmp_path / "bin"
    workspace.mkdir()
    put_program(bin_ / "bash", "no program\n")
    with pytest.raises(ToolFailed, match="cannot be started"):
        await bash(make_context(workspace, processes=PlainProcesses({"PATH": str(bin_)})), "true")


def put_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.found(
    "attack 9",
    "with an absolute PATH entry in the workspace (an activated .venv), its own `ls`, `date` and even `bash` ran "
    "without asking; the shell and such commands are only taken from elsewhere",
)
@pytest.mark.parametrize("entry", ["workspace/.venv/bin", "link", "tools"])
async def test_programs_of_the_workspace_need_approval(tmp_path: Path, entry: str) -> None:
    workspace, trap = tmp_path / "workspace", "#!/bin/sh\ntouch trapped\n"
    for name in ("bash", "ls", "date", "echo"):
        put_program(workspace / ".venv" / "bin" / name, trap)
        (tmp_path / "tools").mkdir(exist_ok=True)
        (tmp_path / "tools" / name).symlink_to(workspace / ".venv" / "bin" / name)
    (tmp_path / "link").symlink_to(workspace / ".venv" / "bin")
    environment = {"PATH": f"{tmp_path / entry}:{os.environ['PATH']}"}
    context = make_context(workspace, processes=PlainProcesses(environment))
    for command in ("ls", "date", "which date", "echo hi", "pwd"):
        prepared = await intended(context, command)
        if permit(prepared.intent, Rules(), ()).decision == "allow":
            await prepared.run()
        else:
            assert command in ("ls", "date")
    assert not (workspace / "trapped").exists()
    # Approved, a command has the user's own PATH.
    await bash(context, "date")
    assert (workspace / "trapped").exists()


async def test_read_only_line_runs_as_it_was_checked(tmp_path: Path) -> None:
    processes = PlainProcesses()
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "file").touch()
    assert (await bash(make_context(tmp_path, processes=processes), "ls 'a b'")).content == "file"
    assert processes.started == [(shutil.which("bash"), "-c", f"{shutil.which('ls')} 'a b'")]


def is_exact_only(intent: Intent) -> bool:
    return any(part.exact_only for part in intent.parts or ())


@pytest.mark.found(
    "attack round 2: command lines",
    "for each word of a command every directory above it was looked at, in a workspace with deep directories for "
    "minutes and beyond its cancellation; only a rule that spells such a command covers it",
)
@pytest.mark.timeout(15)
async def test_deep_directories_take_bounded_time(context: ToolContext) -> None:
    deep = "a/" * 600
    (context.root / deep).mkdir(parents=True)
    words = " ".join(f"x{number}=y{number}" for number in range(98))
    assert is_exact_only((await intended(context, f"cp {words}", cwd=deep)).intent)
    assert (await intended(context, f"ls {words}", cwd=deep)).intent.needs_approval


@pytest.mark.found(
    "attack round 2: command lines",
    "links that name each other a thousand times were followed to their end for each word of `ls`; no more are "
    "followed than Linux does",
)
@pytest.mark.timeout(15)
async def test_many_symlinks_take_bounded_time(context: ToolContext) -> None:
    (context.root / "l0").mkdir()
    for number in range(1, 100):
        (context.root / f"l{number}").symlink_to(f"l{number - 1}/../" * 500 + f"l{number - 1}")
    assert (await intended(context, "ls" + " l99" * 90)).intent.needs_approval
    assert not (await intended(context, "ls l0")).intent.needs_approval
    assert is_exact_only((await intended(context, "cp" + " l99" * 90)).intent)
    with pytest.raises(ToolFailed, match="too many symlinks"):
        await intended(context, "ls", cwd="l99")
    with pytest.raises(ToolFailed, match="too many symlinks"):
        await call(ViewTool(), context, path="l99/x")


@pytest.mark.parametrize("variable", ["BASH_ENV", "LD_PRELOAD", "LD_LIBRARY_PATH"])
async def test_variables_that_load_code_need_approval(tmp_path: Path, variable: str) -> None:
    processes = PlainProcesses({"PATH": os.environ["PATH"], variable: str(tmp_path / "x")})
    context = make_context(tmp_path, processes=processes)
    for command in ("echo hi", "ls"):
        assert (await intended(context, command)).intent.needs_approval


@pytest.mark.found(
    "attack 2",
    "command lines were read on the event loop, which stood still meanwhile; they are read in a thread of the Run",
)
async def test_event_loop_is_free_while_a_line_is_parsed(context: ToolContext) -> None:
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await intended(context, "env " * 60 + "'-x=y=" + "a=(" * 300 + " '")
    counting.cancel()
    assert rounds > 100


# --- approvals and rules ---


async def intended(context: ToolContext, command: str, **given: Any) -> Prepared:
    return await prepare(BashTool(), context, command=command, **given)


async def test_approval_shows_the_whole_visible_command(context: ToolContext) -> None:
    command = "echo " + "x" * 5000 + "\u202e\u200b\x1b[8m; rm y"
    intent = (await intended(context, command, description="list\u202e files")).intent
    params = json.loads(intent.params)
    assert params["command"] == command
    assert params["shown"] == "echo " + "x" * 5000 + "\\u{202e}\\u{200b}\\u{1b}[8m; rm y"
    assert params["cwd"] == str(context.root)
    assert intent.description.startswith("list\\u{202e} files: $ echo xxx")
    assert intent.subject == command
    assert (intent.parts, intent.grant) == (None, "")
    assert (await intended(context, "a\nb")).intent.description == "$ a"


async def test_approval_binds_command_directory_environment(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    context = make_context(tmp_path)
    other = make_context(tmp_path, processes=PlainProcesses({"PATH": os.environ["PATH"], "X": "1"}))
    bindings = [
        (await intended(context, "make")).intent.binding,
        (await intended(context, "make ")).intent.binding,
        (await intended(context, "make", cwd="sub")).intent.binding,
        (await intended(other, "make")).intent.binding,
    ]
    assert len(set(bindings)) == 4
    assert (await intended(context, "make")).intent.binding == bindings[0]


async def test_replaced_directory_is_not_used(context: ToolContext) -> None:
    (context.root / "a").mkdir()
    (context.root / "link").symlink_to("a")
    prepared = await intended(context, "pwd", cwd="link")
    (context.root / "link").unlink()
    (context.root / "link").symlink_to("/")
    with pytest.raises(ToolFailed, match="changed"):
        await prepared.run()


async def test_changed_environment_is_not_used(tmp_path: Path) -> None:
    processes = PlainProcesses()
    prepared = await intended(make_context(tmp_path, processes=processes), "pwd")
    processes.environment = {**processes.environment, "LD_PRELOAD": "x"}
    with pytest.raises(ToolFailed, match="changed"):
        await prepared.run()


async def test_no_rule_covers_a_command_outside_the_workspace(context: ToolContext, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (context.root / "link").symlink_to(outside)
    rules = parse_rules(("bash(make)", "bash(make *)", "bash(ls *)"), ())
    for cwd in (str(outside), "link", ".."):
        for command in ("make", "ls"):
            intent = (await intended(context, command, cwd=cwd)).intent
            assert permit(intent, rules, (Grant("g", "w", "", f"bash({command})", 0),)).decision == "ask"
            assert intent.grant == ""
    assert permit((await intended(context, "make")).intent, rules, ()).decision == "allow"


@pytest.mark.parametrize(
    ("command", "grant"),
    [
        ("git status", ""),
        ("git add x", "bash(git add x)"),
        ("npm  run 'test:unit' --x=1", "bash(npm run test:unit --x=1)"),
        ("env A=1 make", "bash(env A=1 make)"),
        ("git add 'a b'", "bash(git add *)"),  # no exact rule has a quoted word
        ("git add '*'", "bash(git add *)"),
        ("git add 'a)'", "bash(git add *)"),
        ("git add ''", "bash(git add *)"),
        ("git status; ls", ""),
        ("echo " + "x" * 1000, ""),
    ],
)
async def test_a_grant_covers_its_command(context: ToolContext, command: str, grant: str) -> None:
    intent = (await intended(context, command)).intent
    assert intent.grant == grant
    if grant:
        assert permit(intent, Rules(), (Grant("g", "w", "", grant, 0),)).decision == "allow"
        assert permit(intent, parse_rules((grant,), ()), ()).decision == "allow"


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        *(
            (command, False)
            for command in ("pwd", "whoami", "date", "date +%s", "uname -a", "echo hi", "which git", "ls")
        ),
        *((command, False) for command in ("ls -la", "ls -la sub", "ls sub/..", "echo 'a; b'", "cat x")),
        *((command, False) for command in ("git status", "cd sub && git log -1 2>&1 | head -5; echo $?")),
        *((command, True) for command in ("ls -- -x/", "ls -- ..")),
        *((command, True) for command in ("ls ..", "ls /", "ls link", "ls sub/../..", "ls ~", "ls; rm x", "ls *")),
        *((command, True) for command in ("git add x", "cat /x", "date -s x", "echo hi > x", "echo $X")),
        *(
            (command, True)
            for command in ("./ls", "/bin/ls", "which --x y", "which ../x", "A=1 ls", "ls &", "ls circle")
        ),
    ],
)
async def test_only_read_only_commands_need_no_approval(context: ToolContext, command: str, asks: bool) -> None:
    (context.root / "sub").mkdir()
    (context.root / "link").symlink_to("/etc")
    (context.root / "circle").symlink_to("circle")
    (context.root / "-x").symlink_to("/etc")
    intent = (await intended(context, command)).intent
    assert permit(intent, Rules(), ()).decision == ("ask" if asks else "allow")
    assert permit(intent, parse_rules((), ("bash",)), ()).decision == "deny"


async def test_full_background_refuses_before_start(
    context: ToolContext, processes: SessionProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.tools.background.BACKGROUND_MAX", 3)
    for _ in range(3):
        await call(QuickBash(), context, command="sleep 1000", background=True)
    with pytest.raises(ToolFailed, match="3 commands"):
        await call(QuickBash(), context, command="sleep 1000", background=True)
    assert len(processes.processes) == 3
    # A command that would move to the background is ended instead, and the model gets the reason.
    with pytest.raises(ToolFailed, match="3 commands"):
        await call(QuickBash(), context, command="sleep 1000")
    assert of_session(processes.processes[-1].pid) == []
    await context.background.end_all()
    assert [of_session(process.pid) for process in processes.processes] == [[]] * 4


@pytest.mark.found(
    "attack: a granted command in another directory",
    "`./build.sh`, allowed for the session, was allowed in every directory of the workspace, where it is another "
    "program; a grant is for the directory it was given in now",
)
async def test_grant_covers_its_directory_only(context: ToolContext) -> None:
    for name in ("one", "other"):
        (context.root / name).mkdir()
    at_root, one, other = [
        (await prepare(BashTool(), context, command="./build.sh", cwd=cwd)).intent for cwd in ("", "one", "other")
    ]
    assert (at_root.grant, one.grant) == ("bash(./build.sh)", "bash(./build.sh) in one")
    for given in (at_root, one):
        grant = (Grant("g", "w", "", given.grant, 0),)
        assert [intent is given for intent in (at_root, one, other)] == [
            permit(intent, Rules(), grant).decision == "allow" for intent in (at_root, one, other)
        ]
    assert rule_of(one.grant) == rule_of(at_root.grant) == "bash(./build.sh)"


@pytest.mark.parametrize(
    ("command", "is_exact"),
    [
        ("cp x .git/hooks/pre-commit", True),
        ("mv x ./sub/../.git/config", True),
        ("tar -xf a.tar --directory=.git/hooks", True),
        ("cp x link", True),
        ("touch .bashrc", True),
        ("cp x y", False),
        ("ls src", False),
    ],
)
async def test_wildcard_rule_covers_no_guarded_file(context: ToolContext, command: str, is_exact: bool) -> None:
    (context.root / ".git" / "hooks").mkdir(parents=True)
    (context.root / "link").symlink_to(".git/config")
    intent = (await prepare(BashTool(), context, command=command)).intent
    assert is_exact_only(intent) == is_exact
    rules = parse_rules(["bash(cp *)", "bash(mv *)", "bash(tar *)", "bash(touch *)", "bash(ls *)"], [])
    assert permit(intent, rules, ()).decision == ("ask" if is_exact else "allow")
