"""The texts of undo, redo and rewind for users and models."""

from __future__ import annotations

from kedge.core.reversal import PATHS_MAX, Reversal, reversal_lines, reversal_prompt
from kedge.core.step import estimated_tokens
from kedge.core.transcript import Message, chars_of


def test_every_state_is_shown_and_told() -> None:
    undone = Reversal("undo", "done", ("/w/a",), run_id="r1")
    assert reversal_lines(undone) == ["undo of run r1: done", "restored /w/a"]
    assert "Your changes to these files are gone:\n/w/a\nView a file" in reversal_prompt(undone)
    started = Reversal("redo", "started", ("/w/a",))
    assert "either content" in reversal_lines(started)[0]
    assert reversal_lines(started)[1] == "to restore /w/a"
    assert "was interrupted" in reversal_prompt(started)
    assert "stopped" in reversal_lines(Reversal("redo", "stopped"))[0]
    rewound = Reversal("rewind", "done", (), ("/w/b",), fork_session_id="s2")
    assert reversal_lines(rewound)[1:] == [
        "the conversation as it was is in session s2",
        "kept /w/b, which was changed since",
    ]
    assert "removed what followed it.\nThese files keep their present content" in reversal_prompt(rewound)
    assert "no file had to be changed" in reversal_prompt(Reversal("undo", "done"))


def test_long_lists_of_files_are_cut() -> None:
    paths = [f"/w/{number}" for number in range(PATHS_MAX + 1)]
    part = Reversal("undo", "done").with_files(paths, paths)
    assert (len(part.restored), len(part.spared), part.unnamed) == (PATHS_MAX, PATHS_MAX, 2)
    assert "and 2 more files" in reversal_lines(part)
    assert "(and 2 more files)" in reversal_prompt(part)
    message = Message("m", "s", "user", (part,), 0, 0)
    assert chars_of(message) == len(reversal_prompt(part))
    assert estimated_tokens([message]) > 100
