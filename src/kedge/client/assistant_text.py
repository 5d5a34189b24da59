"""The assistant's text as it is to be printed: each character once, whichever events arrive or are lost."""

from __future__ import annotations

from typing import Any

from kedge.client.event_stream import StreamEvent
from kedge.wire.models import RunComplete

#: Messages that ended, remembered so that none is printed again. A Run has some dozens; `attach` may see many. Items.
CLOSED_MESSAGES_MAX = 10_000


class _Streaming:
    """One assistant message under way: its parts as the server has them, and what was given out of them."""

    def __init__(self) -> None:
        #: (kind, pieces) of each part. Pieces are joined when needed, so that n Deltas cost n.
        self.parts: list[tuple[str, list[str]]] = []
        self.given: list[str] = []
        #: What was given out is the server's text: the next Delta simply goes behind it.
        self.in_step = True

    def text(self) -> str:
        return "".join(piece for kind, pieces in self.parts if kind == "text" for piece in pieces)

    def replace(self, parts: list[dict[str, Any]]) -> None:
        self.parts = [(part["type"], [part["data"].get("text") or ""]) for part in parts]
        self.in_step = False

    def append(self, part: int, kind: str, text: str) -> bool:
        """Whether the Delta went to the end of the message's text, and so can be given out as it is."""
        if part == len(self.parts):
            self.parts.append((kind, []))  # the first Delta of a part is what announces it
        if not 0 <= part < len(self.parts):
            return False  # a part that nothing has announced: its text comes with the next message event
        kind, pieces = self.parts[part]
        pieces.append(text)
        is_last = kind == "text" and not any(later == "text" for later, _ in self.parts[part + 1 :])
        if kind == "text" and not is_last:
            self.in_step = False
        return is_last and self.in_step

    def rest(self) -> tuple[str, bool]:
        """What is still to be given out, and whether it continues what was given out before."""
        text, given = self.text(), "".join(self.given)
        self.given = [given]
        if text.startswith(given):
            self.in_step, new, continues = True, text[len(given) :], True
        elif given.startswith(text):
            # A server that was killed may have stored a little less than it had shown: wait until it is past that.
            return "", True
        else:
            self.in_step, new, continues, self.given = True, text, False, []
        self.given.append(new)
        return new, continues


class AssistantText:
    """Turns the events of a stream into the text to print: once, complete, whichever events arrive or are lost."""

    def __init__(self) -> None:
        self._open: dict[str, _Streaming] = {}
        self._closed: dict[str, None] = {}
        self._printing = ""
        #: The last character given out; "\n" when the output stands at the beginning of a line.
        self.last = "\n"

    def feed(self, event: StreamEvent) -> str:
        match event.type:
            case "message" if event.change != "deleted" and event.payload.get("role") == "assistant":
                if event.payload.get("is_summary"):
                    return ""  # of what was said before: nobody asked for it in the middle of an answer
                return self._message(event.payload["id"], event.payload.get("parts") or [])
            case "delta":
                return self._delta(event.payload)
        return ""

    def finish(self, complete: RunComplete) -> str:
        """What is missing of the Run's last message, when its end came without the message events."""
        if complete.message_id in self._closed or not complete.text:
            return ""
        return self._message(complete.message_id, [{"type": "text", "data": {"text": complete.text}}])

    def _message(self, message_id: str, parts: list[dict[str, Any]]) -> str:
        if message_id in self._closed:
            return ""
        message = self._open.setdefault(message_id, _Streaming())
        message.replace(parts)
        text = self._give(message_id, message)
        if any(part["type"] == "finish" for part in parts):
            del self._open[message_id]
            self._closed[message_id] = None
            if len(self._closed) > CLOSED_MESSAGES_MAX:
                del self._closed[next(iter(self._closed))]
        return text

    def _delta(self, payload: dict[str, Any]) -> str:
        message = self._open.get(payload["message_id"])
        if message is None:
            return ""
        if message.append(payload["part"], payload.get("kind", "text"), payload["text"]):
            message.given.append(payload["text"])
            return self._after(payload["message_id"], payload["text"], continues=True)
        return "" if message.in_step else self._give(payload["message_id"], message)

    def _give(self, message_id: str, message: _Streaming) -> str:
        new, continues = message.rest()
        return self._after(message_id, new, continues=continues)

    def _after(self, message_id: str, new: str, *, continues: bool) -> str:
        """`new` on a line of its own when it does not continue what was given out last."""
        if not new:
            return ""
        if not (continues and message_id == self._printing) and self.last != "\n":
            new = "\n" + new
        self._printing = message_id
        self.last = new[-1]
        return new
