"""A message while it streams.

It is built from Deltas and read in four ways, each at its own pace: as a complete Message, as a snapshot for readers
that join, as the text that readers have not received, and as the text that the store does not have. Pieces are joined
on demand, so that a message of n Deltas costs n, not n squared.

A snapshot is a list of byte strings. Text is only ever added, so that full blocks of it are encoded once, and all
snapshots, of any version, share them: a snapshot costs its last block, and any number of readers that hold snapshots of
different versions hold one copy of the message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from kedge.core.transcript import Message, Part, Reasoning, Tail, Text
from kedge.core.untrusted_text import without_surrogates
from kedge.engine.ports import Encoder

#: Text that is encoded at once, and again with each snapshot until it is full. Characters.
BLOCK_CHARS = 32 * 1024

DraftKind = Literal["text", "reasoning"]


@dataclass(slots=True)
class _DraftPart:
    kind: DraftKind
    #: The signature of reasoning, which the provider requires back. It closes the part.
    signature: str = ""
    all: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)
    chars: int = 0
    #: The beginning of the text, encoded, and its length. Characters.
    blocks: list[bytes] = field(default_factory=list)
    encoded_chars: int = 0

    def as_part(self, text: str, now: int) -> Text | Reasoning:
        return Text(text) if self.kind == "text" else Reasoning(text, self.signature, finished_at=now)

    def unencoded(self) -> str:
        count = self.chars - self.encoded_chars
        pieces: list[str] = []
        for piece in reversed(self.all):
            if count <= 0:
                break
            pieces.append(piece[-count:])
            count -= len(piece)
        return "".join(reversed(pieces))

    def encode_blocks(self, encoder: Encoder, is_growing: bool) -> bytes:
        """Encode the blocks that are full, or all if the part does not grow any more; return the encoded rest."""
        text = self.unencoded()
        done = len(text) - len(text) % BLOCK_CHARS if is_growing else len(text)
        self.blocks += [encoder.json_text(text[start : start + BLOCK_CHARS]) for start in range(0, done, BLOCK_CHARS)]
        self.encoded_chars += done
        return encoder.json_text(text[done:])


class Draft:
    def __init__(self, message: Message) -> None:
        self._message = message
        self._parts: list[_DraftPart] = []
        self._snapshot: tuple[bytes, ...] = ()
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

    def add(self, kind: DraftKind, text: str, signature: str = "", part_index: int | None = None) -> None:
        """Add text to the last part, or to a new one. `part_index`: the part to which another node has added it."""
        if self.closed:
            return
        text = without_surrogates(text)
        last = self._parts[-1] if self._parts else None
        is_new = last is None or last.kind != kind or bool(last.signature)
        if is_new if part_index is None else part_index >= len(self._parts):
            self._parts.append(_DraftPart(kind))
        part = self._parts[-1]
        part.signature = signature
        for pieces in (part.all, part.unsent, part.unsaved):
            pieces.append(text)
        part.chars += len(text)
        self.chars += len(text) + len(signature)
        self._snapshot = ()

    def message(self, now: int, *more: Part) -> Message:
        """Return the message so far, with further parts after its text."""
        parts: list[Part] = []
        for part in self._parts:
            text = "".join(part.all)
            part.all = [text]
            parts.append(part.as_part(text, now))
        return replace(self._message, parts=(*parts, *more), updated_at=now)

    def snapshot(self, encoder: Encoder, now: int) -> tuple[bytes, ...]:
        """Return the frame of the message so far, in pieces."""
        if not self._snapshot:
            before, after = encoder.snapshot(replace(self._message, parts=(), updated_at=now))
            pieces: list[bytes] = []
            joint = [before]  # everything between two blocks, as one piece
            for part in self._parts:
                is_last = part is self._parts[-1]
                part_before, part_after = encoder.snapshot_part(part.as_part("", now))
                rest = part.encode_blocks(encoder, is_last)
                joint.append(part_before)
                if part.blocks:
                    pieces += [b"".join(joint), *part.blocks]
                    joint.clear()
                joint += [rest, part_after, b"" if is_last else b","]
            self._snapshot = (*pieces, b"".join([*joint, after]))
        return self._snapshot

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
