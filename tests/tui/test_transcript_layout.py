"""The layout of long transcripts: only lines near the view are rendered, and visible lines stay in place."""

from __future__ import annotations

from kedge.client.view.conversation import Conversation, ViewChanges
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import THEMES
from kedge.tui.render.transcript_layout import RENDERED_MAX, LineAnchor, TranscriptLayout
from tests.tui import story as s

#: Height of the view; as many lines are also rendered above and below it. Lines.
SCREEN = 20


def long_layout(count: int = 10_000) -> TranscriptLayout:
    """Messages of one to nine lines, whose height is known only after rendering."""
    messages = []
    for number in range(count):
        words = f"message {number}\n" + "\n".join(f"- point {point}" for point in range(number % 7))
        messages.append(s.message(f"m{number}", "assistant", s.text(words), s.finish()))
    conversation = Conversation()
    conversation.load(s.bodies(*messages), 1)
    layout = TranscriptLayout(MessageRenderer(WorkspaceView(), Renderer(THEMES["plain"]), 80), conversation)
    layout.update_order()
    return layout


def scroll_to(layout: TranscriptLayout, top: int) -> int:
    """Render the lines near the view, as the screen does; return the number of rendered messages."""
    before = layout.message_renderer.drawn_messages
    while layout.make_exact(top - SCREEN, 3 * SCREEN):
        pass
    return layout.message_renderer.drawn_messages - before


def texts(layout: TranscriptLayout, top: int) -> list[str]:
    lines = [layout.line(y) for y in range(top, top + SCREEN)]
    return [line.strip.text.rstrip() if line else "" for line in lines]


def test_end_of_ten_thousand_messages_renders_a_few() -> None:
    layout = long_layout()
    assert layout.message_renderer.drawn_messages == 0
    assert 0 < scroll_to(layout, layout.height - SCREEN) < 60
    assert "message 9999" in "\n".join(texts(layout, layout.height - SCREEN))


def test_scrolling_renders_once_and_moves_no_visible_line() -> None:
    layout = long_layout(600)
    top = layout.height - SCREEN
    scroll_to(layout, top)
    drawn = layout.message_renderer.drawn_messages
    seen: list[str] = []
    for _ in range(40):
        before = texts(layout, top)
        anchor = layout.anchor_at(top - 3)
        assert anchor is not None
        scroll_to(layout, top - 3)
        moved = layout.y_of(anchor)
        assert moved is not None
        top = moved
        after = texts(layout, top)
        assert after[3:] == before[:-3], "three lines appeared above, and the others are the same"
        seen += after[:3]
    assert layout.message_renderer.drawn_messages - drawn < 80


def test_streaming_message_is_rendered_once_per_change() -> None:
    layout = long_layout(2_000)
    entry = layout.conversation.ordered()[-1]
    entry.body.parts.pop()
    scroll_to(layout, layout.height - SCREEN)
    for _ in range(10):
        before, known = layout.message_renderer.drawn_messages, len(layout._starts)
        entry.body.parts[0].data["text"] += "\n\nand more"
        entry.version += 1
        layout.redraw({entry.body.id})
        assert layout.message_renderer.drawn_messages == before + 1
        assert len(layout._starts) == known - 1, "the starts of the other messages are still known"
        assert layout.height > 0
    assert layout.message_renderer.message(entry, layout.conversation)[-2].strip.text.strip() == "and more"


def test_anchor_survives_changes_above_it() -> None:
    layout = long_layout(50)
    scroll_to(layout, 60)
    anchor = layout.anchor_at(60)
    assert anchor is not None
    line = layout.line(60)
    first = layout.conversation.ordered()[0]
    layout.make_exact(0, 10)
    first.body.parts[0].data["text"] += "\n\nmore\n\nand more"
    first.version += 1
    layout.redraw({first.body.id})
    now = layout.y_of(anchor)
    assert now is not None
    assert now > 60
    assert layout.line(now) == line
    changed = ViewChanges()
    layout.conversation.remove(anchor.message_id, 99, changed)
    layout.update_order()
    assert layout.y_of(anchor) is None


def test_added_and_removed_messages_update_the_layout() -> None:
    layout = long_layout(20)
    scroll_to(layout, 0)
    height = layout.height
    changed = ViewChanges()
    layout.conversation.put(s.bodies(s.message("new", "user", s.text("hello")))[0], 100, changed)
    assert changed.order
    layout.update_order()
    assert layout.height == height + 2
    layout.conversation.remove("m3", 101, changed)
    layout.update_order()
    drawn = "\n".join(line.strip.text for y in range(layout.height) if (line := layout.line(y)))
    assert "message 3 " not in drawn
    assert "hello" in drawn


def test_cache_of_rendered_messages_is_limited() -> None:
    layout = long_layout(RENDERED_MAX + 200)
    for top in range(0, layout.height, SCREEN):
        scroll_to(layout, top)
    assert len(layout._rendered) <= RENDERED_MAX


def test_anchor_in_a_shortened_message_is_its_last_line() -> None:
    layout = long_layout(5)
    scroll_to(layout, 0)
    start = layout.y_of(LineAnchor("m2", 0))
    end = layout.y_of(LineAnchor("m3", 0))
    assert start is not None
    assert end is not None
    assert layout.y_of(LineAnchor("m2", 500)) == end - 1
