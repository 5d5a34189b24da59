"""A quiet line below the top: what is wrong with the line to the server."""

from __future__ import annotations

from textual.widgets import Static


class Banner(Static):
    DEFAULT_CSS = """
    Banner { height: 1; padding: 0 1; background: $warning 20%; color: $warning; display: none; }
    Banner.told { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)

    def tell(self, words: str) -> None:
        self.set_class(bool(words), "told")
        self.update(words)
