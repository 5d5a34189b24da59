"""The side panel: todos, kept commands, changed files, other clients."""

from __future__ import annotations

import os

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from kedge.client.safe_text import one_line, visible_line
from kedge.client.view.job_text import job_state, runtime
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.render.cell_width import cut, cut_start, wrapped
from kedge.wire import models as m
from kedge.wire.brief import FILE_MARKS
from kedge.wire.job_models import JobBody

#: Screens of at least this width show the panel; on others the user can open it. Cells.
WIDE_CELLS = 120
#: Width of the panel and of the text in it. Cells.
PANEL_CELLS = 36
TEXT_CELLS = PANEL_CELLS - 3
#: Files listed; the others are counted. Items.
LISTED_FILES_MAX = 30

_TODO_MARKS = {"completed": ("✓", "$muted"), "in_progress": ("●", "bold $accent"), "pending": ("○", "")}

#: A line and its style.
StyledLine = tuple[str, str]


class SidePanel(VerticalScroll, can_focus=False):
    DEFAULT_CSS = f"""
    SidePanel {{
        width: {PANEL_CELLS}; height: 100%; padding: 0 1; background: $background; display: none;
        border-left: solid $panel; scrollbar-size-vertical: 0;
    }}
    SidePanel.shown {{ display: block; }}
    SidePanel.above {{ layer: above; dock: right; background: $surface; }}
    """

    def __init__(self) -> None:
        super().__init__()
        #: The user's choice; None: depends on the width.
        self._choice: bool | None = None
        self._lines: list[StyledLine] = []

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def on_mount(self) -> None:
        self.set_screen_width(self.app.size.width)

    def toggle(self) -> None:
        self._choice = not self.has_class("shown")
        self.set_screen_width(self.app.size.width)

    def set_screen_width(self, screen_cells: int) -> None:
        """Show the panel beside the transcript on a wide screen, above it on others."""
        is_wide = screen_cells >= WIDE_CELLS
        self.set_class(is_wide if self._choice is None else self._choice, "shown")
        self.set_class(not is_wide, "above")

    def update_from(self, view: WorkspaceView, session_id: str, root: str, now_ms: int) -> None:
        """`root`: paths below it are shown relative to it."""
        lines = panel_lines(view, session_id, root, now_ms)
        if lines != self._lines:
            self._lines = lines
            self.query_one(Static).update(Content("\n").join(Content.styled(text, style) for text, style in lines))


def panel_lines(view: WorkspaceView, session_id: str, root: str, now_ms: int = 0) -> list[StyledLine]:
    session = view.session(session_id)
    parts = [
        _todo_lines(session.todos if session else []),
        _job_lines(view, session.jobs if session else [], now_ms),
        _file_lines(view.files(session_id), root),
        _other_lines(session, len(view.queue(session_id))),
    ]
    lines: list[StyledLine] = []
    for part in parts:
        if part:
            lines += [*([("", "")] if lines else []), *part]
    return lines


def _todo_lines(todos: list[m.TodoBody]) -> list[StyledLine]:
    if not todos:
        return [("Todos", "bold"), ("none", "$muted")]
    done = sum(todo.status == "completed" for todo in todos)
    lines: list[StyledLine] = [(f"Todos {done}/{len(todos)}", "bold")]
    for todo in todos:
        mark, style = _TODO_MARKS[todo.status]
        text = todo.active_form if todo.status == "in_progress" and todo.active_form else todo.content
        wrapped_lines = wrapped(one_line(text, 500), TEXT_CELLS - 2)
        lines += [(f"{mark if index == 0 else ' '} {line}", style) for index, line in enumerate(wrapped_lines)]
    return lines


def _job_lines(view: WorkspaceView, jobs: list[JobBody], now_ms: int) -> list[StyledLine]:
    if not jobs:
        return []
    running = sum(job.state == "running" for job in jobs)
    lines: list[StyledLine] = [(f"Kept commands {running}/{len(jobs)}", "bold")]
    for job in jobs:
        is_running = job.state == "running"
        time = runtime(job, now_ms)
        state = time if is_running else job_state(job)
        lines.append((cut(f"{'●' if is_running else '○'} {state}  {one_line(job.command, 300)}", TEXT_CELLS), ""))
        last = view.job_output(job.id).rstrip().rpartition("\n")[2] if is_running else ""
        if last:
            lines.append((cut(f"  {one_line(last, 300)}", TEXT_CELLS), "$muted"))
    return lines


def _file_lines(changed: m.ChangedFiles, root: str) -> list[StyledLine]:
    if not changed.count:
        return [("Files changed", "bold"), ("none", "$muted")]
    lines: list[StyledLine] = [(f"Files changed {changed.count}", "bold")]
    for file in changed.files[:LISTED_FILES_MAX]:
        lines.append((f"{FILE_MARKS[file.change]} {cut_start(_short_path(file.path, root), TEXT_CELLS - 2)}", ""))
    if changed.count > LISTED_FILES_MAX:
        lines.append((f"  and {changed.count - LISTED_FILES_MAX} more", "$muted"))
    return lines


def _short_path(path: str, root: str) -> str:
    below = os.path.join(root, "")
    return visible_line(path.removeprefix(below), 1000)


def _other_lines(session: m.SessionBody | None, queued: int) -> list[StyledLine]:
    lines: list[StyledLine] = []
    others = session.attached_clients - 1 if session else 0
    if others > 0:
        lines.append((cut(f"{others} other client{'s' if others > 1 else ''}", TEXT_CELLS), ""))
    if queued:
        lines.append((cut(f"{queued} prompt{'s' if queued > 1 else ''} queued", TEXT_CELLS), ""))
    return lines
