"""glob and grep: find files by name, and lines by content."""

from __future__ import annotations

import base64
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolFailed, ToolOutput, count_of
from kedge.tools.credentials import is_credential
from kedge.tools.file_threads import checkpoint
from kedge.tools.path_patterns import PATTERN_CHARS_MAX, path_filter
from kedge.tools.ripgrep import INPUT, SEARCH_S, TOO_MUCH_MEMORY, error_text, list_files, search
from kedge.tools.workspace_paths import Target, guards, is_below, printable, read_intent, resolve

#: Limit of the files that one glob returns: a longer list is not useful to a model. Items.
GLOB_FILES_MAX = 200
#: Limit of the matches that one grep returns, for the same reason. Items.
GREP_MATCHES_MAX = 200
#: Limit of a matching line; view shows the rest. Characters.
GREP_LINE_CHARS_MAX = 300
#: Limit of the lines shown around a match.
CONTEXT_LINES_MAX = 5
#: Skipped files that a result names. Items.
SKIPPED_SHOWN_MAX = 3
#: Limit of a result, with room for the last line. Characters.
SEARCH_CHARS_MAX = OUTPUT_CHARS_MAX - 500

_GLOB_DESCRIPTION = """\
Finds files by name, the most recently changed first.
- `*.py` matches at any depth. A pattern with a slash starts at `path`: `src/**/*.ts`, `docs/*.md`, `*/test_?.py`.
- `*` and `?` stay within one name, `**` spans directories, `{a,b}` is a choice, `[abc]` one character.
- Files that .gitignore excludes are not found; hidden files are.
- At most 200 files are listed. If there are more, give a narrower pattern or a `path`.
"""
_GREP_DESCRIPTION = """\
Searches the content of files with a regular expression and shows matching lines with their numbers, grouped by file.
- The syntax is Rust's (no lookaround, no backreferences). Set `literal` for plain text: then nothing needs escaping.
- `path` is a directory or one file; `include` filters by name: `*.py`, `src/**/*.ts`.
- `context` shows up to 5 lines around each match; `ignore_case` ignores upper and lower case.
- Binary files and files that .gitignore excludes are not searched; hidden files are.
- Files that may hold credentials (.env, *.pem) are skipped. To search one, name it in `path`; the user is asked.
- At most 200 matches are shown, and long lines are cut around the match.
"""

PathField = Annotated[str, Meta(min_length=1, description="Where to search. Default: the workspace.")]
PatternText = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class GlobInput(msgspec.Struct, frozen=True):
    pattern: Annotated[PatternText, Meta(description="E.g. *.py (at any depth) or src/**/*.{ts,tsx}.")]
    path: PathField = "."


class GrepInput(msgspec.Struct, frozen=True):
    pattern: Annotated[PatternText, Meta(description="A regular expression (Rust syntax), matched line by line.")]
    path: PathField = "."
    include: Annotated[str, Meta(description="Search only files that match this glob: *.py, src/**/*.ts.")] = ""
    literal: Annotated[bool, Meta(description="The pattern is plain text, not a regular expression.")] = False
    ignore_case: Annotated[bool, Meta(description="Ignore upper and lower case.")] = False
    context: Annotated[int, Meta(ge=0, le=CONTEXT_LINES_MAX, description="Lines to show around each match.")] = 0


class GlobTool(Tool):
    name = "glob"
    description = _GLOB_DESCRIPTION
    input: type[msgspec.Struct] = GlobInput
    read_only = True
    for_children = True

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    def title(self, args: GlobInput) -> str:
        return f"glob {printable(args.pattern)}{_in(args.path)}"

    async def prepare(self, args: GlobInput, context: ToolContext) -> Prepared:
        target = await context.threads.look(resolve, args.path, context.root, self._guarded)
        matches = await context.threads.run(path_filter, args.pattern)

        async def run() -> ToolOutput:
            async with context.threads.searches:
                files, is_all = await list_files(context, target)
                return await context.threads.run(_matching, target, files, is_all, matches)

        description = f"List {printable(args.pattern)} in {target.shown}"
        return Prepared(read_intent(("glob", "view"), target, description, {"pattern": args.pattern}), run)


def _in(path: str) -> str:
    return "" if path == "." else f" {printable(path)}"


def _matching(target: Target, files: list[str], is_all: bool, matches: Callable[[str], bool]) -> ToolOutput:
    """A pattern may take long for each of very many paths: after SEARCH_S the result is incomplete."""
    until = time.monotonic() + SEARCH_S
    result: list[str] = []
    for file in files:
        checkpoint()
        if time.monotonic() > until:
            return _listed(target, result, is_all=False)
        if matches(file):
            result.append(file)
    return _listed(target, result, is_all)


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
        rows = ["No files." if is_all else "No files among those that were scanned; there are too many. Give a path."]
    elif len(rows) < len(files) or not is_all:
        more = f"{len(files) - len(rows)} more are not shown" if is_all else "there are too many files to scan them all"
        rows.append(f"({more}; give a narrower pattern or a path.)")
    return ToolOutput("\n".join(rows), metadata, summary=count_of(len(files), "file"))


def _joined(target: Target, file: str) -> str:
    """Return a path that other tools accept: relative to the workspace, or absolute."""
    return printable(_below(target.subject, file))


def _below(base: str, file: str) -> str:
    return file if base == "." else f"{base.rstrip('/')}/{file}"


