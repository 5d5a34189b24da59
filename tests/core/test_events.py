"""Reasons: a closed list with one sentence each, listed in the protocol."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from kedge.core.events import REASON_TEXTS, Reason, reason_of

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_each_reason_has_a_sentence_and_is_documented() -> None:
    section = PROTOCOL.read_text().partition("## Outcomes and reasons")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    assert set(REASON_TEXTS) == set(get_args(Reason))
    assert documented == {reason: text for reason, text in REASON_TEXTS.items() if reason}


def test_an_unlisted_error_code_is_an_internal_error() -> None:
    assert (reason_of("model_failed"), reason_of("grant_not_found")) == ("model_failed", "internal")
