"""Arguments in the text of a prompt command."""

from __future__ import annotations

import pytest

from kedge.errors import TooLarge
from kedge.extensions.expansion import EXPANDED_CHARS_MAX, expand_text


@pytest.mark.parametrize(
    ("text", "arguments", "expanded"),
    [
        ("Fix $ARGUMENTS.", "12 now", "Fix 12 now."),
        ("$1 and $2, not $3", "'a b' \"c\"", "a b and c, not "),
        ("$1", "$2 $ARGUMENTS", "$2"),
        ("$10 $ARGUMENTSX $0 $x !`ls` @file", "a", "$10 $ARGUMENTSX $0 $x !`ls` @file\n\nArguments: a"),
        ("no places", "", "no places"),
        ("$1", "it's", "it's"),
        ("$1 $2", '"open', '"open '),
    ],
)
def test_places(text: str, arguments: str, expanded: str) -> None:
    assert expand_text(text, arguments) == expanded


def test_too_long_expansion_is_refused_before_it_is_built() -> None:
    with pytest.raises(TooLarge):
        expand_text("$ARGUMENTS" * 6000, "x" * 1_000_000)
    with pytest.raises(TooLarge):
        expand_text("text", "x" * EXPANDED_CHARS_MAX)