class GrepTool(Tool):
    name = "grep"
    description = _GREP_DESCRIPTION
    input: type[msgspec.Struct] = GrepInput
    read_only = True
    for_children = True

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    def title(self, args: GrepInput) -> str:
        return f"grep {printable(args.pattern)}{_in(args.path)}{_in(args.include or '.')}"

    async def prepare(self, args: GrepInput, context: ToolContext) -> Prepared:
        target = await context.threads.look(resolve, args.path, context.root, self._guarded)
        is_included = await context.threads.run(path_filter, args.include) if args.include else None

        @cache
        def matches(file: str) -> bool:
            if is_included is not None and not is_included(file):
                return False
            # The approval covers the directory. A file that may not be viewed is still hidden.
            names = {_below(base, file) for base in (target.subject, target.unresolved or target.subject)}
            path = target.path / file
            is_hidden = any(map(context.is_hidden, {*names, str(path)})) or is_below(path, self._guarded)
            if not target.is_inside and guards(path, self._guarded):
                return False  # outside the workspace it needs its own approval
            return not is_hidden

        def holds_credentials(file: str) -> bool:
            return not target.is_credential and is_credential(_below(target.subject, file))

        async def run() -> ToolOutput:
            async with context.threads.searches:
                output = await _grep(args, target, lambda file: matches(file) and not holds_credentials(file), context)
                return await _with_skipped(
                    output, target, lambda file: holds_credentials(file) and matches(file), context
                )

        description = f"Search {target.shown} for {printable(args.pattern)}"
        return Prepared(read_intent(("grep", "view"), target, description, msgspec.to_builtins(args)), run)


async def _with_skipped(
    output: ToolOutput, target: Target, is_skipped: Callable[[str], bool], context: ToolContext
) -> ToolOutput:
    """Add a line about the files that were skipped, whatever they contain."""
    if not await context.threads.run(target.path.is_dir):
        return output
    files, _ = await list_files(context, target, is_sorted=False)
    skipped = await context.threads.run(lambda: sorted(filter(is_skipped, files)))
    if not skipped:
        return output
    names = ", ".join(_joined(target, file) for file in skipped[:SKIPPED_SHOWN_MAX])
    more = ", ..." if len(skipped) > SKIPPED_SHOWN_MAX else ""
    note = f"(Skipped {count_of(len(skipped), 'file')} that may hold credentials: {names}{more}.)"
    return replace(output, content=f"{output.content}\n{note}")


class _Text(msgspec.Struct):
    """rg prints valid UTF-8 as text, anything else as base64."""

    text: str = ""
    bytes: str = ""

    def __str__(self) -> str:
        return self.text or base64.b64decode(self.bytes).decode("latin-1")


class _Data(msgspec.Struct):
    path: _Text = msgspec.field(default_factory=_Text)
    lines: _Text = msgspec.field(default_factory=_Text)
    line_number: int | None = None
    #: Not decoded: a line may have hundreds of thousands, and only the first is used.
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
        # As a file type, not as --glob, which would override .gitignore. See `path_patterns`.
        arguments += [f"--type-add=wanted:{args.include}", "--type=wanted"]
    collected = _Matches(target, matches)
    searched = await search(context, target, (*arguments, f"--regexp={args.pattern}"), collected.take)
    if searched.code == -signal.SIGABRT and not collected.count:
        raise ToolFailed(TOO_MUCH_MEMORY)
    if searched.code not in (0, 1, None) and not searched.data.startswith(b"{"):
        raise ToolFailed(f"the search failed: {error_text(searched.data)}")
    return collected.output(is_all=searched.code is not None and searched.code >= 0, is_directory=searched.is_directory)


@dataclass
class _Matches:
    """The matches read so far."""

    target: Target
    matches: Callable[[str], bool]
    files: dict[str, list[str]] = field(default_factory=dict)
    count: int = 0
    chars: int = 0
    _rest: bytearray = field(default_factory=bytearray)

    def take(self, piece: bytes) -> bool:
        """Add output of rg. Return whether the limit is reached."""
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
        summary = f"{count_of(self.count, 'match', 'matches')} in {count_of(len(self.files), 'file')}"
        if not self.count:
            content = "No matches." if is_all else "No matches before the search was cut short."
            return ToolOutput(content, metadata, summary=summary)
        rows: list[str] = []
        for file, lines in self.files.items():
            rows += [_joined(self.target, file) if is_directory else self.target.shown, *lines, ""]
        more = "" if is_all else f"(Cut after {self.count} matches; give a narrower pattern, path or include.)"
        content = "\n".join([*rows, more]).rstrip("\n")[:OUTPUT_CHARS_MAX]
        return ToolOutput(content, metadata, summary=summary)


def _first_start(submatches: bytes) -> int:
    """Return the offset of the first match. The matched text cannot confuse it: quotes in it are escaped."""
    start = _START.search(submatches)
    return int(start[1]) if start else 0


def _cut(line: str, start: int) -> str:
    """Return a line, or the part of a long line around the match. `start` counts bytes, which is close enough."""
    line = line.rstrip("\r\n")
    if len(line) <= GREP_LINE_CHARS_MAX:
        return line
    at = max(0, min(start - GREP_LINE_CHARS_MAX // 3, len(line) - GREP_LINE_CHARS_MAX))
    return f"{'…' * (at > 0)}{line[at : at + GREP_LINE_CHARS_MAX]}{'…' * (at + GREP_LINE_CHARS_MAX < len(line))}"
