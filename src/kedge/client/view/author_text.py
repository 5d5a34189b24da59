"""The names of users in texts. The owner has none."""

from __future__ import annotations

from msgspec import UnsetType

from kedge.client.safe_text import one_line

#: The longest name that is shown: a bit more than the server accepts. Characters.
NAME_CHARS_MAX = 64


def author_name(author: str | UnsetType) -> str:
    """Return the name as one line; empty: the owner."""
    return one_line(author, NAME_CHARS_MAX) if author else ""


def by_author(author: str | UnsetType) -> str:
    """Return ` by NAME`; empty for the owner."""
    return f" by {name}" if (name := author_name(author)) else ""
