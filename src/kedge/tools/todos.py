"""todos: the agent's list of what is to be done, for itself and for people to see."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.core.approvals import Intent
from kedge.core.records import Todo
from kedge.tools.base import Prepared, ToolContext, ToolFailed, ToolOutput

#: More is a plan nobody reads, and it is sent with every request.
TODOS_MAX = 50
#: Of one of them: a sentence.
TODO_CHARS_MAX = 500


class TodoInput(msgspec.Struct):
    content: Annotated[str, Meta(description='What is to be done: "Run the tests".')]
    status: Annotated[Literal["pending", "in_progress", "completed"], Meta(description="How it stands.")] = "pending"
    active_form: Annotated[str, Meta(description='While it is being done: "Running the tests".')] = ""


class TodosInput(msgspec.Struct):
    todos: Annotated[list[TodoInput], Meta(description="The whole list, in order. It replaces the one before.")]


class TodosTool:
    name = "todos"
    input: type[msgspec.Struct] = TodosInput
    kind: Literal["look", "change"] = "look"

    async def prepare(self, args: TodosInput, context: ToolContext) -> Prepared:
        todos = tuple(Todo(one.content.strip(), one.status, one.active_form.strip()) for one in args.todos)
        if len(todos) > TODOS_MAX:
            raise ToolFailed(f"a list of {len(todos)} todos is too long; at most {TODOS_MAX}")
        if not all(0 < len(todo.content) <= TODO_CHARS_MAX >= len(todo.active_form) for todo in todos):
            raise ToolFailed(f"each todo needs a content, of at most {TODO_CHARS_MAX} characters")
        done = sum(todo.status == "completed" for todo in todos)
        title = f"todos {done}/{len(todos)}"
        intent = Intent(
            names=("todos",),
            action="todos",
            subject="",
            description=title,
            path="",
            params=json.dumps({"todos": [todo.content for todo in todos]}, ensure_ascii=False),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            await context.host.put_todos(todos)
            at_work = sum(todo.status == "in_progress" for todo in todos)
            note = "" if at_work < 2 else f" {at_work} are in progress: better work on one at a time."
            return ToolOutput(
                f"The list is kept: {done} of {len(todos)} done.{note}",
                {"todos": [{"content": todo.content, "status": todo.status} for todo in todos]},
            )

        return Prepared(intent, run, title)
