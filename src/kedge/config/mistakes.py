"""Explanations of mistakes in a configuration file: the line, the setting, and a suggestion.

The parser of the standard library keeps no positions, so the line of a setting is searched in the text. In a multi-line
string, text that resembles a setting can lead to a wrong line; nothing else depends on it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import inspect

#: The names of tables and settings from the root down, and the indices of items of lists.
Keys = tuple[str | int, ...]

_NAME = r"""[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'"""
_NAMES = rf"(?:{_NAME})(?:\s*\.\s*(?:{_NAME}))*"
_HEADER = re.compile(rf"\s*\[(\[?)\s*({_NAMES})\s*\]")
_SETTING = re.compile(rf"\s*({_NAMES})\s*=")
#: msgspec's report of a path. It does not name the keys of a dict: "[...]".
_AT = re.compile(r" - at (?:`key` in )?`\$(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
#: A part of tomllib's message -> what to do.
_SYNTAX = {
    "Invalid value": "text needs quotes",
    "Expected '=' after a key": "write: name = value",
    "Expected newline or end of document": "write one setting per line, and text in quotes",
    "Cannot overwrite a value": "it is set twice: remove one",
    "Cannot declare": "this table exists already: join them",
    "Unclosed array": "close it with ]",
    "Illegal character": "close the text with a quote",
    "Unterminated string": "close the text with a quote",
}


def line_of(text: str, keys: Keys, value: str = "") -> int:
    """Return the number of the line that sets `keys`, else that of its table or list, else 0.

    With `value`, the line of this text in the setting: a list may have several lines."""
    best, depth = 0, 0
    table: Keys = ()
    items: dict[Keys, int] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if header := _HEADER.match(line):
            here = table = _parts(header[2])
            if header[1]:  # [[...]]: an item of a list
                items[here] = items.get(here, -1) + 1
                here = table = (*here, items[here])
        elif setting := _SETTING.match(line):
            here = table + _parts(setting[1])
        else:
            continue
        if len(here) > depth and keys[: len(here)] == here:
            best, depth = number, len(here)
        elif len(here) > len(keys) > depth and here[: len(keys)] == keys:  # the first item of a list
            best, depth = number, len(keys)
    if value and best:
        return next((number for number in range(best, len(lines) + 1) if value in lines[number - 1]), best)
    return best


def _parts(names: str) -> Keys:
    return tuple(name.strip("\"'") for name in re.findall(_NAME, names))


def located(text: str, keys: Keys, message: str, value: str = "") -> str:
    """Return the message with the line and the name of a setting, to follow the path of the file."""
    return _at_line(line_of(text, keys, value), keys, message)


def _at_line(line: int, keys: Keys, message: str) -> str:
    name = ".".join(key for key in keys if isinstance(key, str))
    end = "" if message.endswith("?") else "."
    return f"{f', line {line}' if line else ''}: {f'{name}: ' if name else ''}{message}{end}"


def explain_syntax(error: ValueError, content: bytes) -> str:
    """Describe why a file is not valid TOML. Never with bytes of the file, which may be part of a key."""
    if isinstance(error, UnicodeDecodeError):
        line = content.count(b"\n", 0, error.start) + 1
        return f"byte {error.start} is not UTF-8 (at line {line}); save the file as UTF-8"
    if not isinstance(error, tomllib.TOMLDecodeError):
        return "a number is too long"  # tomllib lets this ValueError of `int` through
    remedy = next((remedy for part, remedy in _SYNTAX.items() if part in str(error)), "check quotes and brackets there")
    return f"{error}; {remedy}"


def explain_schema(error: msgspec.ValidationError, plain: dict[str, Any], text: str, root: type) -> str:
    """Describe why parsed TOML does not match the Struct `root`, to follow the path of the file."""
    message = _AT.sub("", str(error))
    path = _AT.search(str(error))
    keys = _keys(path[1] if path else "", plain, _same_error(error, root))
    if unknown := _UNKNOWN.fullmatch(message):
        remedy = _unknown_remedy(unknown[1], keys, root)
        return _at_line(line_of(text, (*keys, unknown[1])), keys, f"unknown field `{unknown[1]}`; {remedy}")
    if choices := _choices(_kind_at(keys, root)):
        message += f"; use {' or '.join(choices)}"
    return located(text, keys, message.replace("Object missing", "missing"))


def _same_error(error: msgspec.ValidationError, root: type) -> Callable[[dict[str, Any]], bool]:
    def fails(plain: dict[str, Any]) -> bool:
        try:
            msgspec.convert(plain, root)
        except msgspec.ValidationError as other:
            return str(other) == str(error)
        return False

    return fails


def _keys(path: str, plain: dict[str, Any], fails: Callable[[dict[str, Any]], bool]) -> Keys:
    """Return the keys of a path such as `.providers[...].models[0].id`."""
    keys: list[str | int] = []
    value: Any = plain
    for name, index, unnamed in re.findall(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])", path):
        key: str | int | None
        if unnamed:  # the first entry that fails alone
            key = next((key for key, entry in value.items() if fails(_nested(keys, {key: entry}))), None)
        else:
            key = int(index) if index else name
        if key is None:
            break
        keys.append(key)
        value = value[key]
    return tuple(keys)


def _nested(keys: list[str | int], value: Any) -> Any:
    """Return the tables down to `keys`, with this value there."""
    for key in reversed(keys):
        value = {key: value} if isinstance(key, str) else [value]
    return value


def _kind_at(keys: Keys, root: type) -> inspect.Type | None:
    """Return the type of a setting."""
    kind: inspect.Type | None = inspect.type_info(root)
    for key in keys:
        match kind:
            case inspect.StructType(fields=fields):
                kind = next((field.type for field in fields if field.encode_name == key), None)
            case inspect.DictType(value_type=inner) | inspect.ListType(item_type=inner):
                kind = inner
            case _:
                return None
    return kind


def _choices(kind: inspect.Type | None) -> list[str]:
    """Return the values of a setting that has only a few."""
    match kind:
        case inspect.LiteralType(values=values):
            return [str(value) for value in values]
        case inspect.UnionType(types=types):
            return [value for one in types for value in _choices(one)]
    return []


def _unknown_remedy(name: str, keys: Keys, root: type) -> str:
    table, whole = _kind_at(keys, root), inspect.type_info(root)
    names = [field.encode_name for field in table.fields] if isinstance(table, inspect.StructType) else []
    if close := get_close_matches(name, names, 1):
        return f"did you mean {close[0]}?"
    for outer in whole.fields if isinstance(whole, inspect.StructType) else ():
        if isinstance(outer.type, inspect.StructType) and name in [field.encode_name for field in outer.type.fields]:
            return f"it belongs to [{outer.encode_name}]"
    return f"the settings here are {', '.join(names)}"
