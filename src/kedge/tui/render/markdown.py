"""Markdown as lines of the screen, also while it is streaming.

A streaming text is split into its outermost blocks. All but the last one are final and rendered once, so that the cost
of a long answer is linear. Finished texts are rendered in the same way: no line moves when an answer ends.

Nothing is omitted: line breaks are kept, and HTML is shown as text.
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

#: A longer code block is highlighted when it is finished: highlighting it with each Delta would be too slow.
#: Characters.
HIGHLIGHTED_CHARS_MAX = 6_000
#: Code is highlighted in pieces of this size: some lexers of Pygments take quadratic time, a tenth of a second for
#: this much. Characters.
HIGHLIGHTED_PIECE_CHARS_MAX = 1_500
#: Highlighting time of one text. Further code is not highlighted. Seconds.
HIGHLIGHTED_S_MAX = 0.3
#: Rendering cost of one text: about 60 kB of a usual answer, half a second at worst. The rest is rendered as plain
#: text. Microseconds, see `_cost`.
MARKDOWN_COST_MAX = 500_000
#: The last block of a streaming text is rendered with each Delta. A more expensive one is rendered as plain text until
#: it is finished. Microseconds.
STREAMING_COST_MAX = 50_000
#: Measured rendering costs: of a line that is a block of its own (a table row, a list item), of an empty line, of a
#: character with a meaning in Markdown, of any other character. Microseconds.
_LINE_COST, _EMPTY_LINE_COST, _MARK_COST, _CHAR_COST = 350, 50, 40, 2
_MARKS = "*_`[]!<&\\~|"
#: Width of the bar beside code. Columns.
_BAR = 2

#: Without link references: blocks are parsed separately, and a block with only a definition would be omitted.
_parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")


#: Minimum width of a table column, with its spacing: Rich does not render narrower ones. Columns.
COLUMN_WIDTH_MIN = 4
_BREAKS = ("softbreak", "hardbreak")


class MarkdownRow(NamedTuple):
    strip: Strip
    #: Margin at the left, which is not part of the text. Columns.
    lead: int = 0


class GrowingMarkdown:
    """One text, rendered at one width."""

    def __init__(self, renderer: Renderer, width: int) -> None:
        self.renderer, self.width = renderer, width
        self._text = ""
        self._is_complete = False
        #: Length of the text rendered in `_done`, which is final.
        self._done_chars = 0
        self._done: list[MarkdownRow] = []
        self._last: list[MarkdownRow] = []
        #: The length at which an expensive last block is parsed again.
        self._reparse_chars = 0
        #: Remaining highlighting time. Seconds.
        self._highlight_left = HIGHLIGHTED_S_MAX

    def rows(self, text: str, *, is_complete: bool = True) -> list[MarkdownRow]:
        """Return the rows of the text. `is_complete`: it will not grow."""
        text = clean(text)
        if text != self._text or is_complete != self._is_complete:
            if not text.startswith(self._text):
                self._done_chars, self._done = 0, []
            self._text, self._is_complete = text, is_complete
            self._render_rest()
        return self._done + self._last

    def _render_rest(self) -> None:
        # An incomplete line may still change its meaning and join the previous block: `**` alone is a rule, with a word
        # after it a part of a paragraph. Only complete lines make a block final.
        end = _markdown_end(self._text)
        rest = self._text[self._done_chars : end]
        is_complete = self._is_complete or end < len(self._text)
        is_expensive = not is_complete and _cost(rest) > STREAMING_COST_MAX
        is_parsed = not is_expensive or len(self._text) >= self._reparse_chars
        self._reparse_chars = len(self._text) + len(rest) // 4 if is_parsed else self._reparse_chars
        for block in _blocks(rest[: rest.rfind("\n") + 1])[:-1] if is_parsed else ():
            self._done += self._spaced(block, is_highlighted=True, is_first=not self._done)
            self._done_chars += len(block)
        self._last = []
        rest = self._text[self._done_chars : end]
        blocks = _blocks(rest) if not is_expensive or _cost(rest) <= STREAMING_COST_MAX else []
        for block in blocks:
            is_highlighted = is_complete or len(block) <= HIGHLIGHTED_CHARS_MAX
            is_first = not self._done and not self._last
            self._last += self._spaced(block, is_highlighted=is_highlighted, is_first=is_first)
        self._last += self._plain(self._text[end if blocks or not rest else self._done_chars :])

    def _spaced(self, block: str, *, is_highlighted: bool, is_first: bool) -> list[MarkdownRow]:
        rows = self._render(block, is_highlighted=is_highlighted) if block.strip() else []
        return [MarkdownRow(self.renderer.blank(self.width)), *rows] if rows and not is_first else rows

    def _plain(self, text: str) -> list[MarkdownRow]:
        """Render as plain text."""
        text = text.strip("\n")
        return [MarkdownRow(strip) for strip in self.renderer.text(text, "k.text", self.width)] if text.strip() else []

    def _render(self, block: str, *, is_highlighted: bool) -> list[MarkdownRow]:
        tokens = _parser.parse(block)
        if len(tokens) == 1 and tokens[0].type in ("fence", "code_block"):
            return self._code(tokens[0], is_highlighted=is_highlighted)
        if _would_omit(tokens, block, self.width):
            return self._plain(block)
        _keep_lines(tokens, block)
        has_code = any(token.type in ("fence", "code_block") for token in tokens)
        is_highlighted = has_code and len(block) <= HIGHLIGHTED_PIECE_CHARS_MAX and self._highlight_left > 0
        page = copy(_empty_markdown(self.renderer.theme.code, is_highlighted))
        page.parsed = tokens
        strips = self._timed(page, self.width) if is_highlighted else self.renderer.lines(page, self.width)
        return [MarkdownRow(strip) for strip in _trimmed(strips)]

    def _timed(self, renderable: RenderableType, width: int) -> list[Strip]:
        started = thread_time()
        strips = self.renderer.lines(renderable, width)
        self._highlight_left -= thread_time() - started
        return strips

    def _code(self, token: Token, *, is_highlighted: bool) -> list[MarkdownRow]:
        code, width = token.content.rstrip("\n"), max(1, self.width - _BAR)
        strips: list[Strip] = []
        for piece in _code_pieces(code):
            if is_highlighted and len(piece) <= HIGHLIGHTED_PIECE_CHARS_MAX and self._highlight_left > 0:
                strips += self._timed(_HighlightedCode(piece, token.info, self.renderer.theme.code), width)
            else:
                strips += self.renderer.text(piece, "markdown.code_block", width)
        bar = self.renderer.line(_BAR, ("│", "k.muted"))
        return [MarkdownRow(Strip.join([bar, strip]), _BAR) for strip in strips]


class _HighlightedCode:
    """Code in the colours of a Pygments style, on the background of the theme."""

    def __init__(self, code: str, info: str, theme: str) -> None:
        language = info.split()[0] if info.split() else "text"
        self._syntax = Syntax(code, language, theme=theme, word_wrap=True, background_color="default")
        self._has_colours = theme != "bw"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._syntax, options):
            style = segment.style or Style()
            own_style = style.without_color
            if self._has_colours and style.color is not None:
                own_style += Style.from_color(style.color)
            yield Segment(segment.text, own_style)


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Code(CodeBlock):
    """A code block in a list or quotation: indented, without a bar."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _HighlightedCode(str(self.text).rstrip("\n"), self.lexer_name, self.theme)


