"""References to resources of MCP servers in a prompt: `@server:uri`."""

from __future__ import annotations

import re

#: A URI in a reference; also the limit of a listed one. Characters.
URI_CHARS_MAX = 500

#: At the start of a word, as a mentioned file: a mail address is not a reference.
_REFERENCE = re.compile(rf"(?<!\S)@([A-Za-z0-9_.-]{{1,64}}:\S{{1,{URI_CHARS_MAX}}})(?!\S)")
#: Punctuation of a sentence after a URI.
_PUNCTUATION = ".,;:!?)]}'\""


def references_in(text: str) -> tuple[str, ...]:
    """Return what may be references, each once, as `server:uri`. Whether there is such a server is not known here."""
    return tuple(dict.fromkeys(_REFERENCE.findall(text)))


def possible_uris(written: str) -> tuple[str, ...]:
    """Return the URIs that a word may mean: with its last punctuation, and without."""
    return tuple(dict.fromkeys((written, written.rstrip(_PUNCTUATION))))
