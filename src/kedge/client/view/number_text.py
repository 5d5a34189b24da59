"""Numbers for users. The web page writes them in the same way: `web/src/view/number_text.ts`."""

from __future__ import annotations

#: From here on a count is written in millions: it would round to 1000k. Tokens.
MILLIONS_FROM = 999_500


def token_count(count: int) -> str:
    """Return `950`, `2.4k`, `64k`, `1.1M`."""
    if count < 1000:
        return str(count)
    value, unit = (count / 1_000_000, "M") if count >= MILLIONS_FROM else (count / 1000, "k")
    digits = f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"
    return digits + unit


def duration(seconds: int) -> str:
    """Return `12 s`, `1 min`, `3 min 20 s`."""
    minutes, rest = divmod(seconds, 60)
    return " ".join(text for value, text in ((minutes, f"{minutes} min"), (rest, f"{rest} s")) if value) or "0 s"
