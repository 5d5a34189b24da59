"""todos: the agent's task list, shown to the user."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.core.approvals import Intent
from kedge.core.records import Todo
from kedge.tools.base import Prepared, Tool, ToolContext, ToolFailed, ToolOutput

#: Limit of a list. It is sent with every request. Items.
TODOS_MAX = 50
#: Limit of one todo: a sentence. Characters.
TODO_CHARS_MAX = 500

_DESCRIPTION = """\
Keeps your task list, visible to the user. Each call replaces the whole list.

- Use it for work of three steps or more, not for a single small task or a question.
- Have one todo `in_progress` at a time. Mark it `completed` as soon as it is done, and not before.
- Add tasks that you discover. Remove tasks that are no longer needed.
- `content` names the task ("Run the tests"), `active_form` the same task in progress ("Running the tests").
"""


class TodoInput(msgspec.Struct):
    content: Annotated[str, Meta(description='The task: "Run the tests".')]
    status: Annotated[Literal["pending", "in_progress", "completed"], Meta(description="Its state.")] = "pending"
    active_form: Annotated[str, Meta(description='The task in progress: "Running the tests".')] = ""


class TodosInput(msgspec.Struct):
    todos: Annotated[list[TodoInput], Meta(description="The complete list, in order. It replaces the old one.")]


class TodosTool(Tool):
    name = "todos"
    description = _DESCRIPTION
    input: type[msgspec.Struct] = TodosInput
    read_only = True

    def title(self, args: TodosInput) -> str:
        current = next((todo for todo in args.todos if todo.status == "in_progress"), None)
        return f"todos {_done(args.todos)}" + (f": {current.active_form or current.content}" if current else "")

    async def prepare(self, args: TodosInput, context: ToolContext) -> Prepared:
        todos = tuple(Todo(todo.content.strip(), todo.status, todo.active_form.strip()) for todo in args.todos)
        if len(todos) > TODOS_MAX:
            raise ToolFailed(f"{len(todos)} todos are too many; the limit is {TODOS_MAX}")
        if not all(0 < len(todo.content) <= TODO_CHARS_MAX >= len(todo.active_form) for todo in todos):
            raise ToolFailed(f"each todo needs a content of at most {TODO_CHARS_MAX} characters")
        intent = Intent(
            names=("todos",),
            action="todos",
            subject="",
            description=f"todos {_done(args.todos)}",
            path="",
            params=json.dumps({"todos": [todo.content for todo in todos]}, ensure_ascii=False),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            await context.host.put_todos(todos)
            active = sum(todo.status == "in_progress" for todo in todos)
            note = "" if active < 2 else f" {active} are in progress: work on one at a time."
            return ToolOutput(
                f"The list is saved: {_done(args.todos)}.{note}",
                {"todos": [{"content": todo.content, "status": todo.status} for todo in todos]},
            )

        return Prepared(intent, run)


def _done(todos: list[TodoInput]) -> str:
    return f"{sum(todo.status == 'completed' for todo in todos)} of {len(todos)} done"
