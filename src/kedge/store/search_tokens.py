"""The tokens of the message search, defined once for every store.

A token is a run of letters, digits and underscores, case-folded. An index stores the tokens, not the text: no tokeniser
of a database decides what a word is.
"""

from __future__ import annotations

import re

from kedge.core.transcript import Message, Text

#: Searched characters of a message. Conversation is far shorter; the rest is pasted data, and indexing megabytes of it
#: would delay all writes.
SEARCHED_CHARS_MAX = 262_144
#: Characters of a token. Longer runs are encoded data, which their beginning identifies.
TOKEN_CHARS_MAX = 128
#: Tokens of a query. Each costs an index lookup.
QUERY_TOKENS_MAX = 32
#: Characters of a snippet before and after the start of the match.
_BEFORE_CHARS, _AFTER_CHARS = 40, 120

_WORD = re.compile(r"\w+")


def searched_text(message: Message) -> str:
    return "\n".join(part.text for part in message.all(Text))[:SEARCHED_CHARS_MAX]


def tokens(text: str) -> list[str]:
    """Return the distinct tokens in order of appearance."""
    return list(dict.fromkeys(map(_token, _WORD.findall(text))))


def query_tokens(query: str) -> list[str]:
    # A longer query cannot hold more tokens that count.
    return tokens(query[: QUERY_TOKENS_MAX * (TOKEN_CHARS_MAX + 1)])[:QUERY_TOKENS_MAX]


def matches(text: str, prefixes: list[str]) -> bool:
    """Return True if each prefix begins a token of the text."""
    text_tokens = tokens(text)
    return all(any(token.startswith(prefix) for token in text_tokens) for prefix in prefixes)


def snippet(text: str, prefixes: list[str]) -> str:
    """Return one line of text around the first match."""
    at = next((word.start() for word in _WORD.finditer(text) if _token(word[0]).startswith(tuple(prefixes))), 0)
    start, end = max(0, at - _BEFORE_CHARS), at + _AFTER_CHARS
    line = " ".join(text[start:end].split())
    return ("…" if start > 0 else "") + line + ("…" if end < len(text) else "")


def _token(word: str) -> str:
    return word[:TOKEN_CHARS_MAX].casefold()
