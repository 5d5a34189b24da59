"""The messages between the server and the bridge of language servers.

Lines are counted from 0, as in the Language Server Protocol, and characters in UTF-16 code units.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

#: Methods of the bridge.
EDITED = "edited"
QUERY = "query"
#: A notice of the bridge: a ServerReport.
REPORT = "report"

#: A line number in a message: "redefinition of 'x' from line 3".
_LINE = re.compile(r"\bline \d+")

QueryOperation = Literal["definition", "references", "hover", "symbols", "rename"]


class ServerSpec(Struct, frozen=True):
    """A language server, as it is started."""

    name: str
    argv: tuple[str, ...]
    #: Its initialization options.
    options: dict[str, Any] = {}
    #: It runs in a confinement: its caches go to the temporary directory.
    is_confined: bool = True


class ServerReport(Struct, frozen=True):
    name: str
    condition: Literal["starting", "ready", "failed", "idle"]
    error: str = ""


class EditedFile(Struct, frozen=True):
    """A file that was written."""

    server: ServerSpec
    path: str
    language: str
    #: None: it did not exist.
    before: str | None
    after: str
    #: Files that others have changed since the server was informed of them: it reads them from disk again.
    stale: tuple[str, ...] = ()


class LspFinding(Struct, frozen=True):
    """A diagnostic of a language server."""

    path: str
    line: int
    #: 1 error, 2 warning, 3 information, 4 hint.
    severity: int
    message: str
    #: The name of the checker and its code, such as "pyflakes F401".
    source: str = ""


class EditedReply(Struct, frozen=True):
    """`findings`: those that are new since the edit."""

    findings: tuple[LspFinding, ...] = ()
    #: False: the findings before the edit are not known, so these may be older than it.
    is_compared: bool = True
    #: False: the server did not report anything within its time.
    is_answered: bool = True


class Query(Struct, frozen=True):
    """A question about a position of a file, or about the symbols of a file or the workspace."""

    server: ServerSpec
    operation: QueryOperation
    #: Empty: the symbols of the workspace that match `name`.
    path: str = ""
    language: str = ""
    text: str = ""
    line: int = 0
    character: int = 0
    #: The symbol to look for, or the new name.
    name: str = ""
    stale: tuple[str, ...] = ()


class Place(Struct, frozen=True):
    path: str
    line: int
    #: Of a symbol: its name, kind and container.
    name: str = ""
    #: Of a symbol of a file: how deep it is nested.
    depth: int = 0


class TextChange(Struct, frozen=True):
    """One replacement in a file."""

    start_line: int
    start_character: int
    end_line: int
    end_character: int
    text: str


class FileChanges(Struct, frozen=True):
    path: str
    changes: tuple[TextChange, ...]


class QueryReply(Struct, frozen=True):
    places: tuple[Place, ...] = ()
    #: There are more places.
    is_cut: bool = False
    #: Of a hover.
    text: str = ""
    #: Of a rename.
    files: tuple[FileChanges, ...] = ()


def new_findings(before: Iterable[LspFinding], after: Iterable[LspFinding]) -> list[LspFinding]:
    """Return the findings that were not there before. An edit moves lines, so lines are not compared."""
    known = Counter(map(_without_line, before))
    new = []
    for finding in after:
        key = _without_line(finding)
        if known[key]:
            known[key] -= 1
        else:
            new.append(finding)
    return new


def _without_line(finding: LspFinding) -> tuple[str, int, str, str]:
    return finding.path, finding.severity, _LINE.sub("", finding.message), finding.source
