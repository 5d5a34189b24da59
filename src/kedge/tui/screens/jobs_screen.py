"""The dialog with the kept commands of a session: their states, the output of one, and its end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.safe_text import harmless, one_line
from kedge.client.view.job_text import job_state, runtime
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.connection import ServerConnection
from kedge.wire.job_models import JobBody

#: Lines of output that are drawn; `kedge jobs show` prints all that the server has. Lines.
DRAWN_LINES_MAX = 500

NO_JOBS = "no kept commands in this session"


class JobsScreen(ModalScreen[None]):
    DEFAULT_CSS = """
    JobsScreen { align: center top; }
    JobsScreen > Vertical {
        width: 120; max-width: 100%; height: 100%; border: round $accent; background: $background; padding: 0 1;
    }
    JobsScreen OptionList { height: auto; max-height: 8; background: $background; }
    JobsScreen VerticalScroll { height: 1fr; border-top: solid $panel; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", show=False),
        Binding("d,delete", "end", "end the command", show=False),
    ]
    AUTO_FOCUS = "OptionList"

    def __init__(
        self,
        connection: ServerConnection,
        session_id: str,
        start: Callable[[Coroutine[Any, Any, None]], None],
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__()
        self._connection, self._session_id, self._start, self._now_ms = connection, session_id, start, now_ms
        self._jobs: list[JobBody] = []
        #: The end of the output of the shown command as the stream has it, and its state: when they change, it is
        #: loaded again.
        self._loaded: tuple[str, str, str] | None = None
        self._is_loading = False
        self._view: WorkspaceView | None = None

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Kept commands"
            box.border_subtitle = "d: end · esc: close"
            yield OptionList(markup=False, compact=True)
            with VerticalScroll(can_focus=False):
                yield Static(NO_JOBS, markup=False)

    def on_mount(self) -> None:
        if self._view is not None:
            self.update_from(self._view)

    def update_from(self, view: WorkspaceView) -> None:
        self._view = view
        session = view.session(self._session_id)
        if not self.is_mounted:
            return
        self._jobs = list(reversed(session.jobs)) if session else []
        listed = self.query_one(OptionList)
        index = listed.highlighted or 0
        listed.set_options([Option(_row(job, self._now_ms())) for job in self._jobs])
        listed.highlighted = min(index, len(self._jobs) - 1) if self._jobs else None
        self._load_if_changed()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._load_if_changed()

    @property
    def _chosen(self) -> JobBody | None:
        index = self.query_one(OptionList).highlighted
        return self._jobs[index] if index is not None and index < len(self._jobs) else None

    def _load_if_changed(self) -> None:
        job, view = self._chosen, self._view
        if job is None or view is None or self._is_loading:
            return
        current = (job.id, job.state, view.job_output(job.id))
        if current != self._loaded:
            self._loaded, self._is_loading = current, True
            self._start(self._load(job.id))

    async def _load(self, job_id: str) -> None:
        connection = self._connection
        try:
            shown = await connection.retry(
                lambda: connection.client.job_output(connection.id, self._session_id, job_id)
            )
        finally:
            self._is_loading = False
        if self.is_current:
            lines = harmless(shown.output).splitlines()[-DRAWN_LINES_MAX:]
            self.query_one(Static).update("\n".join(lines) or "(no output)")
            self.query_one(VerticalScroll).scroll_end(animate=False)
            self._load_if_changed()  # of another command, or newer

    def action_end(self) -> None:
        if (job := self._chosen) is not None and job.state == "running":
            self._start(self._end(job.id))

    async def _end(self, job_id: str) -> None:
        connection = self._connection
        await connection.retry(lambda: connection.client.end_job(connection.id, self._session_id, job_id))

    def action_close(self) -> None:
        self.dismiss(None)


def _row(job: JobBody, now_ms: int) -> str:
    mark = "●" if job.state == "running" else "○"
    return f"{mark} {job_state(job)} {runtime(job, now_ms)}  $ {one_line(job.command, 300)}"
