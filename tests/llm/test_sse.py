from __future__ import annotations

import pytest

from kedge.llm.sse import EVENT_BYTES_MAX, EventParser, EventTooLarge


def events(*pieces: bytes) -> list[bytes]:
    parser = EventParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    last = parser.end()
    return found if last is None else [*found, last]


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
def test_events_are_the_same_in_every_way_of_writing_and_cutting_them(stream: bytes) -> None:
    assert events(stream) == [b"one", b"two"]
    assert events(*(bytes([byte]) for byte in stream)) == [b"one", b"two"]
    for cut in range(len(stream)):
        assert events(stream[:cut], stream[cut:]) == [b"one", b"two"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_lines_of_data_are_joined_however_they_end_and_are_cut(line_end: bytes) -> None:
    stream = line_end.join([b'data: {"a":', b"data:  1}", b"data:", b"", b""])
    for cut in range(len(stream)):
        assert events(stream[:cut], stream[cut:]) == [b'{"a":\n 1}\n']


def test_characters_that_other_readers_take_for_line_ends_stay_in_the_data() -> None:
    text = "a\u2028b\u0085c\x0bd".encode()
    assert events(b"data: " + text + b"\n\n") == [text]


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    parser = EventParser()
    for _ in range(EVENT_BYTES_MAX // 1024):
        parser.feed(b"x" * 1024)
    with pytest.raises(EventTooLarge):
        parser.feed(b"x")


def test_an_event_without_end_is_refused_even_if_its_lines_are_empty() -> None:
    parser = EventParser()
    for _ in range(EVENT_BYTES_MAX // 5120):
        parser.feed(b"data:\n" * 1024)
    with pytest.raises(EventTooLarge):
        parser.feed(b"data:\n" * 1024)


def test_any_number_of_whole_events_is_fine() -> None:
    parser = EventParser()
    event = b"data: " + b"x" * 100_000 + b"\n\n"
    assert sum(len(parser.feed(event)) for _ in range(EVENT_BYTES_MAX // 50_000)) == EVENT_BYTES_MAX // 50_000
