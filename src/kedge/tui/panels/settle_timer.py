"""The delay before a new Ask accepts an answer."""

from __future__ import annotations

from collections.abc import Callable

from textual.timer import Timer
from textual.widget import Widget

#: Longer than a key press repeated by mistake, shorter than the time to read a line. Seconds.
SETTLE_S = 0.4


class SettleTimer:
    """`is_settled` is True once the widget has been visible for SETTLE_S since it was drawn.

    Time does not count while another screen covers the widget."""

    def __init__(self, widget: Widget, on_change: Callable[[], None]) -> None:
        self._widget, self._on_change = widget, on_change
        self._timer: Timer | None = None
        self._is_started = False
        self.is_settled = False

    def start(self) -> None:
        self.stop()
        self._is_started = True
        self._on_change()
        if self.is_in_view:
            self._widget.call_after_refresh(self._count)

    def stop(self) -> None:
        self._is_started = self.is_settled = False
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    @property
    def is_in_view(self) -> bool:
        return self._widget.app.screen is self._widget.screen

    def on_screen_change(self) -> None:
        """Start again: another screen now covers the widget, or no longer does."""
        if self._is_started:
            self.start()

    def _count(self) -> None:
        if self._is_started and self._timer is None:
            self._timer = self._widget.set_timer(SETTLE_S, self._settle)

    def _settle(self) -> None:
        self.is_settled = self.is_in_view
        self._on_change()
