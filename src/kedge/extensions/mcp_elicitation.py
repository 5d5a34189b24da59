"""Questions of MCP servers to the user: a form becomes questions, and the answers become its fields. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kedge.bridge.mcp_messages import Elicited
from kedge.core.untrusted_text import visible, without_surrogates
from kedge.tools.base import Question, QuestionOption

#: Fields of one form, and options of one field: what fits on a screen. Items.
FIELDS_MAX = 12
OPTIONS_MAX = 50
#: The message of a server, or the description of a field. Characters.
TEXT_CHARS_MAX = 1000
#: A label. Characters.
LABEL_CHARS_MAX = 100

YES, NO = "Yes", "No"


class FormField(Struct, frozen=True):
    name: str
    question: Question
    kind: str
    #: Label -> value, for a choice.
    choices: dict[str, Any] = {}
    is_required: bool = False


def form_fields(server: str, message: str, schema: dict[str, Any], url: str) -> list[FormField] | None:
    """Return the fields of a form, or None if it cannot be shown."""
    intro = f"The MCP server {server} asks: {_text(message, TEXT_CHARS_MAX)}"
    if url:
        ask = f"{intro}\nOpen this address in a browser, if you trust it: {_text(url, TEXT_CHARS_MAX)}"
        return [_confirmation(ask, "I opened it")]
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return [_confirmation(intro, "Accept")]
    if len(properties) > FIELDS_MAX:
        return None
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    fields: list[FormField] = []
    for name, field in properties.items():
        if not isinstance(field, dict):
            return None
        fields.append(_field(name, field, intro if not fields else "", name in names))
    return fields


def elicited(fields: list[FormField], answers: list[str] | None) -> Elicited:
    """Return the user's answer to a form. None: declined."""
    if answers is None or len(answers) != len(fields):
        return Elicited("decline")
    if fields[0].kind == "confirmation":
        return Elicited("accept" if answers[0] == fields[0].question.options[0].label else "decline")
    content: dict[str, Any] = {}
    for field, answer in zip(fields, answers, strict=True):
        text = answer.strip()
        if not text and not field.is_required:
            continue
        try:
            content[field.name] = _value(field, text)
        except ValueError:
            return Elicited("cancel")
    return Elicited("accept", content)


def _confirmation(question: str, label: str) -> FormField:
    return FormField("", Question(question, (QuestionOption(label), QuestionOption("Decline"))), "confirmation")


def _field(name: str, field: dict[str, Any], intro: str, is_required: bool) -> FormField:
    kind = str(field.get("type", "string"))
    title = _text(str(field.get("title") or name), LABEL_CHARS_MAX)
    details = _text(str(field.get("description") or ""), TEXT_CHARS_MAX)
    text = f"{title}: {details}" if details else title
    text += "" if is_required else " (optional)"
    question = f"{intro}\n{text}" if intro else text
    choices: dict[str, Any] = {YES: True, NO: False} if kind == "boolean" else _choices(field)
    options = tuple(QuestionOption(label) for label in choices)
    return FormField(name, Question(question, options, kind == "array"), kind, choices, is_required)


def _choices(field: dict[str, Any]) -> dict[str, Any]:
    """Return label -> value of a field with a few values."""
    source = field.get("items") if field.get("type") == "array" else field
    source = source if isinstance(source, dict) else {}
    titled = source.get("oneOf") or source.get("anyOf")
    if isinstance(titled, list):
        pairs = [
            (str(one.get("title") or one.get("const")), one.get("const")) for one in titled if isinstance(one, dict)
        ]
    else:
        values = source.get("enum")
        values = values if isinstance(values, list) else []
        names = source.get("enumNames")
        labels = names if isinstance(names, list) and len(names) == len(values) else values
        pairs = [(str(label), value) for label, value in zip(labels, values, strict=True)]
    return {_text(label, LABEL_CHARS_MAX): value for label, value in pairs[:OPTIONS_MAX]}


def _value(field: FormField, text: str) -> Any:
    """Return the value of an answer. ValueError if the field does not take it."""
    match field.kind:
        case "boolean":
            return _choice({**field.choices, "yes": True, "no": False, "true": True, "false": False}, text)
        case "integer":
            return int(text)
        case "number":
            return float(text)
        case "array":
            return [_choice(field.choices, part.strip()) for part in text.split(", ")]
    return _choice(field.choices, text) if field.choices else text


def _choice(choices: dict[str, Any], text: str) -> Any:
    if text in choices:
        return choices[text]
    if text in choices.values():
        return text
    raise ValueError(text)


def _text(text: str, chars_max: int) -> str:
    return without_surrogates(visible(text[:chars_max], mark_ends=False))
