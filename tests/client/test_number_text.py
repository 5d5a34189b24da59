"""Numbers for users. `web/tests/number_text.test.ts` has the same values."""

from __future__ import annotations

from kedge.client.view.number_text import duration, token_count


def test_counts_have_one_decimal_place_at_most() -> None:
    counts = [0, 950, 1_000, 2_357, 9_940, 9_960, 64_220, 186_700, 999_400, 999_600, 1_048_576, 12_400_000]
    texts = ["0", "950", "1k", "2.4k", "9.9k", "10k", "64k", "187k", "999k", "1M", "1M", "12M"]
    assert [token_count(count) for count in counts] == texts


def test_durations_have_no_seconds_at_a_full_minute() -> None:
    assert [duration(seconds) for seconds in (0, 59, 60, 61, 3_600)] == ["0 s", "59 s", "1 min", "1 min 1 s", "60 min"]
