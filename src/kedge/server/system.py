"""The wall clock and random ids."""

from __future__ import annotations

import secrets
import time

# Lower case without look-alikes: ids are read aloud, typed and double-clicked.
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
#: 32**14 is 70 random bits: short, since ids are in every frame, and long enough to be unique. Characters.
_ID_CHARS = 14


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def today(self) -> str:
        return time.strftime("%Y-%m-%d")


class RandomIds:
    def new(self, prefix: str) -> str:
        bits = secrets.randbits(5 * _ID_CHARS)
        return prefix + "".join(_LETTERS[bits >> shift & 31] for shift in range(0, 5 * _ID_CHARS, 5))
