from __future__ import annotations

import pytest

from kedge.wire.brief import call_brief, diff_of, result_brief


@pytest.mark.parametrize(
    ("name", "given", "brief"),
    [
        ("bash", '{"command": "pytest -q", "description": "Test"}', "$ pytest -q"),
        ("view", '{"path": "src/app.py", "offset": 3}', "src/app.py"),
        ("edit", '{"path": "a.py", "old_string": "x", "new_string": "y"}', "a.py"),
        ("grep", '{"pattern": "def ", "path": "src"}', "def  src"),
        ("ls", "{}", "."),
        ("fetch", '{"url": "https://example.org/x"}', "https://example.org/x"),
        ("todos", '{"todos": [{"content": "a", "status": "completed"}, {"content": "b"}]}', "1 of 2 done"),
        ("todos", '{"todos": [{"content": "a", "status": "in_progress"}]}', "0 of 1 done: a"),
        ("question", '{"questions": [{"question": "Which?"}, {"question": "Why?"}]}', "Which? / Why?"),
        ("agent", '{"prompt": "Look for it", "description": "Look"}', "Look"),
        ("no_such", '{"a": 1}', '{"a": 1}'),
        ("bash", '{"command": ', '{"command": '),
        ("bash", "[1]", "[1]"),
        ("view", '{"path": ""}', '{"path": ""}'),
    ],
)
def test_a_call_in_a_few_words(name: str, given: str, brief: str) -> None:
    assert call_brief(name, given) == brief


@pytest.mark.parametrize(
    ("metadata", "is_error", "brief"),
    [
        ('{"exit_code": 1, "duration_ms": 2345}', False, "exit 1, 2.3 s"),
        ('{"exit_code": -9, "duration_ms": 5000, "timed_out": true}', False, "timed out, 5.0 s"),
        ('{"additions": 3, "deletions": 1, "diff": "x"}', False, "+3 -1"),
        ('{"matches": 1, "files": 1}', False, "1 match in 1 file"),
        ('{"first_line": 1, "last_line": 40, "lines": 200}', False, "lines 1-40 of 200"),
        ('{"count": 3, "shown": 3}', False, "3 files"),
        ('{"background_id": "b1"}', False, "goes on in the background (b1)"),
        ('{"denied": true}', True, "denied"),
        ("", True, "failed: the content"),
        ("", False, ""),
        ("not json", False, ""),
    ],
)
def test_a_result_in_a_few_words(metadata: str, is_error: bool, brief: str) -> None:
    assert result_brief(metadata, "the content", is_error=is_error) == brief


def test_the_diff_of_a_change_is_found() -> None:
    assert diff_of('{"diff": "+x"}') == "+x"
    assert diff_of("") == diff_of("{}") == ""
