"""code and rename: questions to language servers, and renames of symbols through the path of edits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from kedge.bridge.bridge_peer import CallFailed
from kedge.bridge.lsp_messages import FileChanges, Place, QueryOperation, QueryReply
from kedge.core.untrusted_text import one_line, visible
from kedge.extensions.language_table import FoundServer
from kedge.extensions.text_positions import apply_changes, lines_of_text, position_of
from kedge.tools import disk
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolFailed, ToolOutput, count_of
from kedge.tools.file_change import Rewritten, compute_change, read_digested
from kedge.tools.file_set_change import SetChange, prepare_set_change
from kedge.tools.file_threads import checkpoint
from kedge.tools.textfile import decode
from kedge.tools.workspace_paths import Target, missing, printable, read_intent, resolve

#: Places that a result shows. Items.
PLACES_SHOWN_MAX = 100
#: A source line in a result. Characters.
LINE_CHARS_MAX = 200
#: Servers that are asked for symbols of the workspace. Items.
ASKED_SERVERS_MAX = 3
#: Files of a rename: more than a user reviews in one diff. Items.
RENAMED_FILES_MAX = 200

_CODE_DESCRIPTION = """\
Asks a language server about code, which is more exact than a text search.
- `definition`: where the symbol is defined. `references`: every use of it. `hover`: its type and documentation.
- For these, give `path`, the `symbol` as it is spelled there, and the `line` where it occurs.
- `symbols` with `path`: the outline of a file. `symbols` with `symbol` alone: symbols of that name in the workspace.
- The first question starts the server and may take a while.
"""
_RENAME_DESCRIPTION = """\
Renames a symbol everywhere in the workspace, with a language server: its definition and all its uses.
- Give `path`, the `symbol` as it is spelled there, the `line` where it occurs, and `new_name`.
- Prefer this to edits of single files. The user may have to approve the diff of all files.
- Names in comments, strings and other languages are not renamed: check them with grep.
"""

SymbolField = Annotated[str, Meta(max_length=200, description="The name of the symbol, as it is spelled in the file.")]
LineField = Annotated[int, Meta(ge=0, description="The line where it occurs, from 1. 0: its first occurrence.")]


class CodeInput(msgspec.Struct, frozen=True):
    operation: Literal["definition", "references", "hover", "symbols"]
    path: Annotated[str, Meta(description="The file, relative to the workspace.")] = ""
    symbol: SymbolField = ""
    line: LineField = 0


class RenameInput(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="A file with the symbol, relative to the workspace.")]
    symbol: Annotated[SymbolField, Meta(min_length=1)]
    new_name: Annotated[str, Meta(min_length=1, max_length=200, description="The new name.")]
    line: LineField = 0


class CodeServers(Protocol):
    """The language servers that the tools ask."""

    def server_for(self, path: Path) -> FoundServer | None: ...

    def servers_in_use(self) -> tuple[FoundServer, ...]: ...

    async def query(
        self,
        server: FoundServer,
        operation: QueryOperation,
        *,
        path: Path | None = None,
        text: str = "",
        line: int = 0,
        character: int = 0,
        name: str = "",
    ) -> QueryReply: ...


class CodeTool(Tool):
    name = "code"
    description = _CODE_DESCRIPTION
    input: type[msgspec.Struct] = CodeInput
    read_only = True
    for_children = True

    def __init__(self, servers: CodeServers, guarded: tuple[Path, ...]) -> None:
        self._servers = servers
        self._guarded = guarded

    def title(self, args: CodeInput) -> str:
        of = " ".join(part for part in (args.symbol, f"in {args.path}" if args.path else "") if part)
        return f"code {args.operation} {printable(of)}"

    async def prepare(self, args: CodeInput, context: ToolContext) -> Prepared:
        if args.operation != "symbols" and not (args.path and args.symbol):
            raise ToolFailed(f"{args.operation} needs path and symbol")
        if not args.path and not args.symbol:
            raise ToolFailed("symbols needs path or symbol")
        target = await context.threads.look(resolve, args.path or ".", context.root, self._guarded)

        async def run() -> ToolOutput:
            reply = await (self._ask(args, target, context) if args.path else self._ask_all(args.symbol))
            if args.operation == "hover":
                text = visible(reply.text.strip(), mark_ends=False)
                return ToolOutput(text[:OUTPUT_CHARS_MAX] or f"Nothing is known about {printable(args.symbol)}.")
            lines, is_cut = await context.threads.run(_lines, reply, context, self._guarded)
            if not lines:
                return ToolOutput("Nothing found.", summary="0 places")
            rest = "\n(There are more; ask for something narrower.)" if is_cut else ""
            summary = count_of(len(lines), "symbol" if args.operation == "symbols" else "place")
            return ToolOutput("\n".join(lines) + rest, summary=summary)

        params = {"operation": args.operation, "symbol": args.symbol, "line": args.line}
        description = f"Find {args.operation} of {printable(args.symbol) or target.shown}"
        return Prepared(read_intent(("code", "view"), target, description, params), run)

    async def _ask(self, args: CodeInput, target: Target, context: ToolContext) -> QueryReply:
        if args.operation == "symbols":
            server, text = await _server_and_text(self._servers, target, context)
            return await _asked(self._servers.query(server, "symbols", path=target.path, text=text))
        return await _ask_at(self._servers, args.operation, target, args.symbol, args.line, "", context)

    async def _ask_all(self, symbol: str) -> QueryReply:
        """Ask the servers of the workspace's languages for symbols; those that cannot answer are left out."""
        servers = self._servers.servers_in_use()[:ASKED_SERVERS_MAX]
        asked = [_asked(self._servers.query(server, "symbols", name=symbol)) for server in servers]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        answered = [reply for reply in replies if isinstance(reply, QueryReply)]
        for failed in (reply for reply in replies if isinstance(reply, BaseException)):
            if not answered or not isinstance(failed, ToolFailed):
                raise failed
        places = tuple(spot for reply in answered for spot in reply.places)
        return QueryReply(places, is_cut=any(reply.is_cut for reply in answered))