class _PlainCode(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _HighlightedCode(str(self.text).rstrip("\n"), "text", self.theme)


class _Rule(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style=console.get_style("markdown.hr"), characters="─")


class _Table(TableElement):
    """A table whose cells fold long words instead of cutting them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "hr": _Rule,
        "table_open": _Table,
    }


class _PlainCodeMarkdown(_Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **_Markdown.elements,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }


@cache
def _empty_markdown(code_theme: str, is_highlighted: bool) -> _Markdown:
    """Return an empty document to copy: making its parser costs more than rendering a short text."""
    return (_Markdown if is_highlighted else _PlainCodeMarkdown)("", code_theme=code_theme, hyperlinks=False)


def _keep_lines(tokens: list[Token], block: str) -> None:
    """Keep line breaks and indents: models rely on them for lists and samples."""
    rows = block.split("\n")
    for token in tokens:
        if token.type != "inline" or not token.children or not token.map:
            continue
        breaks = sum(child.type in _BREAKS for child in token.children)
        is_outermost = token.level == 1 and breaks == token.map[1] - token.map[0] - 1
        number, children = token.map[0], []
        if is_outermost:
            children.append(_indent(rows[number]))
        for child in token.children:
            children.append(child)
            if child.type in _BREAKS:
                child.type, number = "hardbreak", number + 1
                if is_outermost:
                    children.append(_indent(rows[number]))
        token.children = children


def _indent(row: str) -> Token:
    return Token("text", "", 0, content=row[: len(row) - len(row.lstrip(" "))])


def _blocks(text: str) -> list[str]:
    """Split the text before each outermost block. Joined, the pieces are the text."""
    rows = text.split("\n")
    starts = sorted({token.map[0] for token in _parser.parse(text) if token.map and token.level == 0})
    if not starts:
        return [text] if text else []
    starts[0] = 0
    pieces = ["\n".join(rows[start:end]) for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)]
    return [piece + "\n" for piece in pieces[:-1]] + pieces[-1:]


def _code_pieces(code: str) -> Iterator[str]:
    """Split code at line ends into pieces that can be highlighted. A longer line is a piece of its own."""
    lines: list[str] = []
    chars = 0
    for line in code.split("\n"):
        if lines and chars + len(line) > HIGHLIGHTED_PIECE_CHARS_MAX:
            yield "\n".join(lines)
            lines, chars = [], 0
        lines.append(line)
        chars += len(line) + 1
    yield "\n".join(lines)


def _trimmed(lines: list[Strip]) -> list[Strip]:
    """Remove empty lines at both ends: the caller separates blocks."""
    first, end = 0, len(lines)
    while first < end and not lines[first].text.strip():
        first += 1
    while first < end and not lines[end - 1].text.strip():
        end -= 1
    return lines[first:end]


def _cost(text: str) -> int:
    """Return an upper bound of the rendering cost. Microseconds."""
    lines = text.split("\n")
    full = sum(bool(line.strip()) for line in lines)
    of_lines = full * _LINE_COST + (len(lines) - full) * _EMPTY_LINE_COST
    return of_lines + sum(map(text.count, _MARKS)) * _MARK_COST + len(text) * _CHAR_COST


def _markdown_end(text: str) -> int:
    """Return the start of the first line beyond the cost limit. It does not move while the text grows."""
    left, at = MARKDOWN_COST_MAX, 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        left -= _cost(text[at:end])
        if left < 0:
            return at
        at = end
    return at


def _would_omit(tokens: list[Token], block: str, width: int) -> bool:
    """Return whether Rich would omit text: nested too deeply, cells without a column, columns without room."""
    if any(token.level >= _parser.options.maxNesting - 2 for token in tokens):
        return True
    columns = sum(token.type == "th_open" for token in tokens)
    if not columns or columns * COLUMN_WIDTH_MIN > width:
        return bool(columns)
    rows = block.split("\n")
    lines = (rows[token.map[0]] for token in tokens if token.type == "tr_open" and token.map)
    return any(row.count("|") - row.count("\\|") > columns + 1 for row in lines)
