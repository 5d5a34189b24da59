from __future__ import annotations

import pytest

from kedge.llm.sse import EVENT_BYTES_MAX, EventParser, EventTooLarge


def events(*pieces: bytes) -> list[bytes]:
    parser = EventParser()
    complete = [event for piece in pieces for event in parser.feed(piece)]
    last = parser.end()
    return complete if last is None else [*complete, last]


STREAMS = {
    "line feeds": b"data: one\n\ndata: two\n\n",
    "carriage returns and line feeds": b"data: one\r\n\r\ndata: two\r\n\r\n",
    "carriage returns": b"data: one\r\rdata: two\r\r",
    "comments and other fields": b": hello\n\nevent: x\nid: 7\nretry: 5\ndata: one\n\n:\ndata: two\n\n\n\n",
    "no blank after the colon": b"data:one\n\ndata:two\n\n",
    "no blank line at the end": b"data: one\n\ndata: two\n",
    "no line end at the end": b"data: one\n\ndata: two",
    "a byte order mark": b"\xef\xbb\xbfdata: one\n\ndata: two\n\n",
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_events_are_equal_for_all_line_ends_and_splits(stream: bytes) -> None:
    assert events(stream) == [b"one", b"two"]
    assert events(*(bytes([byte]) for byte in stream)) == [b"one", b"two"]
    for cut in range(len(stream)):
        assert events(stream[:cut], stream[cut:]) == [b"one", b"two"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_data_lines_are_joined_for_all_line_ends_and_splits(line_end: bytes) -> None:
    stream = line_end.join([b'data: {"a":', b"data:  1}", b"data:", b"", b""])
    for cut in range(len(stream)):
        assert events(stream[:cut], stream[cut:]) == [b'{"a":\n 1}\n']


def test_unicode_line_separators_stay_in_the_data() -> None:
    text = "a\u2028b\u0085c\x0bd".encode()
    assert events(b"data: " + text + b"\n\n") == [text]


def test_endless_line_is_refused() -> None:
    parser = EventParser()
    for _ in range(EVENT_BYTES_MAX // 1024):
        parser.feed(b"x" * 1024)
    with pytest.raises(EventTooLarge):
        parser.feed(b"x")


def test_endless_event_of_empty_lines_is_refused() -> None:
    parser = EventParser()
    for _ in range(EVENT_BYTES_MAX // 5120):
        parser.feed(b"data:\n" * 1024)
    with pytest.raises(EventTooLarge):
        parser.feed(b"data:\n" * 1024)


def test_number_of_events_is_unlimited() -> None:
    parser = EventParser()
    event = b"data: " + b"x" * 100_000 + b"\n\n"
    assert sum(len(parser.feed(event)) for _ in range(EVENT_BYTES_MAX // 50_000)) == EVENT_BYTES_MAX // 50_000
