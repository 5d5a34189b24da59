"""A message while it streams.

It is built from Deltas and read in three ways, each at its own pace: as a complete Message, as the text that readers
have not received, and as the text that the store does not have. Pieces are joined on demand, so that a message of n
Deltas costs n, not n squared.
"""

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
    #: The signature of reasoning, which the provider requires back. It closes the part.
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
        #: The store failed to take its text, and may have it or not.
        self.is_uncertain = False

    def close(self) -> None:
        """Take no more text: the complete message follows, and no tail may come after it.

        A task that cannot be cancelled may still try to add text."""
        self.closed = True
        for part in self._parts:
            part.unsent.clear()

    def blank(self) -> Draft:
        """Return a draft of the same message without its text."""
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
        """Return the message so far, with further parts after its text."""
        parts: list[Part] = []
        for part in self._parts:
            text = "".join(part.all)
            part.all = [text]
            parts.append(Text(text) if part.kind == "text" else Reasoning(text, part.signature, finished_at=now))
        return replace(self._message, parts=(*parts, *more), updated_at=now)

    def take_unsent(self) -> list[tuple[int, DraftKind, str]]:
        """Return (part, kind, text) that readers do not have yet, and mark it as sent."""
        fresh = [(index, part.kind, "".join(part.unsent)) for index, part in enumerate(self._parts) if part.unsent]
        for part in self._parts:
            part.unsent.clear()
        return fresh

    def take_unsaved(self) -> tuple[Tail, ...]:
        """Return the text that the store does not have yet, and mark it as saved."""
        fresh = tuple(
            Tail(self.id, self.session_id, index, part.kind, "".join(part.unsaved))
            for index, part in enumerate(self._parts)
            if part.unsaved
        )
        for part in self._parts:
            part.unsaved.clear()
        return fresh
