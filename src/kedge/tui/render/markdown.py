"""Markdown as lines of the screen, also while it is being written.

A text that grows is cut into its outermost blocks. All but the last one will not change any more, so each is drawn
once, and a long answer costs its length and not its square. Finished texts are drawn in the same way: nothing jumps
when an answer ends.

Nothing that was written is left out: lines stay lines, what looks like HTML is shown as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cache
from time import thread_time
from typing import ClassVar, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement, TableElement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from textual.strip import Strip

from kedge.tui.render.renderer import Renderer, clean

#: A code block that is longer than this gets its colours when it is finished: to colour it with each word that comes
#: would be felt. Characters.
COLOURED_CHARS_MAX = 6_000
#: Code is coloured in pieces: some of Pygments' expressions take quadratic time, a tenth of a second for so much.
#: Characters.
COLOURED_PIECE_CHARS_MAX = 1_500
#: For all code of one text. Code after that has no colours. Seconds.
COLOURED_S_MAX = 0.3
#: Of one text that is drawn as Markdown: half a second at the worst, and some 60 kB of a usual answer. What comes after
#: it is drawn as it was written. Microseconds, see `_cost`.
MARKDOWN_COST_MAX = 500_000
#: The last block of a text that grows is drawn with each word that comes. One that costs more is drawn as it was
#: written until it is finished. Microseconds.
GROWING_COST_MAX = 50_000
#: What drawing takes, as measured: of a line that is a block of its own (a row of a table, an item of a list), of an
#: empty one, of a character that may begin or end something, of any other. Microseconds.
_LINE_COST, _EMPTY_LINE_COST, _MARK_COST, _CHAR_COST = 350, 50, 40, 2
_MARKS = "*_`[]!<&\\~|"
#: Beside code stands a bar, in every theme. Columns.
_BAR = 2

#: Without references: blocks are read apart, and one that only defines a link would be left out.
_parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")


#: Of a table: a column with less room is not drawn. Columns of the screen, with the space between.
COLUMN_WIDTH_MIN = 4
_BREAKS = ("softbreak", "hardbreak")


class MarkdownRow(NamedTuple):
    strip: Strip
    #: How much at its left is ours, and no part of what was written. Columns.
    lead: int = 0


class GrowingMarkdown:
    """One text, drawn at one width with one pen."""

    def __init__(self, renderer: Renderer, width: int) -> None:
        self.renderer, self.width = renderer, width
        self._text = ""
        self._is_over = False
        #: How much of the text is in `_done`, which will not change any more.
        self._done_chars = 0
        self._done: list[MarkdownRow] = []
        self._last: list[MarkdownRow] = []
        #: A last block that costs much is read again when the text is as long as this.
        self._read_again_chars = 0
        #: Seconds.
        self._colour_left = COLOURED_S_MAX

    def rows(self, text: str, *, is_over: bool = True) -> list[MarkdownRow]:
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
        end = _markdown_end(self._text)
        rest = self._text[self._done_chars : end]
        is_over = self._is_over or end < len(self._text)
        is_costly = not is_over and _cost(rest) > GROWING_COST_MAX
        is_read = not is_costly or len(self._text) >= self._read_again_chars
        self._read_again_chars = len(self._text) + len(rest) // 4 if is_read else self._read_again_chars
        for block in _blocks(rest[: rest.rfind("\n") + 1])[:-1] if is_read else ():
            self._done += self._spaced(block, in_colour=True, is_first=not self._done)
            self._done_chars += len(block)
        self._last = []
        rest = self._text[self._done_chars : end]
        blocks = _blocks(rest) if not is_costly or _cost(rest) <= GROWING_COST_MAX else []
        for block in blocks:
            in_colour = is_over or len(block) <= COLOURED_CHARS_MAX
            is_first = not self._done and not self._last
            self._last += self._spaced(block, in_colour=in_colour, is_first=is_first)
        self._last += self._plain(self._text[end if blocks or not rest else self._done_chars :])

    def _spaced(self, block: str, *, in_colour: bool, is_first: bool) -> list[MarkdownRow]:
        rows = self._drawn(block, in_colour=in_colour) if block.strip() else []
        return [MarkdownRow(self.renderer.blank(self.width)), *rows] if rows and not is_first else rows

    def _plain(self, text: str) -> list[MarkdownRow]:
        """As it was written."""
        text = text.strip("\n")
        return [MarkdownRow(strip) for strip in self.renderer.text(text, "k.text", self.width)] if text.strip() else []

    def _drawn(self, block: str, *, in_colour: bool) -> list[MarkdownRow]:
        tokens = _parser.parse(block)
        if len(tokens) == 1 and tokens[0].type in ("fence", "code_block"):
            return self._code(tokens[0], in_colour=in_colour)
        if _leaves_out(tokens, block, self.width):
            return self._plain(block)
        _keep_lines(tokens, block)
        has_code = any(token.type in ("fence", "code_block") for token in tokens)
        is_coloured = has_code and len(block) <= COLOURED_PIECE_CHARS_MAX and self._colour_left > 0
        page = copy(_empty(self.renderer.theme.code, is_coloured))
        page.parsed = tokens
        drawn = self._timed(page, self.width) if is_coloured else self.renderer.lines(page, self.width)
        return [MarkdownRow(strip) for strip in _trimmed(drawn)]

    def _timed(self, drawn: RenderableType, width: int) -> list[Strip]:
        began = thread_time()
        strips = self.renderer.lines(drawn, width)
        self._colour_left -= thread_time() - began
        return strips

    def _code(self, token: Token, *, in_colour: bool) -> list[MarkdownRow]:
        code, width = token.content.rstrip("\n"), max(1, self.width - _BAR)
        strips: list[Strip] = []
        for piece in _code_pieces(code):
            if in_colour and len(piece) <= COLOURED_PIECE_CHARS_MAX and self._colour_left > 0:
                strips += self._timed(_Coloured(piece, token.info, self.renderer.theme.code), width)
            else:
                strips += self.renderer.text(piece, "markdown.code_block", width)
        bar = self.renderer.line(_BAR, ("│", "k.muted"))
        return [MarkdownRow(Strip.join([bar, strip]), _BAR) for strip in strips]


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


class _PlainCode(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _Coloured(str(self.text).rstrip("\n"), "text", self.theme)


class _Rule(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style=console.get_style("markdown.hr"), characters="─")


class _Table(TableElement):
    """Cells are folded where a word is too long for them, and not cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class _Ours(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "hr": _Rule,
        "table_open": _Table,
    }


