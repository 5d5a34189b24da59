"""bash: run one command in a fresh shell."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from kedge.core.approvals import Intent
from kedge.core.offers import offers_of
from kedge.core.transcript import CUT_OFF, Display
from kedge.core.untrusted_text import one_line, visible
from kedge.programs import program_outside
from kedge.tools.background import GRACE_S, PROGRESS_CHARS_MAX, PROGRESS_LINES_MAX, RunningCommand
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.command_parts import intent_parts, names_credential
from kedge.tools.head_tail import HeadTail
from kedge.tools.read_only import Surroundings, check_line
from kedge.tools.shell_parser import commands_of
from kedge.tools.strict_line import parse_strictly
from kedge.tools.workspace_paths import check_root, real_path

#: Limit of a command. The kernel takes no argument above 128 KiB, and no user approves a text of that size. Bytes.
COMMAND_BYTES_MAX = 100_000
#: Limit of `timeout_s`. Seconds.
TIMEOUT_S_MAX = 600
#: Limit of a command in a description or a list. Characters.
COMMAND_SHOWN_CHARS_MAX = 200
#: Limit of the reason for leaving the sandbox: a few sentences for the user. Characters.
REASON_CHARS_MAX = 500


class BashInput(msgspec.Struct):
    command: Annotated[str, Meta(description="The command line, as typed into bash.")]
    description: Annotated[str, Meta(description="The purpose of the command in a few words, for the user.")] = ""
    cwd: Annotated[str, Meta(description="Working directory, relative to the workspace. Default: its root.")] = ""
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=TIMEOUT_S_MAX)] | None,
        Meta(description="Kill the command after this many seconds (at most 600)."),
    ] = None
    background: Annotated[
        bool, Meta(description="Keep the command running and return at once: for servers, watchers.")
    ] = False
    keep: Annotated[
        bool, Meta(description="With background: the command continues after this run. The user is asked for that.")
    ] = False
    unconfined: Annotated[
        str,
        Meta(description="Why it must run outside of the sandbox, for the user, who is always asked."),
    ] = ""


_BASH_DESCRIPTION = """\
Runs one command line in a fresh bash, in the workspace. Nothing carries over between calls: use `cwd` instead of
`cd`, and set variables in the line that needs them. There is no standard input: use flags that prevent prompts.

- Standard output and standard error are returned together. Long output is cut in the middle. A non-zero exit code is
  reported.
- The user may have to approve a command. Plain commands that only read inside the workspace run without approval:
  ls, cat, grep, rg, find, git status/diff/log/show and the like, joined by `|`, `&&`, `||` and `;`, with `cd DIR &&`,
  globs, `2>&1` and `2>/dev/null`. Their searches skip files that may hold credentials (.env, *.pem). Variables,
  `$(...)`, loops, here-documents, `awk`, output files and credentials need approval.
- Without `timeout_s`, a command that still runs after a minute moves to the background, and you get its id. With
  `timeout_s` it is killed when the time is up.
- `background: true` is for commands that do not end: servers, watchers. Check them with the jobs tool. Do not use `&`:
  processes that a command leaves behind are ended with it.
- Background commands end with this run. With `keep: true` as well, a command stays until it exits, is ended, or the
  session or the server ends: for what the user wants to use afterwards, such as a development server.
- A command may run in a sandbox: it writes only in the workspace and the temporary directory, and has no network. If it
  failed because of that, repeat it with the reason in `unconfined`.
