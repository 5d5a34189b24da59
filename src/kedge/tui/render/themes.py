"""The themes: styles of the widgets (Textual) and of the transcript (Rich)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from rich.theme import Theme as RichTheme
from textual.theme import Theme as TextualTheme

ThemeName = Literal["dark", "light", "contrast", "plain"]


class Theme(Struct, frozen=True):
    textual_theme: TextualTheme
    styles: RichTheme
    #: The Pygments style of code blocks.
    code: str


def _make(
    name: ThemeName,
    *,
    dark: bool,
    background: str,
    surface: str,
    panel: str,
    text: str,
    muted: str,
    accent: str,
    good: str,
    bad: str,
    warn: str,
    added: str,
    removed: str,
    code: str,
) -> Theme:
    textual_theme = TextualTheme(
        name=f"kedge-{name}",
        primary=accent,
        secondary=accent,
        accent=accent,
        foreground=text,
        background=background,
        surface=surface,
        panel=panel,
        success=good,
        warning=warn,
        error=bad,
        dark=dark,
        variables={"muted": muted, "border": muted, "footer-key-foreground": accent},
    )
    styles = {
        "k.text": text,
        "k.muted": muted,
        "k.accent": accent,
        "k.good": good,
        "k.bad": bad,
        "k.warn": warn,
        "k.user": f"bold {text}",
        "k.name": f"bold {text}",
        "k.thought": f"italic {muted}",
        "k.added": added,
        "k.removed": removed,
        "k.hunk": f"italic {muted}",
        "markdown.h1": f"bold {accent}",
        "markdown.h1.border": muted,
        "markdown.h2": f"bold {accent}",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "bold",
        "markdown.h6": "bold",
        "markdown.code": f"bold {accent}",
        "markdown.code_block": text,
        "markdown.item.bullet": accent,
        "markdown.item.number": accent,
        "markdown.block_quote": muted,
        "markdown.link": f"underline {accent}",
        "markdown.link_url": f"underline {accent}",
        "markdown.hr": muted,
        "markdown.table.border": muted,
        "markdown.table.header": "bold",
    }
    # Rich and Textual have different names for the default colour of the terminal.
    rich_styles = {name: style.replace("ansi_default", "default") for name, style in styles.items()}
    return Theme(textual_theme, RichTheme(rich_styles), code)


THEMES: dict[ThemeName, Theme] = {
    "dark": _make(
        "dark",
        dark=True,
        background="#12151a",
        surface="#1a1e25",
        panel="#232832",
        text="#d8dee6",
        muted="#7d8896",
        accent="#6cb6ff",
        good="#7ec699",
        bad="#f08080",
        warn="#e0b060",
        added="#b8e0c4 on #16301f",
        removed="#f2c0c0 on #3a1c1f",
        code="github-dark",
    ),
    "light": _make(
        "light",
        dark=False,
        background="#fbfbf9",
        surface="#f1f1ee",
        panel="#e6e6e1",
        text="#24282e",
        muted="#6a717b",
        accent="#0b61b8",
        good="#1c7c3c",
        bad="#b3261e",
        warn="#8a5a00",
        added="#0d3d1c on #d9f2e0",
        removed="#5c1512 on #fbdedc",
        code="friendly",
    ),
    "contrast": _make(
        "contrast",
        dark=True,
        background="#000000",
        surface="#000000",
        panel="#1c1c1c",
        text="#ffffff",
        muted="#d0d0d0",
        accent="#5fd7ff",
        good="#5fff5f",
        bad="#ff8787",
        warn="#ffff5f",
        added="#000000 on #5fff5f",
        removed="#000000 on #ff8787",
        code="native",
    ),
    # Without colours: text, weight and marks carry the information.
    "plain": _make(
        "plain",
        dark=True,
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        text="ansi_default",
        muted="ansi_default",
        accent="ansi_default",
        good="ansi_default",
        bad="ansi_default",
        warn="ansi_default",
        added="bold",
        removed="strike",
        code="bw",
    ),
}
