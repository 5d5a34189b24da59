"""The findings of language servers as text for the model and as data for front ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from kedge.bridge.lsp_messages import LspFinding
from kedge.core.extensions import Diagnostic, EditReport
from kedge.core.untrusted_text import one_line
from kedge.tools.workspace_paths import printable, subject_of

#: Findings in one report: more hide the edit that caused them. Items.
SHOWN_MAX = 20
#: Limits of one finding. Characters.
MESSAGE_CHARS_MAX = 300
SOURCE_CHARS_MAX = 60

_SEVERITIES: dict[int, Literal["error", "warning", "information", "hint"]] = {
    1: "error",
    2: "warning",
    3: "information",
    4: "hint",
}


def edit_report(
    findings: Iterable[LspFinding], root: Path, is_hidden: Callable[[str], bool], *, is_compared: bool
) -> EditReport:
    """Return the report of new findings: errors first, each once, hints left out. Checks of several edits may have the
    same finding. `is_compared`: they are new for certain."""
    shown = list(dict.fromkeys(_diagnostic(finding, root) for finding in findings if finding.severity < 4))
    shown = [each for each in shown if not each.path.startswith("/") and not is_hidden(each.path)]
    order = list(_SEVERITIES.values())
    shown.sort(key=lambda each: order.index(each.severity))
    if not shown:
        return EditReport()
    older = "" if is_compared else " (some may be older than this edit)"
    lines = [f"Language server diagnostics{older}:", *map(_line, shown[:SHOWN_MAX])]
    if len(shown) > SHOWN_MAX:
        lines.append(f"… and {len(shown) - SHOWN_MAX} more")
    return EditReport("\n".join(lines), tuple(shown[:SHOWN_MAX]))


def _diagnostic(finding: LspFinding, root: Path) -> Diagnostic:
    return Diagnostic(
        path=subject_of(Path(finding.path), root),
        line=finding.line + 1,
        severity=_SEVERITIES.get(finding.severity, "error"),
        message=one_line(" ".join(finding.message.split()), MESSAGE_CHARS_MAX),
        source=one_line(finding.source, SOURCE_CHARS_MAX),
    )


def _line(each: Diagnostic) -> str:
    source = f" [{each.source}]" if each.source else ""
    return f"{printable(each.path)}:{each.line}: {each.severity}: {each.message}{source}"
