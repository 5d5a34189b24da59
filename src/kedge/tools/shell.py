"""bash: one command in a fresh shell. jobs: a look at those that went to the background."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.core.approvals import RULE_CHARS_MAX, Intent, granted_in
from kedge.core.untrusted_text import one_line, visible
from kedge.programs import first_program, is_outside, program_outside
from kedge.tools.background import GRACE_S, PROGRESS_CHARS_MAX, PROGRESS_LINES_MAX, RunningCommand
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, ToolContext, ToolFailed, ToolOutput
from kedge.tools.head_tail import HeadTail
from kedge.tools.paths import GUARD_PARTS_MAX, PATH_BYTES_MAX, guards, real_path
from kedge.tools.shell_parser import read_line
from kedge.tools.tool_threads import checkpoint

#: Of a command. A system takes no longer argument than 128 KiB, and nobody approves what they cannot read. Bytes.
COMMAND_BYTES_MAX = 100_000
#: The longest a call may wait in the foreground.
TIMEOUT_S_MAX = 600
#: The longest one look at a background command may wait for news.
JOBS_WAIT_S_MAX = 30
#: Of one line for people.
TITLE_CHARS_MAX = 200
#: Words of a command that are looked at as files; with more of them only a rule that spells it covers it. Items.
GUARDED_WORDS_MAX = 100

#: Words that mean themselves in a rule, too: a grant made of them covers this command and no other.
_RULE_WORD = re.compile(r"[A-Za-z0-9_./:=@%+,-]+")


class BashInput(msgspec.Struct):
    command: Annotated[str, Meta(description="The command line, as typed into bash.")]
    description: Annotated[str, Meta(description="What it is for, in a few words, for people.")] = ""
    cwd: Annotated[str, Meta(description="Directory to run it in, relative to the workspace. Default: its root.")] = ""
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=TIMEOUT_S_MAX)] | None,
        Meta(description="Kill it after this many seconds (at most 600)."),
    ] = None
    background: Annotated[bool, Meta(description="Leave it running and return at once: for servers, watchers.")] = False


class BashTool:
    name = "bash"
    input: type[msgspec.Struct] = BashInput
    kind: Literal["look", "change"] = "change"

    #: A command still at work after this long, and given no time limit, goes on in the background.
    AUTO_BACKGROUND_S = 60.0
    #: How long a background command is watched at first: most that fail do so at once.
    STARTUP_WAIT_S = 1.0

    async def prepare(self, args: BashInput, context: ToolContext) -> Prepared:
        _check_command(args.command)
        plan = await context.threads.run(_plan, args, context)

        async def run() -> ToolOutput:
            if await context.threads.run(_bound, plan, args, context) != plan.intent.binding:
                raise ToolFailed("the directory or the environment changed since the command was looked at; try again")
            async with context.background.foreground:
                return await self._run(plan.argv, args, plan.cwd, context)

        return Prepared(plan.intent, run, f"$ {plan.title}")

    async def _run(self, argv: tuple[str, ...], args: BashInput, cwd: Path, context: ToolContext) -> ToolOutput:
        if args.background:
            context.background.check_room()
        began = asyncio.get_running_loop().time()
        running = RunningCommand(await context.processes.start(argv, cwd), args.command, context.host.progress)
        try:
            wait_s = self.STARTUP_WAIT_S if args.background else args.timeout_s or self.AUTO_BACKGROUND_S
            is_over = await running.wait(wait_s)
            if not is_over and (args.background or args.timeout_s is None):
                return _moved(context.background.add(running), running)
            if not is_over:
                await running.end(GRACE_S)
        except BaseException:
            context.background.left(await running.end_surely(GRACE_S))
            raise
        context.background.left(running.left)
        duration_ms = int(1000 * (asyncio.get_running_loop().time() - began))
        return _result(running, duration_ms, timed_out_s=None if is_over else wait_s)


class _Plan(msgspec.Struct, frozen=True):
    """The command that a call would run, and its Intent."""

    argv: tuple[str, ...]
    cwd: Path
    intent: Intent
    title: str


def _plan(args: BashInput, context: ToolContext) -> _Plan:
    """Blocking: it looks at files, and may read the line in another process."""
    command = args.command
    cwd = _directory(context.root, args.cwd)
    line = read_line(command)
    # Rules are written for this workspace: `make` elsewhere runs another Makefile.
    words = line.words if cwd.is_relative_to(context.root) else None
    shell = _shell(context)
    plain = (shell, "-c", command)
    harmless = _harmless(words, plain, cwd, context) if words is not None else None
    title = one_line(command, TITLE_CHARS_MAX)
    about = one_line(args.description, TITLE_CHARS_MAX)
    intent = Intent(
        names=("bash",),
        action="execute",
        subject=command,
        # What the model says it is for never stands alone: it may be wrong, or a lie.
        description=f"{about}: $ {title}" if about else f"$ {title}",
        path=str(cwd),
        params=json.dumps(
            {
                "command": command,
                "shown": visible(command),
                "cwd": str(cwd),
                "timeout_s": args.timeout_s,
                "background": args.background,
            },
            ensure_ascii=False,
        ),
        binding=_binding(shell, command, cwd, context),
        needs_approval=harmless is None,
        words=words,
        commands=line.commands,
        exact_only=line.runs_others or (words is not None and _names_guarded(words, cwd)),
        grant=_grant(words, cwd, context.root),
    )
    return _Plan(harmless or plain, cwd, intent, title)


def _bound(plan: _Plan, args: BashInput, context: ToolContext) -> str:
    """The binding as it would be now. Blocking."""
    return _binding(_shell(context), args.command, _directory(context.root, args.cwd), context)


def _shell(context: ToolContext) -> str:
    """Never one that the workspace brings. Blocking."""
    return program_outside("bash", _path(context), context.root) or "/bin/sh"


def _path(context: ToolContext) -> str:
    return context.processes.environment.get("PATH", os.defpath)


def _check_command(command: str) -> None:
    if not command.strip():
        raise ToolFailed("the command is empty")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolFailed("the command has characters that are no text (lone surrogates)") from None
    if "\0" in command:
        raise ToolFailed("a command cannot contain a NUL character")
    if size > COMMAND_BYTES_MAX:
        raise ToolFailed(f"the command is longer than {COMMAND_BYTES_MAX} bytes; put the data into a file first")


def _directory(root: Path, args: str) -> Path:
    if "\0" in args:
        raise ToolFailed("a directory cannot contain a NUL character")
    try:
        cwd = real_path(root / args)
        is_there = os.path.lexists(cwd)
    except (OSError, ValueError):
        is_there = False
    if not is_there:
        raise ToolFailed(f"there is no directory {visible(args, keep='')!r}; cwd is relative to the workspace")
    if not cwd.is_dir():
        raise ToolFailed(f"{visible(args, keep='')!r} is no directory")
    return cwd


def _names_guarded(words: tuple[str, ...], cwd: Path) -> bool:
    """Whether one of its words, or an option's value, is a file that guards the machine: `cp x .git/hooks/pre-commit`.
    Whoever writes `bash(cp *)` does not think of these."""
    args = {part for word in words[1:GUARDED_WORDS_MAX] for part in (word, word.rpartition("=")[2])}
    for name in args - {""}:
        checkpoint()
        path = cwd / name
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            continue  # the kernel opens no such path
        try:
            if len(path.parts) > GUARD_PARTS_MAX or guards(Path(os.path.normpath(path))) or guards(real_path(path)):
                return True
        except ToolFailed:  # too many links
            return True
    return len(words) > GUARDED_WORDS_MAX


def _binding(shell: str, command: str, cwd: Path, context: ToolContext) -> str:
    """What an approval is for: this line, in this shell, here, with this environment."""
    bound = [shell, command, str(cwd), sorted(context.processes.environment.items())]
    return hashlib.sha256(json.dumps(bound).encode()).hexdigest()


def _grant(words: tuple[str, ...] | None, cwd: Path, root: Path) -> str:
    """For this directory: elsewhere the same words run something else."""
    if words is None or not all(map(_RULE_WORD.fullmatch, words)):
        return ""
    rule = f"bash({' '.join(words)})"
    grant = rule if cwd == root else granted_in(rule, cwd.relative_to(root).as_posix())
    return grant if len(grant) <= RULE_CHARS_MAX and visible(grant, keep="") == grant else ""


def _harmless(
    words: tuple[str, ...], plain: tuple[str, ...], cwd: Path, context: ToolContext
) -> tuple[str, ...] | None:
    """How to run a command that needs no approval; None if it needs one. `plain`: by the shell. Blocking.

    A program is started by its full path, without a shell, and only if the shell would not take it from the workspace:
    nothing that the repository brings is run."""
    if not _only_looks(words, cwd, context.root) or any(map(_loads_code, context.processes.environment)):
        return None
    if words[0] in _BUILTINS:
        return plain
    program = first_program(words[0], _path(context))
    return (program, *words[1:]) if program is not None and is_outside(program, context.root) else None


#: Of the harmless commands, those that no shell looks up in PATH.
_BUILTINS = frozenset({"echo", "pwd"})


def _loads_code(variable: str) -> bool:
    """Whether a shell or the system's loader runs code from a file that this variable names. (A configuration may hand
    on any variable.)"""
    return variable.startswith(("BASH_ENV", "BASH_FUNC_", "ENV", "SHELLOPTS", "LD_", "DYLD_", "GCONV_PATH", "LOCPATH"))


def _only_looks(words: tuple[str, ...], cwd: Path, root: Path) -> bool:
    """Commands that look, at nothing outside, and nothing in a repository can make them do more. That is why git is not
    among them: its configuration names programs to run."""
    match words:
        case ("pwd",) | ("whoami",) | ("date",) | ("uname",) | ("uname", "-a"):
            return True
        case ("echo", *_):
            return True
        case ("date", form):
            return form.startswith("+")
        case ("which", *names):
            return all(re.fullmatch(r"[\w.+-]+", name) and not name.startswith("-") for name in names)
        case ("ls", *rest):
            # Not through links: a repository's may lead out of it. (`--d` is short for `--dereference`.) Behind `--` a
            # word with a dash is a path.
            if any(word == "--" or re.match(r"--d|-[^-]*[LH]", word) for word in rest):
                return False
            paths = [cwd / word for word in rest if not word.startswith("-")]
            if len(paths) > GUARDED_WORDS_MAX or any(len(path.parts) > GUARD_PARTS_MAX for path in paths):
                return False  # looking where each of them leads takes too long
            try:
                return all(real_path(path).is_relative_to(root) for path in paths)
            except (ToolFailed, ValueError):  # too many links, or some that go in circles
                return False
    return False


def _moved(id_: str, running: RunningCommand) -> ToolOutput:
    """It goes on in the background."""
    taken = running.take()
    content = (
        f"It goes on in the background as {id_}. Look at it with the jobs tool (action: output, id: {id_}), end it "
        f"with action: kill. It ends with this run at the latest.\nOutput so far:\n{_said(taken)}"
    )
    return ToolOutput(content, {"command": running.command, "background_id": id_, "output": _for_people(taken)})


def _result(running: RunningCommand, duration_ms: int, *, timed_out_s: float | None) -> ToolOutput:
    notes = []
    if timed_out_s is not None:
        notes.append(
            f"It was killed after {timed_out_s:g} s. Give a larger timeout_s, or background: true to leave it running."
        )
    elif running.exit_code:
        notes.append(_exit(running.exit_code))
    if running.strays and timed_out_s is None:
        notes.append(
            f"{running.strays} background processes it left running were ended; "
            "use background: true to keep one running."
        )
    if running.left:
        notes.append(f"Some of its processes could not be ended: {', '.join(map(str, running.left))}.")
    taken = running.take()
    text = _said(taken)
    metadata = {
        "command": running.command,
        "exit_code": running.exit_code,
        "duration_ms": duration_ms,
        "timed_out": timed_out_s is not None,
        "truncated": not taken.is_whole or "left out ..." in text,
        "output": _for_people(taken),
    }
    return ToolOutput("\n\n".join([text.rstrip("\n"), *notes]), metadata)


def _exit(code: int) -> str:
    return f"Exit code {code}" if code >= 0 else f"Ended by signal {-code}"


def _said(taken: HeadTail) -> str:
    return taken.text(OUTPUT_CHARS_MAX) or "(no output)"


def _for_people(taken: HeadTail) -> str:
    return taken.last_lines(PROGRESS_LINES_MAX, PROGRESS_CHARS_MAX)


class JobsInput(msgspec.Struct):
    action: Annotated[
        Literal["list", "output", "kill"],
        Meta(description="list them all; output: what one wrote since the last look; kill: end one."),
    ]
    id: Annotated[str, Meta(description="Which one, b1 for example. For output and kill.")] = ""
    wait_s: Annotated[
        float,
        Meta(description="For output: wait up to this many seconds (at most 30) for news.", ge=0, le=JOBS_WAIT_S_MAX),
    ] = 0


class JobsTool:
    name = "jobs"
    input: type[msgspec.Struct] = JobsInput
    kind: Literal["look", "change"] = "change"

    async def prepare(self, args: JobsInput, context: ToolContext) -> Prepared:
        if args.action != "list":
            context.background.get(args.id)
        title = " ".join(filter(None, ("jobs", args.action, args.id)))
        intent = Intent(
            names=("jobs",),
            action=args.action,
            subject=args.id,
            description=title,
            path="",
            params=json.dumps({"action": args.action, "id": args.id}),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            return await _look(args, context)

        return Prepared(intent, run, title)


async def _look(args: JobsInput, context: ToolContext) -> ToolOutput:
    if args.action == "list":
        commands = context.background.list()
        lines = [f"{id_}  {_state(one)}  $ {one_line(one.command, TITLE_CHARS_MAX)}" for id_, one in commands.items()]
        return ToolOutput("\n".join(lines) or "No commands in the background.")
    if args.action == "kill":
        was_over = context.background.get(args.id).is_over
        running = await context.background.end_one(args.id)
        done = "was over already" if was_over else "was ended"
    else:
        running = context.background.get(args.id)
        await running.wait_for_news(args.wait_s)
        done = _state(running)
    taken = running.take()
    metadata = {"id": args.id, "exit_code": running.exit_code, "output": _for_people(taken)}
    return ToolOutput(f"{args.id} {done}. Its output since the last look:\n{_said(taken)}", metadata)


def _state(running: RunningCommand) -> str:
    if not running.is_over:
        return "is running"
    return "is over" if running.exit_code is None else f"is over ({_exit(running.exit_code)})"
