"""Reversals: an undo, redo or rewind by the user, as a part of the transcript.

A Reversal is stored when it begins and again when it ends. So a crash in between cannot leave files restored that
neither the user nor the model was informed of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec import Struct

#: Paths of each kind that a Reversal names: enough for a screen and for a model, which can read the others. Items.
PATHS_MAX = 100

ReversalAction = Literal["undo", "redo", "rewind"]
#: started: its end is not recorded, so that each file may have either content. stopped: it failed before its last file.
ReversalState = Literal["started", "done", "stopped"]


class Reversal(Struct, frozen=True):
    kind: ClassVar[str] = "reversal"
    action: ReversalAction
    state: ReversalState
    #: Files with the content from before (redo: after) the changes. If it has only started: those to be restored.
    restored: tuple[str, ...] = ()
    #: Files that others changed since, and that were not touched.
    spared: tuple[str, ...] = ()
    #: Files that are not named, of both kinds. Items.
    unnamed: int = 0
    #: The Run whose changes were undone or redone; empty: those of several Runs.
    run_id: str = ""
    #: The session with the conversation as it was before a rewind; empty: the conversation was not rewound.
    fork_session_id: str = ""

    def with_files(self, restored: Sequence[str], spared: Sequence[str] = ()) -> Reversal:
        named = tuple(restored[:PATHS_MAX]), tuple(spared[:PATHS_MAX])
        unnamed = len(restored) + len(spared) - len(named[0]) - len(named[1])
        return Reversal(self.action, self.state, *named, unnamed, self.run_id, self.fork_session_id)


def reversal_lines(reversal: Reversal) -> list[str]:
    """Return the lines that every client shows."""
    subject = f"{reversal.action} of run {reversal.run_id}" if reversal.run_id else reversal.action
    states: dict[ReversalState, str] = {
        "started": f"{subject}: started; its end is not recorded, and each of these files may have either content",
        "done": f"{subject}: done",
        "stopped": f"{subject}: stopped before its last file; repeat it to complete it",
    }
    lines = [states[reversal.state]]
    if reversal.fork_session_id:
        lines.append(f"the conversation as it was is in session {reversal.fork_session_id}")
    lines += (f"{'to restore' if reversal.state == 'started' else 'restored'} {path}" for path in reversal.restored)
    lines += (f"kept {path}, which was changed since" for path in reversal.spared)
    if reversal.unnamed:
        lines.append(f"and {reversal.unnamed} more files")
    return lines


_ACTIONS = {
    "undo": "I undid the file changes of an earlier run. Your changes to these files are gone",
    "redo": "I restored file changes that I had undone before. Your changes to these files are there again",
    "rewind": "I restored the files to their content before an earlier message. Later changes to them are gone",
}


def reversal_prompt(reversal: Reversal) -> str:
    """Return the text for a model: without it, the model would rely on file contents that no longer exist."""
    lines: list[str] = []
    if reversal.fork_session_id:
        lines.append("I continued this conversation from this point, and removed what followed it.")
    if reversal.restored and reversal.state == "started":
        lines.append(f"The {reversal.action} of file changes was interrupted. Each of these files may have its content "
                     "from before or after the changes:")  # fmt: skip
    elif reversal.restored:
        lines.append(f"{_ACTIONS[reversal.action]}:")
    lines += reversal.restored
    if reversal.spared:
        lines.append("These files keep their present content, with later changes:")
        lines += reversal.spared
    if reversal.unnamed:
        lines.append(f"(and {reversal.unnamed} more files)")
    if reversal.restored or reversal.spared:
        lines.append("View a file before you rely on its content.")
    return "\n".join(lines) or f"I requested the {reversal.action} of file changes; no file had to be changed."
