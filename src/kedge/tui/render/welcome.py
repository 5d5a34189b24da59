"""The text of an empty transcript: how to begin."""

from __future__ import annotations

from textual.strip import Strip

from kedge.core.records import OFFLINE
from kedge.tui.key_bindings import KEYS
from kedge.tui.render.renderer import Renderer

#: Actions whose keys are shown, with descriptions.
_FIRST = (
    ("palette", "all commands"),
    ("sessions", "find, preview and open sessions"),
    ("stop", "stop the active run"),
    ("help", "all keys"),
)
#: Width of the key column. Columns.
_KEY_WIDTH = 10

_ABOUT = "kedge is an agent in your terminal. Describe a task for this directory and press enter."
_SAFE = "Read-only tools run without asking. kedge asks before it changes a file or runs a command."
_NO_MODEL = (
    "No language model is configured, so the built-in offline model answers. It understands a few requests, such as "
    "“what is in this directory?”, and runs the real tools."
)
_ADD_ONE = "To use a language model, add it to config.toml (“kedge config path” prints its path), then press ctrl-l."


def welcome(model: str, renderer: Renderer, width: int) -> list[Strip]:
    blank, indent = renderer.blank(width), 2
    strips = [
        blank,
        *renderer.text(_ABOUT, "k.text", width, indent),
        *renderer.text(_SAFE, "k.muted", width, indent),
        blank,
    ]
    for action, description in _FIRST:
        key = next(key for key in KEYS if key.action == action)
        name = (" " * indent + key.shown.ljust(_KEY_WIDTH), "k.accent")
        strips.append(renderer.line(width, name, (description, "k.text")))
    if model == OFFLINE:
        strips += [
            blank,
            *renderer.text(_NO_MODEL, "k.warn", width, indent),
            *renderer.text(_ADD_ONE, "k.text", width, indent),
        ]
    return strips
