"""The expansion of a prompt command: `/review 12` becomes the text of its file with the arguments in their places.

`!`commands`` and `@files` in the text stay as they are. The model runs and reads them, with the usual approvals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from kedge.errors import TooLarge

#: Size of an expanded prompt, that of any prompt: each place in the text takes all arguments. Characters.
EXPANDED_CHARS_MAX = 1024 * 1024

_PLACE = re.compile(r"\$(ARGUMENTS|[1-9])(?![0-9A-Za-z_])")
_WORD = re.compile(r"\"([^\"]*)\"|'([^']*)'|(\S+)")


def expand_text(text: str, arguments: str) -> str:
    """Put the arguments into the places of a text: `$ARGUMENTS` is all of them, `$1` to `$9` are words, which may be
    quoted. A text without places gets them at its end. Raises TooLarge before it builds a text that is."""
    places = [match[1] for match in _PLACE.finditer(text)]
    if not places:
        return with_arguments(text, arguments)
    words = [next(group for group in match.groups() if group is not None) for match in _first_words(arguments)]
    values = {str(number): word for number, word in enumerate(words, 1)} | {"ARGUMENTS": arguments}
    _check(len(text) + sum(len(values.get(key, "")) for key in places))
    # In one pass: what the arguments contain is not a place.
    return _PLACE.sub(lambda match: values.get(match[1], ""), text)


def with_arguments(text: str, arguments: str) -> str:
    """Return a text with the arguments at its end."""
    _check(len(text) + len(arguments))
    return f"{text}\n\nArguments: {arguments}" if arguments else text


def _first_words(arguments: str) -> Iterator[re.Match[str]]:
    return islice(_WORD.finditer(arguments), 9)


def _check(chars: int) -> None:
    if chars > EXPANDED_CHARS_MAX:
        raise TooLarge(f"The expanded prompt has more than {EXPANDED_CHARS_MAX} characters; send shorter arguments.")