class RenameTool(Tool):
    name = "rename"
    description = _RENAME_DESCRIPTION
    input: type[msgspec.Struct] = RenameInput

    def __init__(self, servers: CodeServers, guarded: tuple[Path, ...]) -> None:
        self._servers = servers
        self._guarded = guarded

    def title(self, args: RenameInput) -> str:
        return f"rename {printable(args.symbol)} to {printable(args.new_name)}"

    async def prepare(self, args: RenameInput, context: ToolContext) -> Prepared:
        if any(character.isspace() or not character.isprintable() for character in args.new_name):
            raise ToolFailed("the new name contains blanks or invisible characters")
        target = await context.threads.look(resolve, args.path, context.root, self._guarded)
        if context.is_hidden(target.subject):
            raise ToolFailed(f"a rule denies access to {target.shown}")
        reply = await _ask_at(self._servers, "rename", target, args.symbol, args.line, args.new_name, context)
        if len(reply.files) > RENAMED_FILES_MAX:
            raise ToolFailed(f"the rename changes {len(reply.files)} files, more than {RENAMED_FILES_MAX}")
        changes = await context.threads.run(_changes, reply.files, context, self._guarded)
        if not changes:
            raise ToolFailed(f"the language server found nothing to rename at {printable(args.symbol)}")
        title = f"Rename {printable(args.symbol)} to {printable(args.new_name)}"
        return prepare_set_change(("rename", "edit"), title, changes, context)


async def _ask_at(
    servers: CodeServers,
    operation: QueryOperation,
    target: Target,
    symbol: str,
    line: int,
    name: str,
    context: ToolContext,
) -> QueryReply:
    server, text = await _server_and_text(servers, target, context)
    row, character = position_of(text, symbol, line, target.shown)
    return await _asked(
        servers.query(server, operation, path=target.path, text=text, line=row, character=character, name=name)
    )


async def _server_and_text(servers: CodeServers, target: Target, context: ToolContext) -> tuple[FoundServer, str]:
    if not target.is_inside:
        raise ToolFailed(f"{target.shown} is outside of the workspace; language servers know only its files")
    server = servers.server_for(target.path)
    if server is None:
        raise ToolFailed(f"no language server was found for {target.shown}; use grep")
    return server, await context.threads.run(_text, target)


async def _asked(query: Awaitable[QueryReply]) -> QueryReply:
    try:
        return await query
    except CallFailed as error:
        raise ToolFailed(one_line(str(error), 300)) from None


def _text(target: Target) -> str:
    content = disk.read(target.path)
    if content is None:
        raise missing(target)
    file = decode(content.data)
    if file is None:
        raise ToolFailed(f"{target.shown} is not a text file")
    return file.text


def _lines(reply: QueryReply, context: ToolContext, guarded: tuple[Path, ...]) -> tuple[list[str], bool]:
    """Return the places with their source lines. Files that rules hide are left out."""
    lines: list[str] = []
    source = _Source()
    for spot in reply.places:
        checkpoint()
        if len(lines) >= PLACES_SHOWN_MAX:
            return lines, True
        try:
            target = resolve(spot.path, context.root, guarded)
        except ToolFailed:
            continue
        if target.is_secret or target.is_credential or context.is_hidden(target.subject):
            continue
        lines.append(_place_line(spot, target, source))
    return lines, reply.is_cut


class _Source:
    """The lines of one file: places are grouped by file."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lines: list[str] = []

    def line(self, target: Target, index: int) -> str:
        if target.path != self._path:
            try:
                self._path, self._lines = target.path, lines_of_text(_text(target))
            except ToolFailed:
                self._lines = []
        return self._lines[index] if index < len(self._lines) else ""


def _place_line(spot: Place, target: Target, source: _Source) -> str:
    where = f"{target.shown}:{spot.line + 1}"
    if spot.name:
        return f"{where}: {'  ' * min(spot.depth, 20)}{one_line(spot.name, LINE_CHARS_MAX)}"
    if not target.is_inside:
        return where  # its content needs an approval of view
    return f"{where}: {one_line(source.line(target, spot.line), LINE_CHARS_MAX)}"


def _changes(files: tuple[FileChanges, ...], context: ToolContext, guarded: tuple[Path, ...]) -> tuple[SetChange, ...]:
    """Return the changes of a rename, sorted by path. ToolFailed if one is not allowed here."""
    changes: dict[Path, SetChange] = {}
    for file in files:
        checkpoint()
        target = resolve(file.path, context.root, guarded)
        if not target.is_inside or context.is_hidden(target.subject):
            raise ToolFailed(f"the rename would change {target.shown}, which is not allowed; rename it by hand")
        if target.path in changes:
            raise ToolFailed(f"the language server sent changes of {target.shown} twice")
        before, _, _ = read_digested(target.path)
        if before is None:
            raise ToolFailed(f"the rename would change {target.shown}, which does not exist")

        def rewrite(data: bytes | None, shown: str, file: FileChanges = file) -> Rewritten:
            text = decode(data or b"")
            if text is None:
                raise ToolFailed(f"{shown} is not a text file")
            new = apply_changes(text.text, file.changes, shown)
            return Rewritten(text.encode(new), new, "")

        if rewrite(before, target.shown).data != before:
            changes[target.path] = SetChange(target, compute_change(target, before, rewrite))
    return tuple(changes[path] for path in sorted(changes))
