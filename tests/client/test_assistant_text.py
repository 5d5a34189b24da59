from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kedge.client import assistant_text
from kedge.client.assistant_text import AssistantText
from kedge.client.event_stream import StreamEvent
from kedge.client.safe_text import harmless, one_line
from kedge.wire.models import RunComplete, UsageBody


def message(
    text: str | list[tuple[str, str]], *, message_id: str = "m1", end: bool = False, role: str = "assistant"
) -> StreamEvent:
    given = [("text", text)] if isinstance(text, str) else text
    parts: list[dict[str, Any]] = [
        {"type": kind, "data": {"text": said} if kind == "text" else {"thinking": said}} for kind, said in given if said
    ]
    parts += [{"type": "finish", "data": {"reason": "end_turn"}}] if end else []
    return StreamEvent("message", "updated", {"id": message_id, "role": role, "parts": parts})


def delta(text: str, part: int = 0, *, message_id: str = "m1", **more: str) -> StreamEvent:
    return StreamEvent("delta", "updated", {"message_id": message_id, "part": part, "text": text, **more})


def end(text: str, message_id: str = "m1") -> RunComplete:
    usage = UsageBody(input_tokens=0, output_tokens=0, cost_usd=0)
    return RunComplete(
        session_id="s",
        run_id="r",
        message_id=message_id,
        text=text,
        outcome="completed",
        reason="",
        usage=usage,
        cleanup="clean",
    )


def printed(*events: StreamEvent) -> str:
    text = AssistantText()
    return "".join(text.feed(event) for event in events)


def test_deltas_are_printed_once() -> None:
    text = AssistantText()
    assert text.feed(message("")) == ""
    assert [text.feed(delta("Hel")), text.feed(delta("lo"))] == ["Hel", "lo"]
    assert text.feed(message("Hello", end=True)) == ""
    assert text.finish(end("Hello")) == ""


def test_message_without_deltas_is_printed_once() -> None:
    assert printed(message("Hello", end=True), message("Hello", end=True)) == "Hello"


def test_lost_deltas_are_printed_with_the_message() -> None:
    assert printed(
        message(""), delta("Hel"), message("Hello, world"), delta("!"), message("Hello, world!", end=True)
    ) == ("Hello, world!")


def test_end_without_a_message_prints_the_text() -> None:
    text = AssistantText()
    assert text.finish(end("Hello")) == "Hello"
    assert text.finish(end("")) == ""


def test_end_completes_truncated_text() -> None:
    text = AssistantText()
    text.feed(message("Hel"))
    assert text.finish(end("Hello")) == "lo"


def test_text_lost_by_a_restart_is_not_printed_twice() -> None:
    assert printed(
        message("abcdef"), message("abcd"), delta("e"), delta("f"), delta("g"), message("abcdefgh", end=True)
    ) == ("abcdefgh")


def test_replaced_text_is_printed_on_a_new_line() -> None:
    assert printed(message("one"), message("two", end=True)) == "one\ntwo"


def test_each_message_starts_on_a_new_line() -> None:
    assert (
        printed(
            message("a", end=True),
            message("b", message_id="m2"),
            delta("c", message_id="m2"),
            message("d\n", message_id="m3"),
        )
        == "a\nbc\nd\n"
    )


def test_reasoning_tools_and_prompts_are_not_the_answer() -> None:
    assert printed(message("prompt", role="user"), message("out", role="tool", message_id="m9")) == ""
    thought = message([("reasoning", "hm"), ("text", "A")])
    assert printed(thought, delta("mm", 0), delta("B", 1)) == "AB"
    assert printed(message(""), delta("hmm", 0, kind="reasoning"), delta("A", 1, kind="text"), delta("B", 1)) == "AB"


def test_delta_beyond_its_message_is_not_printed() -> None:
    assert printed(delta("x"), message("ab", end=True), delta("x")) == "ab"
    assert printed(message("a"), delta("x", 5), delta("x", -1)) == "a"


def test_delta_in_the_middle_reprints_the_message() -> None:
    parts = [("text", "a"), ("reasoning", "x"), ("text", "b")]
    assert printed(message(parts), delta("!", 0), delta("c", 2)) == "ab\na!bc"


def test_deleted_message_is_not_printed() -> None:
    assert printed(StreamEvent("message", "deleted", {"id": "m1", "session_id": "s"})) == ""


def test_memory_of_messages_is_bounded() -> None:
    text = AssistantText()
    for number in range(assistant_text.CLOSED_MESSAGES_MAX + 50):
        text.feed(message("x", message_id=f"m{number}", end=True))
    assert len(text._closed) == assistant_text.CLOSED_MESSAGES_MAX
    assert not text._open


@given(st.lists(st.text(max_size=5), max_size=20), st.data())
def test_text_is_printed_once_and_complete_despite_losses(pieces: list[str], data: st.DataObject) -> None:
    """Deltas and snapshots can be lost; the complete message comes last."""
    text, out, so_far = AssistantText(), [], ""
    out.append(text.feed(message("")))
    lost = False
    for piece in pieces:
        so_far += piece
        happens = data.draw(st.sampled_from(["delta", "lost", "snapshot"]))
        lost = happens == "lost" or (lost and happens != "snapshot")
        if happens == "snapshot":
            out.append(text.feed(message(so_far)))
        elif not lost:
            # The server sends a snapshot before it continues with Deltas, so none directly follows a lost one.
            out.append(text.feed(delta(piece)))
    out.append(text.feed(message(so_far, end=True)))
    assert "".join(out) == so_far
    assert text.last == (so_far or "\n")[-1]


def test_control_characters_are_removed() -> None:
    text = "a\x1b[2Jb\x07c\r\nd\te\x9bf\x7fg\x00h\u202e"
    assert harmless(text) == "a\u241b[2Jb\u2407c\nd\te\ufffdf\u2421g\u2400h\\u{202e}"
    assert one_line("  two\n\tlines\x1b ") == "two lines\u241b"
    assert len(one_line("x" * 1000, 50)) == 50
