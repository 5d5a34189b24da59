"""Offers: the rules that an approval of a command proposes to store, and the check of rules that the user edited."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kedge.core.approvals import RULE_CHARS_MAX, IntentPart, covers, granted_in, split_grant
from kedge.core.rule_mistakes import check_rule
from kedge.core.untrusted_text import visible
from kedge.errors import Invalid

#: Rules of one offer. A longer line is allowed once: no user reads more rules before storing them. Items.
OFFERED_RULES_MAX = 5
#: Words without a special meaning in a rule: a grant made of them covers this command and no other.
_RULE_WORD = re.compile(r"[A-Za-z0-9_./:=@%+,-]+")
#: The same with wildcards.
_PATTERN_WORD = re.compile(r"[A-Za-z0-9_./:=@%+,*?-]+")


def offers_of(parts: tuple[IntentPart, ...] | None) -> tuple[tuple[str, ...], ...]:
    """Return the alternatives, each with one rule for every command that needs one, the narrowest first: it covers
    exactly this line, unless no rule does."""
    needing = [part for part in parts or () if not part.is_read_only]
    # A rule for `cd` alone would say nothing about the commands after it.
    if not needing or any(part.words is None or part.words[0] == "cd" for part in needing):
        return ()
    exact = _distinct(_exact(part) for part in needing)
    wide = _distinct(_in_directory(f"bash({part.wide})", part) if part.wide else _exact(part) for part in needing)
    return tuple(offer for offer in dict.fromkeys((exact, wide)) if offer)


def _distinct(rules: Iterable[str]) -> tuple[str, ...]:
    distinct = tuple(dict.fromkeys(rules))
    is_shown = all(rule and len(rule) <= RULE_CHARS_MAX and visible(rule, keep="") == rule for rule in distinct)
    return distinct if is_shown and len(distinct) <= OFFERED_RULES_MAX else ()


def _exact(part: IntentPart) -> str:
    words = part.words or ()
    return _in_directory(f"bash({' '.join(words)})", part) if all(map(_RULE_WORD.fullmatch, words)) else ""


def _in_directory(rule: str, part: IntentPart) -> str:
    return granted_in(rule, part.directory) if part.directory else rule


def checked_grants(parts: tuple[IntentPart, ...], rules: tuple[str, ...]) -> tuple[str, ...]:
    """Return the grants for rules that the user wrote. Raises Invalid unless they cover this line, without more than
    the table of programs allows."""
    needing = [part for part in parts if not part.is_read_only]
    grants: dict[str, None] = {}
    covered: set[int] = set()
    for text in rules:
        rule, directory = split_grant(text)
        check_rule(text, rule, is_allow=True)
        if rule.tool != "bash" or rule.pattern is None or not all(map(_PATTERN_WORD.fullmatch, rule.pattern.split())):
            raise Invalid(f"{text[:100]!r} is not a rule for a command. Example: bash(npm test *).")
        matching = [
            index
            for index, part in enumerate(needing)
            if covers(rule, part) and (not directory or directory == part.directory)
        ]
        if not matching:
            raise Invalid(f"{text[:100]!r} does not cover this call, or is wider than a rule may be.")
        covered.update(matching)
        grants.update({_in_directory(str(rule), needing[index]): None for index in matching})
    for index, part in enumerate(needing):
        if index not in covered:
            raise Invalid(f"No rule covers {' '.join(part.words or ('a command',))[:100]!r} of this call; add one.")
    return tuple(grants)
