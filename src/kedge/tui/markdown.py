"""Markdown as lines of the screen, also while it is being written.

A text that grows is cut into its outermost blocks. All but the last one will not change any more, so each is drawn
once, and a long answer costs its length and not its square. Finished texts are drawn in the same way: nothing jumps
when an answer ends.

Nothing that was written is left out: lines stay lines, what looks like HTML is shown as it stands.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import ClassVar, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from textual.strip import Strip

from kedge.tui.pen import Pen, clean

#: A code block that is longer than this gets its colours when it is finished: to colour it with each word that comes
#: would be felt. Characters.
COLOURED_CHARS_MAX = 6_000
#: Beside code stands a bar, in every theme. Columns.
_BAR = 2

#: Without references: blocks are read apart, and one that only defines a link would be left out.
_parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")


class Row(NamedTuple):
    strip: Strip
    #: How much at its left is ours, and no part of what was written. Columns.
    lead: int = 0


class Growing:
    """One text, drawn at one width with one pen."""

    def __init__(self, pen: Pen, width: int) -> None:
        self.pen, self.width = pen, width
        self._text = ""
        self._is_over = False
        #: How much of the text is in `_done`, which will not change any more.
        self._done_chars = 0
        self._done: list[Row] = []
        self._last: list[Row] = []

    def rows(self, text: str, *, is_over: bool = True) -> list[Row]:
        """`is_over`: it will not grow any more."""
        text = clean(text)
        if text != self._text or is_over != self._is_over:
            if not text.startswith(self._text):
                self._done_chars, self._done = 0, []
            self._text, self._is_over = text, is_over
            self._draw_rest()
        return self._done + self._last

    def _draw_rest(self) -> None:
        # A line that is not complete may yet become something else, and join the block before it: `**` is a rule, and
        # with a word behind it a part of a paragraph. So only complete lines decide what will not change any more.
        rest = self._text[self._done_chars :]
        for block in _blocks(rest[: rest.rfind("\n") + 1])[:-1]:
            self._done += self._spaced(block, in_colour=True, is_first=not self._done)
            self._done_chars += len(block)
        self._last = []
        for block in _blocks(self._text[self._done_chars :]):
            in_colour = self._is_over or len(block) <= COLOURED_CHARS_MAX
            is_first = not self._done and not self._last
            self._last += self._spaced(block, in_colour=in_colour, is_first=is_first)

    def _spaced(self, block: str, *, in_colour: bool, is_first: bool) -> list[Row]:
        rows = self._drawn(block, in_colour=in_colour) if block.strip() else []
        return [Row(self.pen.blank(self.width)), *rows] if rows and not is_first else rows

    def _drawn(self, block: str, *, in_colour: bool) -> list[Row]:
        tokens = _parser.parse(block)
        if len(tokens) == 1 and tokens[0].type in ("fence", "code_block"):
            return self._code(tokens[0], in_colour=in_colour)
        _keep_lines(tokens, block)
        page = copy(_empty(self.pen.look.code))
        page.parsed = tokens
        return [Row(strip) for strip in _trimmed(self.pen.lines(page, self.width))]

    def _code(self, token: Token, *, in_colour: bool) -> list[Row]:
        code, width = token.content.rstrip("\n"), max(1, self.width - _BAR)
        if in_colour:
            strips = self.pen.lines(_Coloured(code, token.info, self.pen.look.code), width)
        else:
            strips = self.pen.text(code, "markdown.code_block", width)
        bar = self.pen.line(_BAR, ("│", "k.muted"))
        return [Row(Strip.join([bar, strip]), _BAR) for strip in strips]


class _Coloured:
    """Code in the colours of a theme of Pygments, on our own background; without any in the theme that has none."""

    def __init__(self, code: str, info: str, theme: str) -> None:
        language = info.split()[0] if info.split() else "text"
        self._syntax = Syntax(code, language, theme=theme, word_wrap=True, background_color="default")
        self._has_colours = theme != "bw"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._syntax, options):
            style = segment.style or Style()
            ours = style.without_color
            if self._has_colours and style.color is not None:
                ours += Style.from_color(style.color)
            yield Segment(segment.text, ours)


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Code(CodeBlock):
    """Inside of a list or a quotation, where the indent sets it off."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _Coloured(str(self.text).rstrip("\n"), self.lexer_name, self.theme)


class _Rule(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style=console.get_style("markdown.hr"), characters="─")


class _Ours(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "hr": _Rule,
    }


@cache
def _empty(code_theme: str) -> _Ours:
    """To be filled: to make one is to make a parser, which costs more than to draw a short text."""
    return _Ours("", code_theme=code_theme, hyperlinks=False)


def _keep_lines(tokens: list[Token], block: str) -> None:
    """A line that somebody has written stays one, and is indented as it was: many lists and samples are written so."""
    rows = block.split("\n")
    for token in tokens:
        if token.type != "inline" or not token.children or not token.map:
            continue
        breaks = [child for child in token.children if child.type in ("softbreak", "hardbreak")]
        is_outermost = token.level == 1 and len(breaks) == token.map[1] - token.map[0] - 1
        number, kept = token.map[0], []
        if is_outermost:
            kept.append(_indent(rows[number]))
        for child in token.children:
            kept.append(child)
            if child in breaks:
                child.type, number = "hardbreak", number + 1
                if is_outermost:
                    kept.append(_indent(rows[number]))
        token.children = kept


def _indent(row: str) -> Token:
    return Token("text", "", 0, content=row[: len(row) - len(row.lstrip(" "))])


def _blocks(text: str) -> list[str]:
    """The text in pieces, each of which begins with an outermost block; together they are the text."""
    rows = text.split("\n")
    starts = sorted({token.map[0] for token in _parser.parse(text) if token.map and token.level == 0})
    if not starts:
        return [text] if text else []
    starts[0] = 0
    pieces = ["\n".join(rows[start:end]) for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)]
    return [piece + "\n" for piece in pieces[:-1]] + pieces[-1:]


def _trimmed(lines: list[Strip]) -> list[Strip]:
    """Without empty lines at either end: the space between blocks is ours."""
    while lines and not lines[0].text.strip():
        lines = lines[1:]
    while lines and not lines[-1].text.strip():
        lines = lines[:-1]
    return lines
