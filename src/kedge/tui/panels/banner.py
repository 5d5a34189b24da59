"""A quiet line below the top: what is wrong with the line to the server."""

from __future__ import annotations

from kedge.tui.panels.status_text import StatusText


class Banner(StatusText):
    DEFAULT_CSS = """
    Banner { height: 1; padding: 0 1; background: $warning 20%; color: $warning; display: none; }
    Banner.told { display: block; }
    """
