"""Messages rendered to lines: prompts, Markdown, reasoning, tool cards, outcomes. No line is harmful."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from kedge.client.view.conversation import Conversation
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.records import OFFLINE
from kedge.tui.render.diff_lines import diff_rows, draw_row
from kedge.tui.render.markdown import GrowingMarkdown
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import THEMES, ThemeName
from kedge.tui.render.tool_cards import DIFF_LINES, DONE_LINES
from kedge.tui.render.welcome import welcome
from tests.tui import story as s
from tests.tui.story import Json

RENDERER = Renderer(THEMES["plain"])
#: Control characters, which no line may contain.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NASTY = "a\x1b]0;owned\x07b\x1b[2Jc\x9b31md\x08e\rf"


def renderer_of(*messages: Json, width: int = 80) -> tuple[MessageRenderer, Conversation]:
    conversation = Conversation()
    conversation.load(s.bodies(*messages), 1)
    return MessageRenderer(WorkspaceView(), RENDERER, width), conversation


def drawn(*messages: Json, width: int = 80, unfolded: bool = False) -> list[str]:
    message_renderer, conversation = renderer_of(*messages, width=width)
    if unfolded:
        message_renderer.folds.toggle_all()
    rendered = [line for entry in conversation.ordered() for line in message_renderer.message(entry, conversation)]
    assert {line.strip.cell_length for line in rendered} <= {width}
    assert all(cell_len(line.strip.text) == width for line in rendered), "each line has its stated width"
    return [line.strip.text.rstrip() for line in rendered]


def answer(*parts: Json) -> Json:
    return s.message("m1", "assistant", *parts, s.finish())


def marked(text: str, width: int = 78) -> list[str]:
    return [row.strip.text.rstrip() for row in GrowingMarkdown(RENDERER, width).rows(text)]


# --- markdown -------------------------------------------------------------------------------------------------------


def test_link_definition_is_not_omitted() -> None:
    assert marked("[INFO]: started") == ["[INFO]: started"]
    assert "https://x.example" in "\n".join(marked("see [docs][1]\n\n- x\n\n[1]: https://x.example"))


def test_headings_are_left_aligned_and_code_has_a_bar() -> None:
    assert marked("# One\n\ntext\n\n## Two\n\n```python\nx = 1\n\ny = 2\n```\nend") == [
        "One",
        "",
        "text",
        "",
        "Two",
        "",
        "│ x = 1",
        "│",
        "│ y = 2",
        "",
        "end",
    ]


def test_line_breaks_and_indents_are_kept() -> None:
    text = (
        "in about these words:\n\n  read README.md\n  find TODO\n\nmodel = 1\n\n[providers.openai]\ntype = 2   # any\n"
    )
    assert marked(text) == [
        "in about these words:",
        "",
        "  read README.md",
        "  find TODO",
        "",
        "model = 1",
        "",
        "[providers.openai]",
        "type = 2   # any",
    ]


def test_html_is_shown_as_text() -> None:
    assert marked("use <div class=x> here\n\n<b>bold</b>\n") == ["use <div class=x> here", "", "<b>bold</b>"]


@pytest.mark.parametrize("theme", list(THEMES))
def test_code_has_a_bar_in_every_theme(theme: ThemeName) -> None:
    rows = GrowingMarkdown(Renderer(THEMES[theme]), 40).rows("before\n\n```\ncode\n```")
    assert [row.strip.text.rstrip() for row in rows] == ["before", "", "│ code"]
    assert [row.lead for row in rows] == [0, 0, 2]
    colours = {segment.style.color for row in rows for segment in row.strip if segment.style and segment.text.strip()}
    assert not any(segment.style.bgcolor for row in rows for segment in row.strip if segment.style)
    assert theme != "plain" or all(colour is None or colour.is_default for colour in colours)


PIECES = [
    "# head\n",
    "text ",
    "**bold",
    "** ",
    "\n",
    "\n\n",
    "- item\n",
    "  - inner\n",
    "1. one\n",
    "```py\n",
    "x = 1\n",
]
PIECES += [
    "```\n",
    "| a | b |\n|---|---|\n",
    "| 1 | 2 |\n",
    "> quoted\n",
    "---\n",
    "    code\n",
    "`c` ",
    "<b>",
    "[l](u)",
]


@given(st.lists(st.sampled_from(PIECES), max_size=14))
@settings(max_examples=60, deadline=None)
def test_streamed_text_renders_like_complete_text(pieces: list[str]) -> None:
    growing, text = GrowingMarkdown(RENDERER, 50), ""
    for piece in pieces:
        text += piece
        growing.rows(text, is_complete=False)
    at_once = GrowingMarkdown(RENDERER, 50).rows(text)
    assert [row.strip.text for row in growing.rows(text)] == [row.strip.text for row in at_once]


def test_line_that_changes_meaning_joins_the_previous_block() -> None:
    growing, text = GrowingMarkdown(RENDERER, 50), ""
    for piece in ("text\n** ** ", "more\n", "| a | b |\n|---|---|", "x\n"):
        text += piece
        growing.rows(text, is_complete=False)
    assert [row.strip.text.rstrip() for row in growing.rows(text)] == ["text", "** ** more", "| a | b |", "|---|---|x"]


def test_replaced_text_is_rendered_from_the_start() -> None:
    growing = GrowingMarkdown(RENDERER, 50)
    growing.rows("one\n\ntwo\n\nthree")
    assert [row.strip.text.rstrip() for row in growing.rows("other")] == ["other"]


# --- prompts and reasoning ------------------------------------------------------------------------------------------


def test_prompts_have_a_bar_and_list_attachments() -> None:
    file = {"type": "file", "data": {"path": "notes.txt", "mime_type": "text/plain", "size": 0, "digest": ""}}
    lines = drawn(s.message("m1", "user", s.text("do *this*\nand that"), file))
    assert lines == ["▌ do *this*", "▌ and that", "▌ attached: notes.txt", ""]


def test_user_shell_command_is_shown_with_output() -> None:
    shell = {"type": "shell_command", "data": {"command": "ls", "output": "a\nb\n", "exit_code": 2}}
    assert drawn(s.message("m1", "user", shell)) == ["! ls  exit 2", "    a", "    b", ""]


def test_thought_shows_its_end_then_folds() -> None:
    words = "\n".join(f"thought {n}" for n in range(9))
    live = drawn(s.message("m1", "assistant", s.thought(words)))
    assert live == ["▸ thinking", "    thought 6", "    thought 7", "    thought 8", ""]
    finished = s.message("m1", "assistant", s.thought(words, 3_200), s.text("so"), s.finish())
    assert drawn(finished) == ["▸ thought for 3 s", "", "  so", ""]
    assert drawn(finished, unfolded=True)[:2] == ["▾ thought for 3 s", "    thought 0"]


# --- cards ----------------------------------------------------------------------------------------------------------


def card(
    name: str, arguments: Json, content: str, *, width: int = 80, unfolded: bool = False, **more: Any
) -> list[str]:
    asked = s.message("m1", "assistant", s.call("c1", name, arguments), s.finish("tool_use"))
    result = s.message("t1", "tool", s.result("c1", content, **more))
    return drawn(asked, result, width=width, unfolded=unfolded)


def test_long_command_leaves_room_for_exit_code() -> None:
    lines = card("bash", {"command": "echo " + "x" * 200}, "out\n", exit_code=0, summary="exit 0, 2.3 s")
    assert lines[0].endswith("x…  exit 0, 2.3 s")
    assert lines[1:] == ["    out", ""]
    failed = card("bash", {"command": "false"}, "", exit_code=1, summary="exit 1, 0.0 s")
    assert failed[0] == "✗ $ false  exit 1, 0.0 s"


def test_command_of_several_lines_is_shown_in_full() -> None:
    lines = card("bash", {"command": "cd x\nmake\nmake test"}, "", exit_code=0, summary="exit 0")
    assert lines == ["● $ cd x …  exit 0", "    $ cd x", "    make", "    make test", ""]


def test_long_results_count_hidden_lines() -> None:
    out = "\n".join(f"line {n}" for n in range(1_204))
    folded = card("bash", {"command": "x"}, out, exit_code=0)
    assert folded[-2] == "    … 1,200 more lines"
    assert len(folded) == DONE_LINES + 3
    full = card("bash", {"command": "x"}, out, unfolded=True, exit_code=0)
    assert full[-2] == "    line 1203"


def test_single_hidden_line_is_shown_instead() -> None:
    out = "\n".join(f"line {n}" for n in range(DONE_LINES + 1))
    assert card("bash", {"command": "x"}, out, exit_code=0)[-2] == f"    line {DONE_LINES}"


def test_very_long_line_is_cut() -> None:
    assert card("bash", {"command": "x"}, "y" * 1_000_000, exit_code=0)[-2] == "    … 1 more line"


def test_viewed_file_is_summarised_and_shown_when_unfolded() -> None:
    summary = "lines 1-2 of 2"
    assert card("view", {"path": "a.py"}, "1 x\n2 y", summary=summary) == ["● view a.py  lines 1-2 of 2", ""]
    assert card("view", {"path": "a.py"}, "1 x\n2 y", unfolded=True, summary=summary)[1:3] == ["    1 x", "    2 y"]


def test_failed_and_denied_calls_show_the_reason() -> None:
    assert card("view", {"path": "a"}, "there is no file a", is_error=True) == [
        "✗ view a  failed",
        "    there is no file a",
        "",
    ]
    denied = card("bash", {"command": "rm x"}, "no: keep it", is_error=True, summary="not run: denied", end="not_run")
    assert denied[:2] == ["■ $ rm x  not run: denied", "    no: keep it"]


EDIT = {"path": "x", "old_string": "-- gone", "new_string": "++ new"}
DIFF = "--- a/x\n+++ b/x\n@@ -7,3 +7,3 @@ def f():\n same\n--- gone\n+++ new\n \ttab\n"


def test_diff_has_line_numbers_and_signs() -> None:
    lines = card("edit", EDIT, "ok", summary="+1 -1", diff=DIFF)
    assert lines[0] == "● edit x  +1 -1"
    assert lines[1:] == [
        "  @@ -7,3 +7,3 @@ def f():",
        "      7   same",
        "      8 - -- gone",
        "      8 + ++ new",
        "      9       tab",
        "",
    ]


def test_diagnostics_and_hooks_are_shown_below_the_diff() -> None:
    found = {"path": "a.py", "line": 2, "severity": "error", "message": f"no {NASTY}", "source": "pyflakes"}
    hooks = ["The hook PostToolUse: fmt exited with code 3."]
    one = card("edit", EDIT, "ok", diff=DIFF, diagnostics=[found], hooks=hooks)
    assert one[-3].startswith("! a.py:2: error: no a")
    assert one[-2] == "! hook The hook PostToolUse: fmt exited with code 3."
    assert not CONTROLS.search("".join(one))
    many = card("edit", EDIT, "ok", diff=DIFF, diagnostics=[found | {"line": line} for line in range(1, 10)])
    assert [line[:9] for line in many[-6:-1]] == [*(f"! a.py:{line}:" for line in range(1, 5)), "! 5 more "]


def test_diff_is_side_by_side_from_120_columns() -> None:
    lines = card("edit", EDIT, "ok", width=124, summary="+1 -1", diff=DIFF)
    changed = next(line for line in lines if "gone" in line)
    left, right = changed.split("│")
    assert left.split() == ["8", "-", "--", "gone"]
    assert right.split() == ["8", "+", "++", "new"]
    assert "│" not in card("edit", {"path": "x"}, "ok", width=110, diff=DIFF)[3]


@pytest.mark.parametrize("width", [60, 140])
def test_long_diff_line_is_wrapped(width: int) -> None:
    words = "".join(chr(ord("a") + n % 26) for n in range(300))
    rows = diff_rows(f"@@ -1 +1 @@\n+{words}\n", width)
    text = "".join(strip.text for row in rows for strip in draw_row(row, RENDERER, width))
    assert words in re.sub(r"[ │+]|@@.*?@@|(?<=\+) |\d", "", text)


def test_long_diff_is_folded() -> None:
    diff = "@@ -0,0 +1,90 @@\n" + "".join(f"+line {n}\n" for n in range(90))
    lines = card("write", {"path": "x"}, "ok", diff=diff)
    assert len(lines) == DIFF_LINES + 3
    assert lines[-2] == f"  … {91 - DIFF_LINES} more lines"


# --- outcomes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "line"),
    [
        (s.finish("canceled"), "■ cancelled"),
        (s.finish("error", "", "Key refused; set another."), "✗ failed: Key refused; set another."),
        (s.finish("error", "the server was shut down"), "■ interrupted: the server was shut down"),
        (s.finish("error", "interrupted", "The process was lost."), "■ interrupted: The process was lost."),
        (s.finish("max_tokens"), "■ the answer reached its length limit; send a prompt to continue"),
        (s.finish("unknown"), "■ interrupted"),
    ],
)
def test_each_outcome_has_a_line(finish: Json, line: str) -> None:
    assert drawn(s.message("m1", "assistant", finish))[0] == line


def test_cancelled_answer_names_its_prompt_if_others_are_between() -> None:
    lines = drawn(
        s.message("u1", "user", s.text("first"), run="r1"),
        s.message("u2", "user", s.text("dropped from the queue"), run="r2"),
        s.message("a2", "assistant", s.finish("canceled"), run="r2"),
        s.message("a1", "assistant", s.finish("canceled"), run="r1"),
    )
    assert [line for line in lines if line.startswith("■")] == ["■ cancelled", "■ cancelled: first"]


def test_error_suggests_a_next_step() -> None:
    lines = drawn(s.message("m1", "assistant", s.finish("error", "", "Broken.")))
    assert "press ctrl-l to choose another model" in lines[1]


@pytest.mark.parametrize("width", [58, 100])
def test_welcome_explains_keys_and_models(width: int) -> None:
    offline = " ".join(strip.text.strip() for strip in welcome(OFFLINE, RENDERER, width))
    assert "ctrl-k" in offline
    assert "esc" in offline
    assert "kedge config path" in offline
    assert "No language model is configured" in offline
    assert "configured" not in " ".join(strip.text for strip in welcome("openai/x", RENDERER, width))


# --- harmless -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 140])
def test_no_line_contains_control_characters(width: int) -> None:
    messages = [
        s.message("m1", "user", s.text(NASTY), {"type": "file", "data": {"path": NASTY}}),
        s.message("m2", "user", {"type": "shell_command", "data": {"command": NASTY, "output": NASTY, "exit_code": 0}}),
        s.message(
            "m3",
            "assistant",
            s.thought(NASTY),
            s.text(
                f"{NASTY}\n\n# {NASTY}\n\n```{NASTY}\n{NASTY}\n```\n\n- `{NASTY}` [{NASTY}](http://{NASTY}) &#27;[2J\n"
            ),
            *(
                {"type": "tool_call", "data": s.call(f"c{n}", name, {"command": NASTY})["data"] | {"title": NASTY}}
                for n, name in enumerate(["bash", "edit", NASTY])
            ),
            s.finish("error", NASTY, NASTY),
        ),
        s.message("t1", "tool", s.result("c0", NASTY, exit_code=0, summary=NASTY)),
        s.message("t2", "tool", s.result("c1", NASTY, diff=f"@@ -1 +1 @@ {NASTY}\n-{NASTY}\n+{NASTY}\n")),
        s.message("t3", "tool", s.result("c2", NASTY, is_error=True)),
    ]
    lines = drawn(*messages, width=width, unfolded=True)
    assert not CONTROLS.search("".join(lines))
    assert "owned" in "".join(lines), "it is shown, not omitted"


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200), st.integers(20, 130))
@settings(max_examples=60, deadline=None)
def test_any_text_is_harmless_and_fills_the_width(words: str, width: int) -> None:
    messages = [s.message("m1", "user", s.text(words)), answer(s.text(words))]
    message_renderer, conversation = renderer_of(*messages, width=width)
    for entry in conversation.ordered():
        for line in message_renderer.message(entry, conversation):
            assert not CONTROLS.search(line.strip.text)
            assert line.strip.cell_length == width == cell_len(line.strip.text)
