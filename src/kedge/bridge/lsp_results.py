"""The answers of language servers, as small messages."""

from __future__ import annotations

from typing import Any

from lsprotocol import types
from pygls.uris import to_fs_path

from kedge.bridge.bridge_peer import CallFailed
from kedge.bridge.lsp_messages import FileChanges, Place, QueryReply, TextChange

#: Places in a reply. A model reads no more, and the reply says that there are more. Items.
PLACES_MAX = 300
#: Limit of a hover text: a signature with its documentation. Characters.
HOVER_CHARS_MAX = 8000
NAME_CHARS_MAX = 200
#: Limits of a rename: items, and characters of the new texts.
RENAME_CHANGES_MAX = 5000
RENAME_CHARS_MAX = 1_000_000


def places_of(answer: Any) -> QueryReply:
    """The places of a definition or of references."""
    every = [] if answer is None else answer if isinstance(answer, (list, tuple)) else [answer]
    places = [_place(each) for each in every[:PLACES_MAX]]
    return QueryReply(tuple(dict.fromkeys(places)), is_cut=len(every) > PLACES_MAX)


def _place(answer: types.Location | types.LocationLink) -> Place:
    if isinstance(answer, types.LocationLink):
        return Place(to_fs_path(answer.target_uri) or "", answer.target_selection_range.start.line)
    return Place(to_fs_path(answer.uri) or "", answer.range.start.line)


def symbols_of(answer: Any, path: str) -> QueryReply:
    places: list[Place] = []
    left = [(each, 0) for each in reversed(answer or [])]
    while left and len(places) < PLACES_MAX:
        symbol, depth = left.pop()
        kind = types.SymbolKind(symbol.kind).name.lower()
        name = f"{kind} {str(symbol.name)[:NAME_CHARS_MAX]}"
        if isinstance(symbol, types.DocumentSymbol):
            places.append(Place(path, symbol.selection_range.start.line, name, depth))
            left += [(child, depth + 1) for child in reversed(symbol.children or [])]
            continue
        if symbol.container_name:
            name += f" (in {str(symbol.container_name)[:NAME_CHARS_MAX]})"
        area = getattr(symbol.location, "range", None)
        places.append(Place(to_fs_path(symbol.location.uri) or "", area.start.line if area else 0, name))
    return QueryReply(tuple(places), is_cut=bool(left))


def hover_text(answer: types.Hover | None) -> QueryReply:
    if answer is None:
        return QueryReply()
    contents: Any = answer.contents
    every = contents if isinstance(contents, (list, tuple)) else [contents]
    texts = [each if isinstance(each, str) else each.value for each in every]
    return QueryReply(text="\n".join(texts)[:HOVER_CHARS_MAX])


def changes_of(answer: types.WorkspaceEdit | None) -> QueryReply:
    """The changes of a rename. CallFailed if it also creates, renames or deletes files."""
    if answer is None:
        return QueryReply()
    edits: dict[str, list[Any]] = {}
    for change in answer.document_changes or ():
        if not isinstance(change, types.TextDocumentEdit):
            raise CallFailed("the language server would create, rename or delete files; use other tools for this")
        edits.setdefault(change.text_document.uri, []).extend(change.edits)
    if not answer.document_changes:
        edits = {uri: list(changes) for uri, changes in (answer.changes or {}).items()}
    every = [each for changes in edits.values() for each in changes]
    if len(every) > RENAME_CHANGES_MAX or sum(len(getattr(each, "new_text", "")) for each in every) > RENAME_CHARS_MAX:
        raise CallFailed(f"the rename has more than {RENAME_CHANGES_MAX} changes; it is too large")
    return QueryReply(
        files=tuple(
            FileChanges(to_fs_path(uri) or "", tuple(map(_text_change, changes))) for uri, changes in edits.items()
        )
    )


def _text_change(edit: Any) -> TextChange:
    if not hasattr(edit, "new_text"):
        raise CallFailed("the language server sent an edit that is not plain text")
    start, end = edit.range.start, edit.range.end
    return TextChange(start.line, start.character, end.line, end.character, edit.new_text)
