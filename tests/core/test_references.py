"""References to resources in a prompt."""

from __future__ import annotations

from kedge.core.references import possible_uris, references_in


def test_references_are_words_of_their_own() -> None:
    text = "Compare @docs:guide://a, with (@no:x) and me@mail:x, @docs:guide://b twice: @docs:guide://b @plain @:x"
    assert references_in(text) == ("docs:guide://a,", "docs:guide://b")
    assert references_in("@" + "s" * 65 + ":x") == ()
    assert references_in("@s:" + "x" * 501) == ()


def test_punctuation_after_a_uri_may_belong_to_the_sentence() -> None:
    assert possible_uris("guide://a).") == ("guide://a).", "guide://a")
    assert possible_uris("guide://a") == ("guide://a",)