class _Uncoloured(_Ours):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **_Ours.elements,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }


@cache
def _empty(code_theme: str, is_coloured: bool) -> _Ours:
    """To be filled: to make one is to make a parser, which costs more than to draw a short text."""
    return (_Ours if is_coloured else _Uncoloured)("", code_theme=code_theme, hyperlinks=False)


def _keep_lines(tokens: list[Token], block: str) -> None:
    """A line that somebody has written stays one, and is indented as it was: many lists and samples are written so."""
    rows = block.split("\n")
    for token in tokens:
        if token.type != "inline" or not token.children or not token.map:
            continue
        breaks = sum(child.type in _BREAKS for child in token.children)
        is_outermost = token.level == 1 and breaks == token.map[1] - token.map[0] - 1
        number, kept = token.map[0], []
        if is_outermost:
            kept.append(_indent(rows[number]))
        for child in token.children:
            kept.append(child)
            if child.type in _BREAKS:
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


def _code_pieces(code: str) -> Iterator[str]:
    """Whole lines, in pieces that can be coloured; a line that is too long is a piece of its own."""
    lines: list[str] = []
    chars = 0
    for line in code.split("\n"):
        if lines and chars + len(line) > COLOURED_PIECE_CHARS_MAX:
            yield "\n".join(lines)
            lines, chars = [], 0
        lines.append(line)
        chars += len(line) + 1
    yield "\n".join(lines)


def _trimmed(lines: list[Strip]) -> list[Strip]:
    """Without empty lines at either end: the space between blocks is ours."""
    first, end = 0, len(lines)
    while first < end and not lines[first].text.strip():
        first += 1
    while first < end and not lines[end - 1].text.strip():
        end -= 1
    return lines[first:end]


def _cost(text: str) -> int:
    """What it takes at most to draw some lines of Markdown. Microseconds."""
    lines = text.split("\n")
    full = sum(bool(line.strip()) for line in lines)
    of_lines = full * _LINE_COST + (len(lines) - full) * _EMPTY_LINE_COST
    return of_lines + sum(map(text.count, _MARKS)) * _MARK_COST + len(text) * _CHAR_COST


def _markdown_end(text: str) -> int:
    """Where the first line begins that would cost too much. A text that grows does not move it."""
    left, at = MARKDOWN_COST_MAX, 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        left -= _cost(text[at:end])
        if left < 0:
            return at
        at = end
    return at


def _leaves_out(tokens: list[Token], block: str, width: int) -> bool:
    """Whether something would be missing: what is nested too deep, cells without a column, columns without room."""
    if any(token.level >= _parser.options.maxNesting - 2 for token in tokens):
        return True
    columns = sum(token.type == "th_open" for token in tokens)
    if not columns or columns * COLUMN_WIDTH_MIN > width:
        return bool(columns)
    rows = block.split("\n")
    lines = (rows[token.map[0]] for token in tokens if token.type == "tr_open" and token.map)
    return any(row.count("|") - row.count("\\|") > columns + 1 for row in lines)
