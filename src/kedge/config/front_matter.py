"""Front matter: the settings between `---` lines at the start of a Markdown file. Pure, and linear in the text.

A small subset of YAML, as the files of skills, commands and agents use it:

    name: review                    plain text, up to the end of the line; further lines are indented
    title: "a \\"quoted\\" text"      or in single quotes, on one line
    tools: [view, grep]             a list in brackets, on one line
    tools:                          or with one item per line
      - view
    metadata:                       one level of further keys
      version: 2
    enabled: true                   true or false
    tools: *                        a single star is a text
    description: >                  folded lines; `|` keeps line breaks
      Several lines.

Everything else is an error: a file is never understood in part.
"""

from __future__ import annotations

import re

from msgspec import Struct

#: Size of the settings: descriptions with examples have a few kilobytes. Lines, characters.
LINES_MAX = 300
CHARS_MAX = 32 * 1024

Value = str | bool | tuple[str, ...] | dict[str, str]

_FENCE = re.compile(r"---[ \t]*")
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63}):(?:[ \t]+(.*))?")
_ITEM = re.compile(r"-(?:[ \t]+(.*))?")
_BLOCK = re.compile(r"([|>])[+-]?")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
#: Values of a bracketed list: quoted, or plain without characters that end it.
_LISTED = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,\[\]{}"']*)[ \t]*(,|$)""")
#: Characters that start other kinds of YAML values: maps, anchors, references, tags, directives.
_OTHER_STARTS = frozenset("{}&*!%@`]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class FrontMatterError(Exception):
    """The settings cannot be read. `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line


class FrontMatter(Struct, frozen=True):
    fields: dict[str, Value]
    #: Key -> its line, counted from 1.
    lines: dict[str, int]
    #: The text after the settings.
    body: str


def parse_front_matter(text: str, literal_keys: frozenset[str] = frozenset()) -> FrontMatter:
    """Split a file into settings and text. Raises FrontMatterError, and nothing else.

    `literal_keys`: keys whose value is the rest of the line, brackets included."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if not _FENCE.fullmatch(lines[0]):
        return FrontMatter({}, {}, "\n".join(lines))
    end = next((index for index in range(1, min(len(lines), LINES_MAX + 2)) if _FENCE.fullmatch(lines[index])), None)
    if end is None:
        raise FrontMatterError(1, f"the settings are not closed by --- within {LINES_MAX} lines")
    inside = lines[1:end]
    if sum(map(len, inside)) > CHARS_MAX:
        raise FrontMatterError(1, f"the settings have more than {CHARS_MAX} characters")
    reader = _Reader(inside, literal_keys)
    reader.read()
    return FrontMatter(reader.fields, reader.lines, "\n".join(lines[end + 1 :]).lstrip("\n"))


class _Reader:
    """Reads the lines between the fences, from the first to the last."""

    def __init__(self, lines: list[str], literal_keys: frozenset[str]) -> None:
        self._lines = lines
        self._literal_keys = literal_keys
        self._index = 0
        self.fields: dict[str, Value] = {}
        self.lines: dict[str, int] = {}

    def read(self) -> None:
        for index, line in enumerate(self._lines):
            if _CONTROL.search(line):
                raise FrontMatterError(index + 2, "it has a control character")
        while self._index < len(self._lines):
            line = self._lines[self._index]
            if _is_blank(line):
                self._index += 1
                continue
            match = _KEY.fullmatch(line)
            if match is None:
                raise self._error("expected `key: value`")
            key = match[1]
            if key in self.fields:
                raise self._error(f"{key} is set twice")
            self.lines[key] = self._index + 2  # the first line is the fence
            self.fields[key] = self._value(key, (match[2] or "").strip())

    def _value(self, key: str, text: str) -> Value:
        if key in self._literal_keys:
            self._index += 1
            return self._quoted(text, self._index - 1) if text[:1] in ("'", '"') else text
        if match := _BLOCK.fullmatch(text):
            self._index += 1
            return self._block(is_folded=match[1] == ">")
        if not text or text.startswith("#"):
            self._index += 1
            return self._nested()
        value = self._scalar(text)
        self._index += 1
        if isinstance(value, str) and text[0] not in "\"'":
            return " ".join([value, *self._continuation()])
        return value

    def _scalar(self, text: str) -> str | bool | tuple[str, ...]:
        if text[0] in "\"'":
            return self._quoted(text, self._index)
        if text[0] == "[":
            return self._bracketed(text)
        if text != "*" and (text[0] in _OTHER_STARTS or text[0] in "|>"):
            raise self._error(f"a value cannot start with {text[0]}; put it in quotes")
        return text.lower() == "true" if text.lower() in ("true", "false") else text

    def _continuation(self) -> list[str]:
        """Return the indented lines that continue a plain text."""
        lines: list[str] = []
        while self._index < len(self._lines) and self._lines[self._index].startswith(" "):
            if text := self._lines[self._index].strip():
                lines.append(text)
            self._index += 1
        return lines

    def _block(self, *, is_folded: bool) -> str:
        lines: list[str] = []
        indent = 0
        while self._index < len(self._lines):
            line = self._lines[self._index]
            width = len(line) - len(line.lstrip(" "))
            if line.strip() and not width:
                break
            indent = indent or (width if line.strip() else 0)
            if line.strip() and width < indent:
                raise self._error("the line is indented less than the first one of its text")
            lines.append(line[indent:].rstrip())
            self._index += 1
        text = "\n".join(lines).strip("\n")
        # A single line break becomes a blank; an empty line stays one.
        return re.sub(r"(?<!\n)\n(?!\n)", " ", text) if is_folded else text

    def _nested(self) -> Value:
        """Return the list or the keys in the lines below a key; an empty text if there are none."""
        items: list[str] = []
        keys: dict[str, str] = {}
        while self._index < len(self._lines):
            line = self._lines[self._index]
            if _is_blank(line):
                self._index += 1
                continue
            text = line.strip(" ")
            if match := _ITEM.fullmatch(text):
                items.append(self._item(match[1] or ""))
            elif not line.startswith(" "):
                break
            elif match := _KEY.fullmatch(text):
                keys[match[1]] = self._item(match[2] or "")
            else:
                raise self._error("expected `- item` or `key: value`")
            if items and keys:
                raise self._error("a list cannot have keys")
            self._index += 1
        return tuple(items) or keys or ""

    def _item(self, text: str) -> str:
        text = text.strip()
        value = self._scalar(text) if text else ""
        if isinstance(value, tuple):
            raise self._error("a list cannot have further lists")
        return text if isinstance(value, bool) else value

    def _bracketed(self, text: str) -> tuple[str, ...]:
        if not text.endswith("]") or len(text) < 2:
            raise self._error("the list is not closed by ] on its line")
        inside = text[1:-1]
        items: list[str] = []
        start = 0
        while start < len(inside):
            match = _LISTED.match(inside, start)
            if match is None or match.end() == start:
                raise self._error("the list is not valid; put its values in quotes")
            item = match[1].strip()
            if not item:
                raise self._error("the list has an empty value")
            items.append(self._quoted(item, self._index) if item[0] in "\"'" else item)
            start = match.end()
        return tuple(items)

    def _quoted(self, text: str, index: int) -> str:
        quote, inside = text[0], text[1:-1]
        if len(text) < 2 or text[-1] != quote:
            raise FrontMatterError(index + 2, f"the text is not closed by {quote} on its line")
        if quote == "'":
            if inside.replace("''", "").count("'"):
                raise FrontMatterError(index + 2, "a ' inside of quotes is written ''")
            return inside.replace("''", "'")
        rest = _ESCAPE.sub("", inside)
        if '"' in rest or rest.endswith("\\"):
            raise FrontMatterError(index + 2, 'a " inside of quotes is written \\"')

        def unescaped(match: re.Match[str]) -> str:
            if match[1] not in _ESCAPES:
                raise FrontMatterError(index + 2, f"\\{match[1]} is not a valid escape")
            return _ESCAPES[match[1]]

        return _ESCAPE.sub(unescaped, inside)

    def _error(self, reason: str) -> FrontMatterError:
        return FrontMatterError(self._index + 2, reason)


def _is_blank(line: str) -> bool:
    text = line.strip()
    return not text or text.startswith("#")
