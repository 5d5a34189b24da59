"""The words that search goes by: one definition, so that every store finds the same.

A word is a run of letters, digits and underscores; case is folded. An index is given the words, not the text, so that
no tokeniser of a database has a say in what a word is.
"""

from __future__ import annotations

import re

from kedge.core.transcript import Message, Text

#: Characters of a message that are searched. What people and models say to each other is far shorter; what goes beyond
#: is pasted data, and indexing megabytes of it would hold up everybody's writes.
SEARCHED_CHARS_MAX = 262_144
#: Characters of a word that count. Longer ones are encoded data; their beginning is enough to find them.
WORD_CHARS_MAX = 128
#: Words of a query that count. Each costs a look into the index.
QUERY_WORDS_MAX = 32
#: Characters shown before and behind the beginning of a match.
_BEFORE_CHARS, _BEHIND_CHARS = 40, 120

_WORD = re.compile(r"\w+")


def searched_text(message: Message) -> str:
    return "\n".join(part.text for part in message.all(Text))[:SEARCHED_CHARS_MAX]


def words(text: str) -> list[str]:
    """Each word once, in order of appearance."""
    return list(dict.fromkeys(map(_folded, _WORD.findall(text))))


def query_words(query: str) -> list[str]:
    # A query this long cannot hold more words that count.
    return words(query[: QUERY_WORDS_MAX * (WORD_CHARS_MAX + 1)])[:QUERY_WORDS_MAX]


def matches(text: str, wanted: list[str]) -> bool:
    held = words(text)
    return all(any(word.startswith(beginning) for word in held) for beginning in wanted)


def snippet(text: str, wanted: list[str]) -> str:
    """One line around the first word that one of the wanted ones begins."""
    at = next((found.start() for found in _WORD.finditer(text) if _folded(found[0]).startswith(tuple(wanted))), 0)
    start, end = max(0, at - _BEFORE_CHARS), at + _BEHIND_CHARS
    line = " ".join(text[start:end].split())
    return ("…" if start > 0 else "") + line + ("…" if end < len(text) else "")


def _folded(word: str) -> str:
    return word[:WORD_CHARS_MAX].casefold()
