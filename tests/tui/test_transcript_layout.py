"""Long transcripts: only what is looked at is drawn, and what is looked at stays where it is."""

from __future__ import annotations

from kedge.client.view.conversation import Conversation, ViewChanges
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import THEMES
from kedge.tui.render.transcript_layout import RENDERED_MAX, LineAnchor, TranscriptLayout
from tests.tui import story as s

#: What one look at a place may draw: three screens of 20 lines, each message with at least three.
SCREEN = 20


def long_sheet(count: int = 10_000) -> TranscriptLayout:
    """Messages of one to nine lines; how high the tables among them are cannot be told without drawing them."""
    told = []
    for number in range(count):
        words = f"message {number}\n" + "\n".join(f"- point {point}" for point in range(number % 7))
        told.append(s.message(f"m{number}", "assistant", s.text(words), s.finish()))
    conversation = Conversation()
    conversation.load(s.bodies(*told), 1)
    sheet = TranscriptLayout(MessageRenderer(WorkspaceView(), Renderer(THEMES["plain"]), 80), conversation)
    sheet.update_order()
    return sheet


def look(sheet: TranscriptLayout, top: int) -> int:
    """As the screen does; how many messages were drawn for it."""
    before = sheet.message_renderer.drawn_messages
    while sheet.make_exact(top - SCREEN, 3 * SCREEN):
        pass
    return sheet.message_renderer.drawn_messages - before


def texts(sheet: TranscriptLayout, top: int) -> list[str]:
    found = [sheet.line(y) for y in range(top, top + SCREEN)]
    return [line.strip.text.rstrip() if line else "" for line in found]


def test_end_of_ten_thousand_messages_renders_a_few() -> None:
    sheet = long_sheet()
    assert sheet.message_renderer.drawn_messages == 0
    assert 0 < look(sheet, sheet.height - SCREEN) < 60
    assert "message 9999" in "\n".join(texts(sheet, sheet.height - SCREEN))


def test_scrolling_renders_once_and_moves_no_visible_line() -> None:
    sheet = long_sheet(600)
    top = sheet.height - SCREEN
    look(sheet, top)
    drawn = sheet.message_renderer.drawn_messages
    seen: list[str] = []
    for _ in range(40):
        before = texts(sheet, top)
        place = sheet.anchor_at(top - 3)
        assert place is not None
        look(sheet, top - 3)
        moved = sheet.y_of(place)
        assert moved is not None
        top = moved
        after = texts(sheet, top)
        assert after[3:] == before[:-3], "three lines came in above, and the others are the same"
        seen += after[:3]
    assert sheet.message_renderer.drawn_messages - drawn < 80


def test_streaming_message_is_rendered_once_per_change() -> None:
    sheet = long_sheet(2_000)
    entry = sheet.conversation.ordered()[-1]
    entry.body.parts.pop()
    look(sheet, sheet.height - SCREEN)
    for _ in range(10):
        before, known = sheet.message_renderer.drawn_messages, len(sheet._starts)
        entry.body.parts[0].data["text"] += "\n\nand more"
        entry.version += 1
        sheet.redraw({entry.body.id})
        assert sheet.message_renderer.drawn_messages == before + 1
        assert len(sheet._starts) == known - 1, "where all the others start is still known"
        assert sheet.height > 0
    assert sheet.message_renderer.message(entry, sheet.conversation)[-2].strip.text.strip() == "and more"


def test_anchor_survives_changes_above_it() -> None:
    sheet = long_sheet(50)
    look(sheet, 60)
    place = sheet.anchor_at(60)
    assert place is not None
    line = sheet.line(60)
    first = sheet.conversation.ordered()[0]
    sheet.make_exact(0, 10)
    first.body.parts[0].data["text"] += "\n\nmore\n\nand more"
    first.version += 1
    sheet.redraw({first.body.id})
    now = sheet.y_of(place)
    assert now is not None
    assert now > 60
    assert sheet.line(now) == line
    changed = ViewChanges()
    sheet.conversation.remove(place.message_id, 99, changed)
    sheet.update_order()
    assert sheet.y_of(place) is None


def test_added_and_removed_messages_update_the_layout() -> None:
    sheet = long_sheet(20)
    look(sheet, 0)
    height = sheet.height
    changed = ViewChanges()
    sheet.conversation.put(s.bodies(s.message("new", "user", s.text("hello")))[0], 100, changed)
    assert changed.order
    sheet.update_order()
    assert sheet.height == height + 2
    sheet.conversation.remove("m3", 101, changed)
    sheet.update_order()
    drawn = "\n".join(line.strip.text for y in range(sheet.height) if (line := sheet.line(y)))
    assert "message 3 " not in drawn
    assert "hello" in drawn


def test_cache_of_rendered_messages_is_limited() -> None:
    sheet = long_sheet(RENDERED_MAX + 200)
    for top in range(0, sheet.height, SCREEN):
        look(sheet, top)
    assert len(sheet._rendered) <= RENDERED_MAX


def test_anchor_in_a_shortened_message_is_its_last_line() -> None:
    sheet = long_sheet(5)
    look(sheet, 0)
    start = sheet.y_of(LineAnchor("m2", 0))
    end = sheet.y_of(LineAnchor("m3", 0))
    assert start is not None
    assert end is not None
    assert sheet.y_of(LineAnchor("m2", 500)) == end - 1
