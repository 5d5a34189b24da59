"""Hooks: commands of the user that run at events of a Run, and what their answers mean. Pure.

A hook receives the event as JSON on standard input. It answers with its exit code, and optionally with JSON on standard
output, in the format that other agents document for their hooks:

    exit 0      its standard output is the answer, if it is a JSON object
    exit 2      it blocks, for the reason on standard error
    other       it failed; the event continues as if there were no hook, and the user sees the error

Of several answers to one event, deny counts before ask, and ask before allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, field

from kedge.core.modes import Mode
from kedge.core.patterns import word_matches
from kedge.core.untrusted_text import one_line, without_surrogates

HookEvent = Literal["PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "Notification"]
HOOK_EVENTS: tuple[HookEvent, ...] = get_args(HookEvent)
#: deny also stands for a block of an event that is not a tool call.
HookDecision = Literal["", "allow", "ask", "deny"]

#: The exit code of a hook that blocks.
BLOCKS = 2
#: Text of one hook for the model, as its context or reason. More fills the context with unread text. Characters.
HOOK_TEXT_CHARS_MAX = 10_000
#: An error, or a message to the user: one line. Characters.
HOOK_LINE_CHARS_MAX = 300

#: A tool's own name -> the names that other agents use for it. A hook receives the first as `tool_name`.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "bash": ("Bash",),
    "view": ("Read",),
    "write": ("Write",),
    "edit": ("Edit",),
    "multiedit": ("MultiEdit", "Edit"),
    "ls": ("LS",),
    "glob": ("Glob",),
    "grep": ("Grep",),
    "fetch": ("WebFetch",),
    "todos": ("TodoWrite",),
    "agent": ("Task", "Agent"),
    "question": ("AskUserQuestion",),
    "present_plan": ("ExitPlanMode",),
}
#: Tools whose `path` other agents call `file_path`, and give as an absolute path.
_FILE_TOOLS = frozenset({"view", "write", "edit", "multiedit"})
#: The names of the modes in other agents.
PERMISSION_MODES: dict[Mode, str] = {
    "plan": "plan",
    "ask": "default",
    "edits": "acceptEdits",
    "auto": "auto",
    "yolo": "bypassPermissions",
}
#: Characters of regular expressions, which a matcher does not support.
_REGEX = frozenset("()[]{}^$+?\\")


class HookAnswer(Struct, frozen=True):
    """The answer of one hook, or of all hooks of one event."""

    decision: HookDecision = ""
    #: Of a decision.
    reason: str = ""
    #: The input to use for the tool call; None: unchanged.
    updated_input: dict[str, Any] | None = None
    #: Texts for the model, in the order of the configuration.
    context: tuple[str, ...] = ()
    #: Lines for the user: messages of hooks, and what failed.
    messages: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


NO_ANSWER = HookAnswer()


# --- tools ----------------------------------------------------------------------------------------------------------


def matcher_mistake(matcher: str) -> str:
    """Return why a matcher is not valid; empty: it is."""
    if any(set(pattern) & _REGEX for pattern in _patterns(matcher)):
        return "is not a valid matcher; write names of tools joined by |, with * for any text"
    return ""


def matches_tool(matcher: str, tool: str) -> bool:
    """Return whether a matcher covers a tool, by its own name or one that other agents use."""
    if not matcher:
        return True
    names = (tool, *OTHER_NAMES.get(tool, ()))
    return any(word_matches(pattern, name) for pattern in _patterns(matcher) for name in names)


def _patterns(matcher: str) -> list[str]:
    """Return the patterns of a matcher. `^Bash$` and `^(Edit|Write)$`, as other agents write them, are plain names."""
    text = matcher.strip()
    if text.startswith("^(") and text.endswith(")$"):
        text = text[2:-2]
    words = (word.strip() for word in text.split("|"))
    whole = (word[1:-1] if word.startswith("^") and word.endswith("$") else word for word in words)
    return [word.replace(".*", "*") for word in whole]


def hook_tool_name(tool: str) -> str:
    return OTHER_NAMES.get(tool, (tool,))[0]


def hook_input(tool: str, own: dict[str, Any], root: str) -> dict[str, Any]:
    """Return the input of a call for hooks: as the model wrote it, and with `file_path` for tools on one file."""
    path = own.get("path")
    if tool not in _FILE_TOOLS or not isinstance(path, str):
        return own
    return {**own, "file_path": path if path.startswith("/") else f"{root}/{path}"}


def own_input(tool: str, updated: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    """Return the input of a call from that of a hook, which may have changed either name of the file."""
    if tool not in _FILE_TOOLS or "file_path" not in updated:
        return updated
    own = {key: value for key, value in updated.items() if key != "file_path"}
    if updated["file_path"] != sent.get("file_path") or "path" not in own:
        own["path"] = updated["file_path"]
    return own


# --- answers --------------------------------------------------------------------------------------------------------


class _Specific(Struct, rename="camel"):
    permission_decision: Literal["allow", "deny", "ask"] | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    additional_context: str | None = None


class _Output(Struct, rename="camel"):
    """The JSON of a hook. Other keys are ignored: other agents have more of them."""

    continue_: bool = field(default=True, name="continue")
    stop_reason: str | None = None
    system_message: str | None = None
    #: approve and block: the older form of a permission decision.
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    hook_specific_output: _Specific | None = None


_DECISIONS: dict[str | None, HookDecision] = {"approve": "allow", "block": "deny", None: ""}


def parse_answer(event: HookEvent, exit_code: int, stdout: bytes, stderr: bytes, *, is_cut: bool = False) -> HookAnswer:
    """Return the answer of a hook that has ended. `is_cut`: it printed more than `stdout`."""
    errors = stderr.decode("utf-8", "replace")
    if exit_code == BLOCKS:
        return HookAnswer("deny", _text(errors) or "a hook blocks it")
    if exit_code != 0:
        how = f"exited with code {exit_code}" if exit_code > 0 else f"was ended by signal {-exit_code}"
        line = one_line(errors, HOOK_LINE_CHARS_MAX)
        return HookAnswer(errors=(f"{how}: {line}" if line else how,))
    text = stdout.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        # Plain text is context for a prompt, and of no meaning for other events.
        return HookAnswer(context=(_text(text),)) if event == "UserPromptSubmit" and text else NO_ANSWER
    if is_cut:
        return HookAnswer(
            errors=(f"printed more than the {len(stdout)} bytes that are read, so its answer is ignored",)
        )
    try:
        return _answer(event, msgspec.json.decode(text, type=_Output))
    except msgspec.ValidationError as error:
        return HookAnswer(errors=(one_line(f"printed an answer that is not valid: {error}", HOOK_LINE_CHARS_MAX),))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return HookAnswer(errors=("printed an answer that is not valid JSON",))


def _answer(event: HookEvent, output: _Output) -> HookAnswer:
    specific = output.hook_specific_output or _Specific()
    decision, reason = _DECISIONS[output.decision], output.reason
    if event == "PreToolUse" and specific.permission_decision is not None:
        decision, reason = specific.permission_decision, specific.permission_decision_reason
    if event != "PreToolUse" and decision == "allow":
        decision = ""
    if not output.continue_ and event != "Stop":
        decision, reason = "deny", output.stop_reason or reason
    message = one_line(output.system_message or "", HOOK_LINE_CHARS_MAX)
    return HookAnswer(
        decision,
        _text(reason or "") or ("a hook blocks it" if decision == "deny" else ""),
        specific.updated_input if event == "PreToolUse" else None,
        (_text(specific.additional_context),) if specific.additional_context else (),
        (message,) if message else (),
    )


def _text(text: str) -> str:
    text = text.strip()
    cut = text if len(text) <= HOOK_TEXT_CHARS_MAX else f"{text[:HOOK_TEXT_CHARS_MAX]}\n[cut]"
    return without_surrogates(cut)


def combined(answers: Sequence[HookAnswer]) -> HookAnswer:
    """Return the answer to an event from those of its hooks, which are in the order of the configuration.

    The last input wins. An allow counts only for the input that its hook has seen or written."""
    if len(answers) == 1:
        return answers[0]
    updater = next((answer for answer in reversed(answers) if answer.updated_input is not None), None)
    decision: HookDecision = ""
    reasons: tuple[str, ...] = ()
    for candidate in ("deny", "ask", "allow"):
        made = [answer for answer in answers if answer.decision == candidate]
        if made and not (candidate == "allow" and updater is not None and updater.decision != "allow"):
            decision, reasons = made[0].decision, tuple(answer.reason for answer in made if answer.reason)
            break
    return HookAnswer(
        decision,
        "\n".join(reasons),
        None if updater is None else updater.updated_input,
        tuple(text for answer in answers for text in answer.context),
        tuple(line for answer in answers for line in answer.messages),
        tuple(line for answer in answers for line in answer.errors),
    )
