"""The assistant's text for printing: each character once, even if events are lost or repeated."""

from __future__ import annotations

from typing import Any

from kedge.client.event_stream import StreamEvent
from kedge.wire.models import RunComplete

#: Finished messages that are remembered, so that none is printed twice. `attach` may see many. Items.
CLOSED_MESSAGES_MAX = 10_000


class _Streaming:
    """One unfinished assistant message: its parts on the server, and the text printed so far."""

    def __init__(self) -> None:
        #: (kind, pieces) of each part. Pieces are joined on demand, so that n Deltas take O(n) time.
        self.parts: list[tuple[str, list[str]]] = []
        self.printed: list[str] = []
        #: The printed text equals the server's, so that the next Delta can be printed as it is.
        self.in_step = True

    def text(self) -> str:
        return "".join(piece for kind, pieces in self.parts if kind == "text" for piece in pieces)

    def replace(self, parts: list[dict[str, Any]]) -> None:
        self.parts = [(part["type"], [part["data"].get("text") or ""]) for part in parts]
        self.in_step = False

    def append(self, part: int, kind: str, text: str) -> bool:
        """Append a Delta. True if it extends the end of the text, and so can be printed as it is."""
        if part == len(self.parts):
            self.parts.append((kind, []))  # its first Delta announces a part
        if not 0 <= part < len(self.parts):
            return False  # not announced: its text comes with the next message event
        kind, pieces = self.parts[part]
        pieces.append(text)
        is_last = kind == "text" and not any(later == "text" for later, _ in self.parts[part + 1 :])
        if kind == "text" and not is_last:
            self.in_step = False
        return is_last and self.in_step

    def rest(self) -> tuple[str, bool]:
        """Return the text that is not printed yet, and whether it continues the printed text."""
        text, printed = self.text(), "".join(self.printed)
        self.printed = [printed]
        if text.startswith(printed):
            self.in_step, new, continues = True, text[len(printed) :], True
        elif printed.startswith(text):
            # A killed server may have stored less than it had sent. Wait until it has caught up.
            return "", True
        else:
            self.in_step, new, continues, self.printed = True, text, False, []
        self.printed.append(new)
        return new, continues


class AssistantText:
    """Converts the events of a stream to the text to print."""

    def __init__(self) -> None:
        self._open: dict[str, _Streaming] = {}
        self._closed: dict[str, None] = {}
        self._printing = ""
        #: The last character returned; "\n" when the output is at the start of a line.
        self.last = "\n"

    def feed(self, event: StreamEvent) -> str:
        match event.type:
            case "message" if event.change != "deleted" and event.payload.get("role") == "assistant":
                if event.payload.get("is_summary"):
                    return ""  # not part of the answer
                return self._message(event.payload["id"], event.payload.get("parts") or [])
            case "delta":
                return self._delta(event.payload)
        return ""

    def finish(self, complete: RunComplete) -> str:
        """Return the rest of the Run's last message, if `run_complete` arrived without its message events."""
        if complete.message_id in self._closed or not complete.text:
            return ""
        return self._message(complete.message_id, [{"type": "text", "data": {"text": complete.text}}])

    def _message(self, message_id: str, parts: list[dict[str, Any]]) -> str:
        if message_id in self._closed:
            return ""
        message = self._open.setdefault(message_id, _Streaming())
        message.replace(parts)
        text = self._print_rest(message_id, message)
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
            message.printed.append(payload["text"])
            return self._on_line(payload["message_id"], payload["text"], continues=True)
        return "" if message.in_step else self._print_rest(payload["message_id"], message)

    def _print_rest(self, message_id: str, message: _Streaming) -> str:
        new, continues = message.rest()
        return self._on_line(message_id, new, continues=continues)

    def _on_line(self, message_id: str, new: str, *, continues: bool) -> str:
        """Return `new`, on a new line unless it continues the text returned last."""
        if not new:
            return ""
        if not (continues and message_id == self._printing) and self.last != "\n":
            new = "\n" + new
        self._printing = message_id
        self.last = new[-1]
        return new
