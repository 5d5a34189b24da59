"""A message while it streams: built from Deltas, and read in three ways, each at its own pace: whole, as a Message; the
text readers have not been sent; the text the store does not have. Pieces are kept as they came and joined when asked
for, so that a message of n Deltas costs n, not n squared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from kedge.core.transcript import Message, Part, Reasoning, Tail, Text
from kedge.core.untrusted_text import without_surrogates

DraftKind = Literal["text", "reasoning"]


@dataclass(slots=True)
class _DraftPart:
    kind: DraftKind
    #: Of reasoning: what its provider wants back with it. It closes the part.
    signature: str = ""
    all: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)


class Draft:
    def __init__(self, message: Message) -> None:
        self._message = message
        self._parts: list[_DraftPart] = []
        self.chars = 0
        self.closed = False
        #: The store failed when it was given text of it, and may have it or not.
        self.is_uncertain = False

    def close(self) -> None:
        """The message is put whole from here on: no tail may come behind that, and nothing that is added counts. (A
        task that does not let itself be stopped may still try.)"""
        self.closed = True
        for part in self._parts:
            part.unsent.clear()

    def blank(self) -> Draft:
        """The same message without what it says."""
        return Draft(self._message)

    @property
    def is_empty(self) -> bool:
        return not self._parts

    @property
    def parts_count(self) -> int:
        return len(self._parts)

    @property
    def id(self) -> str:
        return self._message.id

    @property
    def session_id(self) -> str:
        return self._message.session_id

    @property
    def text(self) -> str:
        return "".join("".join(part.all) for part in self._parts if part.kind == "text")

    def add(self, kind: DraftKind, text: str, signature: str = "") -> None:
        if self.closed:
            return
        text = without_surrogates(text)
        if not self._parts or self._parts[-1].kind != kind or self._parts[-1].signature:
            self._parts.append(_DraftPart(kind))
        part = self._parts[-1]
        part.signature = signature
        for pieces in (part.all, part.unsent, part.unsaved):
            pieces.append(text)
        self.chars += len(text) + len(signature)

    def message(self, now: int, *more: Part) -> Message:
        """The message as it stands, with further parts behind its text."""
        parts: list[Part] = []
        for part in self._parts:
            text = "".join(part.all)
            part.all = [text]
            parts.append(Text(text) if part.kind == "text" else Reasoning(text, part.signature, finished_at=now))
        return replace(self._message, parts=(*parts, *more), updated_at=now)

    def take_unsent(self) -> list[tuple[int, DraftKind, str]]:
        """(part, kind, text) that readers do not have yet; they are taken to have it from now on."""
        fresh = [(index, part.kind, "".join(part.unsent)) for index, part in enumerate(self._parts) if part.unsent]
        for part in self._parts:
            part.unsent.clear()
        return fresh

    def take_unsaved(self) -> tuple[Tail, ...]:
        """What the store does not have yet; it is taken to have it from now on."""
        fresh = tuple(
            Tail(self.id, self.session_id, index, part.kind, "".join(part.unsaved))
            for index, part in enumerate(self._parts)
            if part.unsaved
        )
        for part in self._parts:
            part.unsaved.clear()
        return fresh