- To read, search or change files, use the tools for that instead of cat, grep, sed or echo.
- Never run a command that you do not understand. Do not work around a refusal: report what you wanted to do.
"""


_SANDBOX_HINT = (
    "\n(It ran in the sandbox: no network, writes only in the workspace and the temporary directory, guarded files "
    "read-only. If it failed because of that, repeat it with the reason in `unconfined`; the user is asked.)"
)


#: What programs print that cannot write a protected file. Some continue, and their exit code is 0.
_REFUSED_WRITES = ("Device or resource busy", "Read-only file system")


def _may_have_met_the_sandbox(output: ToolOutput) -> bool:
    code = output.metadata.get("exit_code")
    return code is not None and (code != 0 or any(text in output.content for text in _REFUSED_WRITES))


#: How an approval describes `keep`.
_STAYS = "stays after the run: "
_KEEP = "the command continues after the run, until it exits, you end it, or the session or the server ends"


class BashTool(Tool):
    name = "bash"
    description = _BASH_DESCRIPTION
    input: type[msgspec.Struct] = BashInput
    display: Display = "command"

    #: A command without a time limit moves to the background after this time. Seconds.
    AUTO_BACKGROUND_S = 60.0
    #: How long a call watches a background command at first: most failures come at once. Seconds.
    STARTUP_WAIT_S = 1.0

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    def title(self, args: BashInput) -> str:
        return f"$ {args.command.strip()}"

    async def prepare(self, args: BashInput, context: ToolContext) -> Prepared:
        _check_command(args.command)
        if args.keep and not args.background:
            raise ToolFailed("keep is only for commands with background: true")
        if len(args.unconfined) > REASON_CHARS_MAX:
            raise ToolFailed(f"the reason in unconfined has more than {REASON_CHARS_MAX} characters")
        cwd = await context.threads.look(_directory, context.root, args.cwd)
        plan = await context.threads.run(_plan, args, cwd, context, self._guarded)

        async def run() -> ToolOutput:
            if await context.threads.run(_current_binding, args, context) != plan.intent.binding:
                raise ToolFailed("the directory or the environment changed since the command was checked; try again")
            output = await self._run(plan.argv, args, plan.cwd, context)
            is_hinted = context.host.confinement == "workspace" and _may_have_met_the_sandbox(output)
            return replace(output, content=output.content + _SANDBOX_HINT) if is_hinted else output

        return Prepared(plan.intent, run, context.background.foreground)

    async def _run(self, argv: tuple[str, ...], args: BashInput, cwd: Path, context: ToolContext) -> ToolOutput:
        if args.keep:
            context.kept_commands.check_room()
        elif args.background:
            context.background.check_room()
        began = asyncio.get_running_loop().time()
        process = await context.processes.start(argv, cwd, confinement=context.host.confinement)
        running = RunningCommand(process, args.command, context.host.progress)
        context.host.if_cut_off(lambda: _cut_off(running, began))
        try:
            wait_s = self.STARTUP_WAIT_S if args.background else args.timeout_s or self.AUTO_BACKGROUND_S
            has_ended = await running.wait(wait_s)
            if not has_ended and args.keep:
                return await _kept(running, context)
            if not has_ended and (args.background or args.timeout_s is None):
                return _moved_to_background(context.background.add(running), running)
            if not has_ended:
                await running.end(GRACE_S)
        except BaseException:
            context.background.add_survivors(await running.end_shielded(GRACE_S))
            raise
        context.background.add_survivors(running.survivors)
        duration_s = asyncio.get_running_loop().time() - began
        return _result(running, duration_s, timed_out_s=None if has_ended else wait_s)


class _Plan(msgspec.Struct, frozen=True):
    """The command that a call would run, and its Intent."""

    argv: tuple[str, ...]
    cwd: Path
    intent: Intent


def _plan(args: BashInput, cwd: Path, context: ToolContext, guarded: tuple[Path, ...]) -> _Plan:
    """Blocking: reads the file system, and may parse the line in another process."""
    command = args.command
    shell = _shell(context)
    strict = parse_strictly(command)
    checked = check_line(strict, _surroundings(cwd, context, guarded)) if strict is not None else None
    parts = intent_parts(command, strict, checked.parts if checked is not None else (), cwd, context.root)
    # A grant for a command that ends with its Run does not cover one that stays: the user approves each of those.
    offers = () if args.unconfined or args.keep else offers_of(parts)
    shown_command = one_line(command, COMMAND_SHOWN_CHARS_MAX)
    purpose = one_line(args.description, COMMAND_SHOWN_CHARS_MAX)
    intent = Intent(
        names=("bash",),
        action="execute",
        subject=command,
        # Never the purpose alone: the model may be wrong, or lie.
        description=f"{_STAYS if args.keep else ''}{purpose}{': ' if purpose else ''}$ {shown_command}",
        path=str(cwd),
        params=json.dumps(
            {
                "command": command,
                "shown": visible(command),
                "cwd": str(cwd),
                "timeout_s": args.timeout_s,
                "background": args.background,
                "keep": _KEEP if args.keep else "",
                "unconfined": args.unconfined,
            },
            ensure_ascii=False,
        ),
        binding=_binding(shell, command, cwd, context, args),
        # Reading for hours is more than reading once.
        needs_approval=args.keep or checked is None or not all(checked.parts),
        parts=parts,
        commands=commands_of(command),
        exact_only=names_credential(command, cwd, context.root),
        grant=", ".join(offers[0]) if offers else "",
        offers=offers,
        escalation=args.unconfined,
        outlives_run=args.keep,
    )
    # Where a command only reads, the line runs as it was checked, not as it is written.
    text = checked.text if checked is not None and any(checked.parts) and not args.unconfined else command
    return _Plan((shell, "-c", text), cwd, intent)


def _surroundings(cwd: Path, context: ToolContext, guarded: tuple[Path, ...]) -> Surroundings:
    return Surroundings(
        cwd=cwd,
        root=context.root,
        environment=context.processes.environment,
        guarded=guarded,
        is_hidden=context.is_hidden,
        hides_files=context.hides_files,
    )


def _current_binding(args: BashInput, context: ToolContext) -> str:
    """Blocking."""
    cwd = _directory(context.root, args.cwd)
    return _binding(_shell(context), args.command, cwd, context, args)


def _shell(context: ToolContext) -> str:
    """Return the shell, never one from the workspace. Blocking."""
    return program_outside("bash", _path(context), context.root) or "/bin/sh"


def _path(context: ToolContext) -> str:
    return context.processes.environment.get("PATH", os.defpath)


def _check_command(command: str) -> None:
    if not command.strip():
        raise ToolFailed("the command is empty")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolFailed("the command has lone surrogates, which are not valid text") from None
    if "\0" in command:
        raise ToolFailed("a command cannot contain a NUL character")
    if size > COMMAND_BYTES_MAX:
        raise ToolFailed(f"the command is longer than {COMMAND_BYTES_MAX} bytes; put the data into a file first")


def _directory(root: Path, path: str) -> Path:
    if "\0" in path:
        raise ToolFailed("a directory cannot contain a NUL character")
    try:
        cwd = real_path(root / path)
        exists = os.path.lexists(cwd)
    except (OSError, ValueError):
        exists = False
    if not exists:
        check_root(root)
        raise ToolFailed(f"directory {visible(path, keep='')!r} not found; cwd is relative to the workspace")
    if not cwd.is_dir():
        raise ToolFailed(f"{visible(path, keep='')!r} is not a directory")
    return cwd


def _binding(shell: str, command: str, cwd: Path, context: ToolContext, args: BashInput) -> str:
    """Bind an approval to this line, shell, directory and environment, and to the escalation."""
    bound = [shell, command, str(cwd), sorted(context.processes.environment.items()), args.unconfined, args.keep]
    return hashlib.sha256(json.dumps(bound).encode()).hexdigest()


def _moved_to_background(id_: str, running: RunningCommand) -> ToolOutput:
    output = running.take()
    excerpt = output.excerpt(OUTPUT_CHARS_MAX)
    content = (
        f"Still running, now in the background as {id_}. Check it with the jobs tool (action: output, id: {id_}), end "
        f"it with action: kill. It ends with this run at the latest.\nOutput so far:\n{excerpt.for_model}"
    )
    metadata = {
        "command": running.command,
        "background_id": id_,
        "truncated": excerpt.is_cut,
        "output": output_for_screen(output),
    }
    return ToolOutput(content, metadata, summary=f"running in the background ({id_})")


async def _kept(running: RunningCommand, context: ToolContext) -> ToolOutput:
    id_ = await context.kept_commands.keep(running)
    output = running.take()
    excerpt = output.excerpt(OUTPUT_CHARS_MAX)
    content = (
        f"Kept running as {id_}, also after this run. Check it with the jobs tool (action: output, id: {id_}), end it "
        f"with action: kill. It ends with the session or the server at the latest.\nOutput so far:\n{excerpt.for_model}"
    )
    metadata = {
        "command": running.command,
        "job_id": id_,
        "truncated": excerpt.is_cut,
        "output": output_for_screen(output),
    }
    result = ToolOutput(content, metadata, summary=f"kept running ({id_})")
    context.host.if_cut_off(lambda: result)  # a cancel from now on does not end the command
    return result


def _result(running: RunningCommand, duration_s: float, *, timed_out_s: float | None) -> ToolOutput:
    notes = []
    if timed_out_s is not None:
        notes.append(f"Killed after {timed_out_s:g} s. Set a larger timeout_s, or background: true to keep it running.")
    elif running.exit_code:
        notes.append(exit_line(running.exit_code))
    if running.strays and timed_out_s is None:
        notes.append(
            f"{running.strays} background processes that it left running were ended; "
            "use background: true to keep one running."
        )
    if running.survivors:
        notes.append(f"Some of its processes could not be ended: {', '.join(map(str, running.survivors))}.")
    output = running.take()
    excerpt = output.excerpt(OUTPUT_CHARS_MAX)
    metadata = {
        "command": running.command,
        "exit_code": running.exit_code,
        "duration_ms": int(1000 * duration_s),
        "timed_out": timed_out_s is not None,
        "truncated": excerpt.is_cut,
        "output": output_for_screen(output),
    }
    end = "timed out" if timed_out_s is not None else f"exit {running.exit_code}"
    content = "\n\n".join([excerpt.for_model.rstrip("\n"), *notes])
    return ToolOutput(content, metadata, summary=f"{end}, {duration_s:.1f} s")


def _cut_off(running: RunningCommand, began: float) -> ToolOutput:
    """Return the result of a command that ended with its Run: what it had printed. May be called again."""
    output = running.output
    excerpt = output.excerpt(OUTPUT_CHARS_MAX)
    duration_s = (running.ended_at or asyncio.get_running_loop().time()) - began
    metadata = {
        "command": running.command,
        "exit_code": None,
        "duration_ms": int(1000 * duration_s),
        "truncated": excerpt.is_cut,
        "output": output_for_screen(output),
    }
    content = "\n\n".join([excerpt.for_model.rstrip("\n"), CUT_OFF])
    return ToolOutput(content, metadata, is_error=True, summary=f"cut off, {duration_s:.1f} s", end="cut_off")


def exit_line(code: int) -> str:
    return f"Exit code {code}" if code >= 0 else f"Ended by signal {-code}"


def output_for_screen(output: HeadTail) -> str:
    return output.last_lines(PROGRESS_LINES_MAX, PROGRESS_CHARS_MAX)
