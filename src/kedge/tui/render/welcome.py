"""What an empty transcript says: where one is, and how to begin."""

from __future__ import annotations

from textual.strip import Strip

from kedge.core.records import OFFLINE
from kedge.tui.key_bindings import KEYS
from kedge.tui.render.renderer import Renderer

#: The keys that one needs first, by what they do.
_FIRST = (
    ("palette", "all commands"),
    ("sessions", "your sessions: find one, look into it, go on with it"),
    ("stop", "stop the run that is shown"),
    ("help", "all keys"),
)
#: Where what they do begins. Columns.
_KEY_WIDTH = 10

_ABOUT = "This is kedge, an agent in your terminal. Write what you want done in this directory, and press enter."
_SAFE = "It looks around by itself; before it changes a file or runs a command, it asks you."
_NO_MODEL = (
    "No language model is configured: a small built-in one answers. It understands a few plain requests, such as "
    "“what is in this directory?”, and does them with the real tools."
)
_ADD_ONE = "To use a real model, add it to your config.toml (“kedge config path” names the file); ctrl-l chooses it."


def welcome(model: str, renderer: Renderer, width: int) -> list[Strip]:
    blank, indent = renderer.blank(width), 2
    found = [
        blank,
        *renderer.text(_ABOUT, "k.text", width, indent),
        *renderer.text(_SAFE, "k.muted", width, indent),
        blank,
    ]
    for action, does in _FIRST:
        key = next(key for key in KEYS if key.action == action)
        name = (" " * indent + key.shown.ljust(_KEY_WIDTH), "k.accent")
        found.append(renderer.line(width, name, (does, "k.text")))
    if model == OFFLINE:
        found += [
            blank,
            *renderer.text(_NO_MODEL, "k.warn", width, indent),
            *renderer.text(_ADD_ONE, "k.text", width, indent),
        ]
    return found
