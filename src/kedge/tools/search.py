"""glob and grep: files by their names, and lines by what is in them."""

from __future__ import annotations

import base64
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, ToolContext, ToolFailed, ToolOutput
from kedge.tools.path_patterns import PATTERN_CHARS_MAX, path_filter
from kedge.tools.paths import Target, guards, is_below, look, printable, resolve
from kedge.tools.ripgrep import INPUT, SEARCH_S, TOO_MUCH_MEMORY, list_files, search, words
from kedge.tools.tool_threads import checkpoint

#: Files told by one glob: more are no answer but a listing.
GLOB_FILES_MAX = 200
#: Matches told by one grep, for the same reason.
GREP_MATCHES_MAX = 200
#: Of a line that matches, in characters: the rest is seen with view.
GREP_LINE_CHARS_MAX = 300
#: Lines around a match.
CONTEXT_LINES_MAX = 5
#: Of all, in characters, with room for the last line.
SEARCH_CHARS_MAX = OUTPUT_CHARS_MAX - 500

PathField = Annotated[str, Meta(min_length=1, description="Where to look; the workspace unless given.")]
PatternText = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class GlobInput(msgspec.Struct, frozen=True):
    pattern: Annotated[PatternText, Meta(description="Such as *.py (at any depth) or src/**/*.{ts,tsx}.")]
    path: PathField = "."


class GrepInput(msgspec.Struct, frozen=True):
    pattern: Annotated[PatternText, Meta(description="A regular expression (Rust syntax), matched line by line.")]
    path: PathField = "."
    include: Annotated[str, Meta(description="Only in files that match this glob: *.py, src/**/*.ts.")] = ""
    literal: Annotated[bool, Meta(description="The pattern is plain text, not a regular expression.")] = False
    ignore_case: Annotated[bool, Meta(description="Upper and lower case are the same.")] = False
    context: Annotated[int, Meta(ge=0, le=CONTEXT_LINES_MAX, description="Lines to show around each match.")] = 0


class GlobTool:
    name = "glob"
    input: type[msgspec.Struct] = GlobInput
    kind: Literal["look", "change"] = "look"

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    async def prepare(self, args: GlobInput, context: ToolContext) -> Prepared:
        target = await context.threads.run(resolve, args.path, context.root, self._guarded)
        matches = await context.threads.run(path_filter, args.pattern)

        async def run() -> ToolOutput:
            async with context.threads.searches:
                files, is_all = await list_files(context, target)
                return await context.threads.run(_matching, target, files, is_all, matches)

        shown = printable(args.pattern)
        intent = look(("glob", "view"), target, f"List {shown} in {target.shown}", {"pattern": args.pattern})
        return Prepared(intent, run, f"glob {shown}")


def _matching(target: Target, files: list[str], is_all: bool, matches: Callable[[str], bool]) -> ToolOutput:
    """A pattern may take long for each of very many paths: after a while, what was not looked at counts as unseen."""
    until = time.monotonic() + SEARCH_S
    found: list[str] = []
    for file in files:
        checkpoint()
        if time.monotonic() > until:
            return _listed(target, found, is_all=False)
        if matches(file):
            found.append(file)
    return _listed(target, found, is_all)


def _listed(target: Target, files: list[str], is_all: bool) -> ToolOutput:
    rows: list[str] = []
    chars = 0
    for file in files[:GLOB_FILES_MAX]:
        row = _joined(target, file)
        chars += len(row) + 1
        if chars > SEARCH_CHARS_MAX:
            break
        rows.append(row)
    metadata = {"path": target.subject, "count": len(files), "shown": len(rows)}
    if not rows:
        return ToolOutput("No files." if is_all else "No files among the first of very many; give a path.", metadata)
    if len(rows) < len(files) or not is_all:
        more = f"{len(files) - len(rows)} more were left out" if is_all else "there are very many files, not all seen"
        rows.append(f"({more}; give a narrower pattern or a path.)")
    return ToolOutput("\n".join(rows), metadata)


def _joined(target: Target, file: str) -> str:
    """As other tools take it: relative to the workspace, or absolute."""
    return printable(_below(target.subject, file))


def _below(base: str, file: str) -> str:
    return file if base == "." else f"{base.rstrip('/')}/{file}"


class GrepTool:
    name = "grep"
    input: type[msgspec.Struct] = GrepInput
    kind: Literal["look", "change"] = "look"

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    async def prepare(self, args: GrepInput, context: ToolContext) -> Prepared:
        target = await context.threads.run(resolve, args.path, context.root, self._guarded)
        is_wanted = await context.threads.run(path_filter, args.include) if args.include else None

        @cache
        def matches(file: str) -> bool:
            if is_wanted is not None and not is_wanted(file):
                return False
            # A search is allowed by where it begins; what may not be viewed is not shown by it either.
            names = {_below(base, file) for base in (target.subject, target.given or target.subject)}
            path = target.path / file
            is_hidden = any(map(context.is_hidden, {*names, str(path)})) or is_below(path, self._guarded)
            if not target.is_inside and guards(path, self._guarded):
                return False  # elsewhere it would need an approval of its own
            return not is_hidden

        async def run() -> ToolOutput:
            async with context.threads.searches:
                return await _grep(args, target, matches, context)

        shown = printable(args.pattern)
        asked = msgspec.to_builtins(args)
        intent = look(("grep", "view"), target, f"Search {target.shown} for {shown}", asked)
        return Prepared(intent, run, f"grep {shown}")


