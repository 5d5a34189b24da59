"""The text of approvals and questions, and the meaning of typed answers. All of it is shown, with nothing hidden."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from kedge.client.safe_text import visible_line
from kedge.core.untrusted_text import visible, visible_diff
from kedge.wire.models import PermissionRequest, QuestionBody, QuestionResponse

#: Length of an approval's title, its description; the full details follow it. Characters.
APPROVAL_TITLE_CHARS_MAX = 300
#: Of a client id: enough to tell two clients apart. Characters.
CLIENT_ID_CHARS = 4
#: Length of the name of a tool's parameter: longer names leave no room for the value. Characters.
PARAMETER_NAME_CHARS_MAX = 24

#: Parameters that have a field of their own, or repeat one for other clients.
_OTHER_FIELDS = ("command", "shown", "cwd", "diff", "path", "is_new")

_ANSWER_LABELS = {
    "allow": "allowed",
    "allow_session": "allowed for the session",
    "allow_always": "always allowed",
    "deny": "denied",
    "answered": "answered",
    "cancelled": "not answered",
}


class ApprovalField(NamedTuple):
    kind: Literal["command", "path", "parameter"]
    label: str
    #: Untrusted, except for a path, which is already made visible: it has one line.
    text: str


def approval_title(ask: PermissionRequest) -> str:
    title = visible_line(_without_command(ask), APPROVAL_TITLE_CHARS_MAX)
    return f"{visible_line(ask.tool_name)} needs your approval{': ' + title if title else ''}"


def _without_command(ask: PermissionRequest) -> str:
    """Return the description without the start of the command at its end: all of it is below the title."""
    description, command = ask.description, ask.params.get("command")
    if not isinstance(command, str):
        return description
    words = " ".join(command.split())
    index = description.find("$ ")
    while index >= 0 and not words.startswith(description[index + 2 :].removesuffix("…")):
        index = description.find("$ ", index + 1)
    return description if index < 0 else description[:index].removesuffix(": ")


def approval_fields(ask: PermissionRequest) -> Iterator[ApprovalField]:
    """Yield everything the decision depends on, except for the diff: the command, where it runs, other parameters."""
    command = ask.params.get("command")
    if isinstance(command, str):
        yield ApprovalField("command", "$ ", command)
    if ask.path:
        yield ApprovalField("path", "in " if ask.action == "execute" else "file ", visible(ask.path, keep=""))
    for name, value in ask.params.items():
        if name not in _OTHER_FIELDS and value not in (None, False, "", [], {}):
            yield ApprovalField("parameter", f"{visible_line(name, PARAMETER_NAME_CHARS_MAX)}: ", _text(value))


def approval_diff(ask: PermissionRequest) -> str:
    diff = ask.params.get("diff")
    return diff if isinstance(diff, str) else ""


def approval_lines(ask: PermissionRequest) -> Iterator[str]:
    """Yield the title, the fields and the diff as lines of plain text."""
    yield approval_title(ask)
    for field in approval_fields(ask):
        yield from _block(field.label, field.text)
    yield from (f"  {line}" for line in visible_diff(approval_diff(ask)).split("\n") if line)


def answer_label(answer: str) -> str:
    return _ANSWER_LABELS.get(answer) or visible_line(answer) or "answered"


def question_lines(question: QuestionBody) -> Iterator[str]:
    yield from _block("", question.question, is_prose=True)
    for number, option in enumerate(question.options, 1):
        description = f": {visible_line(option.description)}" if option.description else ""
        yield f"    {number}  {visible_line(option.label)}{description}"


def response_to(question: QuestionBody, text: str) -> QuestionResponse:
    """Parse a typed answer: numbers choose options, other text is the answer itself.

    Raises ValueError if there is no such option, or if several are given for a question that takes one."""
    words = text.replace(",", " ").split()
    if not question.options or not words or not all(word.isascii() and word.isdigit() for word in words):
        return QuestionResponse(request_id=question.request_id, fill_in_text=text.strip())
    numbers = dict.fromkeys(int(word) for word in words)
    for number in numbers:
        if not 1 <= number <= len(question.options):
            raise ValueError(f"there is no option {number}")
    if len(numbers) > 1 and not question.multiple:
        raise ValueError("choose only one option")
    selected = [question.options[number - 1].id for number in numbers]
    return QuestionResponse(request_id=question.request_id, selected_ids=selected)


def _block(label: str, text: str, *, is_prose: bool = False) -> Iterator[str]:
    """Indent further lines below the first, so that none of them can be mistaken for a line of kedge."""
    for number, line in enumerate(text.split("\n")):
        yield f"  {label if number == 0 else ' ' * len(label)}{visible(line, keep=chr(9), mark_ends=not is_prose)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
