"""The todos tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.core.approvals import Rules, permit
from kedge.core.records import Todo
from kedge.tools.base import ToolFailed
from kedge.tools.todos import TODO_CHARS_MAX, TODOS_MAX, TodosTool
from tests.tools.contexts import RecordingHost, call, make_context, prepare


async def test_the_whole_list_is_replaced(tmp_path: Path) -> None:
    host = RecordingHost()
    context = make_context(tmp_path, host=host, todos=(Todo("old"),))
    output = await call(
        TodosTool(),
        context,
        todos=[
            {"content": " Write it ", "status": "completed"},
            {"content": "Test it", "status": "in_progress", "active_form": "Testing it"},
            {"content": "Ship it"},
        ],
    )
    assert host.todos == [
        (Todo("Write it", "completed"), Todo("Test it", "in_progress", "Testing it"), Todo("Ship it"))
    ]
    assert output.content == "The list is saved: 1 of 3 done."
    assert [todo["status"] for todo in output.metadata["todos"]] == ["completed", "in_progress", "pending"]
    assert (await call(TodosTool(), context, todos=[])).content == "The list is saved: 0 of 0 done."


async def test_several_todos_in_progress_get_a_note(tmp_path: Path) -> None:
    todos = [{"content": name, "status": "in_progress"} for name in "ab"]
    output = await call(TodosTool(), make_context(tmp_path), todos=todos)
    assert "2 are in progress" in output.content


@pytest.mark.parametrize(
    "todos",
    [
        [{"content": "x"}] * (TODOS_MAX + 1),
        [{"content": " "}],
        [{"content": "x" * (TODO_CHARS_MAX + 1)}],
        [{"content": "x", "active_form": "x" * (TODO_CHARS_MAX + 1)}],
    ],
    ids=["many", "empty", "long", "long active"],
)
async def test_invalid_list_keeps_the_old_one(tmp_path: Path, todos: list[dict[str, str]]) -> None:
    host = RecordingHost()
    with pytest.raises(ToolFailed):
        await call(TodosTool(), make_context(tmp_path, host=host), todos=todos)
    assert host.todos == []


async def test_todos_need_no_approval_and_prepare_changes_nothing(tmp_path: Path) -> None:
    host = RecordingHost()
    prepared = await prepare(TodosTool(), make_context(tmp_path, host=host), todos=[{"content": "x"}])
    assert permit(prepared.intent, Rules(), ()).decision == "allow"
    assert prepared.intent.description == "todos 0 of 1 done"
    assert host.todos == []
