"""Approvals and questions as text: what people are shown, and what their words mean. Nothing in it can hide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kedge.client.safe_text import visible_line
from kedge.core.untrusted_text import visible, visible_diff
from kedge.wire.models import PermissionRequest, QuestionBody, QuestionResponse

#: Of a description, which is a title; what it is about follows in full. Characters.
TITLE_CHARS_MAX = 300

#: Shown in a way of their own, or the same again for other clients.
_SHOWN_APART = ("command", "shown", "cwd", "diff", "path", "is_new")


def approval_lines(asked: PermissionRequest) -> Iterator[str]:
    """All there is to decide on: the whole command or the whole diff, where it happens, and what else was given."""
    params = asked.params
    command, diff = params.get("command"), params.get("diff")
    title = visible_line(asked.description, TITLE_CHARS_MAX)
    says_more = title and title != f"$ {command}"
    yield f"{visible_line(asked.tool_name)} needs your approval{': ' + title if says_more else ''}"
    if isinstance(command, str):
        yield from _block("$ ", command)
    if asked.path:
        yield f"  {'in' if asked.action == 'execute' else 'file'} {visible(asked.path, keep='')}"
    for name, value in params.items():
        if name not in _SHOWN_APART and value not in (None, False, "", [], {}):
            yield from _block(f"{visible(name, keep='')}: ", _text(value))
    if isinstance(diff, str):
        yield from (f"  {line}" for line in visible_diff(diff).split("\n") if line)


def _block(begin: str, text: str, *, is_prose: bool = False) -> Iterator[str]:
    """Further lines stand below the first, so that none of them can pass for ours."""
    for number, line in enumerate(text.split("\n")):
        yield f"  {begin if number == 0 else ' ' * len(begin)}{visible(line, keep=chr(9), mark_ends=not is_prose)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def question_lines(asked: QuestionBody) -> Iterator[str]:
    yield from _block("", asked.question, is_prose=True)
    for number, option in enumerate(asked.options, 1):
        about = f": {visible_line(option.description)}" if option.description else ""
        yield f"    {number}  {visible_line(option.label)}{about}"


def response_to(asked: QuestionBody, said: str) -> QuestionResponse:
    """A number chooses an option, several of them several; anything else is an answer in words. ValueError: there is
    no such option."""
    words = said.replace(",", " ").split()
    if not asked.options or not words or not all(word.isascii() and word.isdigit() for word in words):
        return QuestionResponse(request_id=asked.request_id, fill_in_text=said.strip())
    numbers = dict.fromkeys(int(word) for word in words)
    for number in numbers:
        if not 1 <= number <= len(asked.options):
            raise ValueError(f"there is no option {number}")
    if len(numbers) > 1 and not asked.multiple:
        raise ValueError("only one of the options can be chosen")
    chosen = [asked.options[number - 1].id for number in numbers]
    return QuestionResponse(request_id=asked.request_id, selected_ids=chosen)