class _Text(msgspec.Struct):
    """rg gives what is valid UTF-8 as text, anything else as bytes."""

    text: str = ""
    bytes: str = ""

    def __str__(self) -> str:
        return self.text or base64.b64decode(self.bytes).decode("latin-1")


class _Data(msgspec.Struct):
    path: _Text = msgspec.field(default_factory=_Text)
    lines: _Text = msgspec.field(default_factory=_Text)
    line_number: int | None = None
    #: Not decoded: a line may have hundreds of thousands, and only the first is looked at.
    submatches: msgspec.Raw = msgspec.Raw(b"[]")


class _Event(msgspec.Struct):
    type: str
    data: _Data


_event = msgspec.json.Decoder(_Event)
_START = re.compile(rb'"start":(\d{1,18})')


async def _grep(args: GrepInput, target: Target, matches: Callable[[str], bool], context: ToolContext) -> ToolOutput:
    arguments = ["--json", "--sort=path", f"--context={args.context}"]
    arguments += ["--fixed-strings"] * args.literal + ["--ignore-case"] * args.ignore_case
    if args.include and "/" not in args.include:
        # As a file type, not as --glob, which would bring back what .gitignore leaves out. See `globs`.
        arguments += [f"--type-add=wanted:{args.include}", "--type=wanted"]
    found = _Found(target, matches)
    searched = await search(context, target, (*arguments, f"--regexp={args.pattern}"), found.take)
    if searched.code == -signal.SIGABRT and not found.count:
        raise ToolFailed(TOO_MUCH_MEMORY)
    if searched.code not in (0, 1, None) and not searched.data.startswith(b"{"):
        raise ToolFailed(f"the search failed: {words(searched.data)}")
    return found.output(is_all=searched.code is not None and searched.code >= 0, is_directory=searched.is_directory)


@dataclass
class _Found:
    """Matches, as they are read."""

    target: Target
    matches: Callable[[str], bool]
    files: dict[str, list[str]] = field(default_factory=dict)
    count: int = 0
    chars: int = 0
    _rest: bytearray = field(default_factory=bytearray)

    def take(self, piece: bytes) -> bool:
        """True: that is enough."""
        self._rest += piece
        if b"\n" not in piece:
            return False
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            checkpoint()
            if line.startswith((b'{"type":"match"', b'{"type":"context"')):
                event = _event.decode(line)
                if event.type == "match" and self.is_full:
                    return True
                self._add(event.type, event.data)
        return False

    @property
    def is_full(self) -> bool:
        return self.count >= GREP_MATCHES_MAX or self.chars >= SEARCH_CHARS_MAX

    def _add(self, kind: str, data: _Data) -> None:
        path = str(data.path)
        file = self.target.path.name if path == INPUT else path.removeprefix("./")
        if not self.matches(file):
            return
        start = _first_start(bytes(data.submatches))
        row = f"{data.line_number or 0:>6}{':' if kind == 'match' else '-'} {_cut(str(data.lines), start)}"
        self.files.setdefault(file, []).append(row)
        self.count += kind == "match"
        self.chars += len(row) + 1 + (len(file) + 2) * (len(self.files[file]) == 1)

    def output(self, *, is_all: bool, is_directory: bool) -> ToolOutput:
        metadata = {"path": self.target.subject, "matches": self.count, "files": len(self.files)}
        if not self.count:
            return ToolOutput("No matches." if is_all else "No matches before the search was cut short.", metadata)
        rows: list[str] = []
        for file, lines in self.files.items():
            rows += [_joined(self.target, file) if is_directory else self.target.shown, *lines, ""]
        more = "" if is_all else f"(Cut after {self.count} matches; give a narrower pattern, path or include.)"
        return ToolOutput("\n".join([*rows, more]).rstrip("\n")[:OUTPUT_CHARS_MAX], metadata)


def _first_start(submatches: bytes) -> int:
    """Where the first match begins. Nothing of what was matched is looked at: quotes in it are escaped."""
    found = _START.search(submatches)
    return int(found[1]) if found else 0


def _cut(line: str, start: int) -> str:
    """A line on one row; of a long one the part with the match. `start` counts bytes, which is close enough."""
    line = line.rstrip("\r\n")
    if len(line) <= GREP_LINE_CHARS_MAX:
        return line
    at = max(0, min(start - GREP_LINE_CHARS_MAX // 3, len(line) - GREP_LINE_CHARS_MAX))
    return f"{'…' * (at > 0)}{line[at : at + GREP_LINE_CHARS_MAX]}{'…' * (at + GREP_LINE_CHARS_MAX < len(line))}"
