"""Bodies of undo, redo and rewind."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

RewindScope = Literal["conversation", "files", "both"]


class UndoRun(Struct, kw_only=True):
    #: None: the last Run that changed files.
    run_id: str | None = None


class UndoReply(Struct, kw_only=True):
    #: The Run whose changes were undone or redone; empty: those of several Runs, after a rewind.
    run_id: str
    files: list[str]


class RewindSession(Struct, kw_only=True):
    #: A prompt of the user. The session returns to the state before it.
    message_id: str
    scope: RewindScope


class RewoundFile(Struct, kw_only=True):
    file_path: str
    mime_type: str


class RewindReply(Struct, kw_only=True):
    #: The prompt of the message, to be edited and sent again, and its attachments.
    prompt: str
    attachments: list[RewoundFile] = []
    #: Files that have their content from before the message.
    restored: list[str] = []
    #: Files with later changes that were kept: others changed them since, or only the conversation was rewound.
    spared: list[str] = []
    #: The session with the whole conversation as it was; empty: the conversation was not rewound.
    fork_session_id: str = ""


class RewindEvent(Struct, kw_only=True):
    """The message and all later ones were removed from the session. The fork has the whole conversation."""

    session_id: str
    message_id: str
    fork_session_id: str
