"""Patterns for paths, as people write them: `*.py`, `src/**/*.{ts,tsx}`, `[ab]?.txt`.

rg's own --glob is not used for them: it brings back what .gitignore leaves out (`src/**` would list every build
directory). Parts are matched one by one, and all places of a path that a pattern may have reached are the bits of one
number: a path may have two thousand parts, and a pattern may stand for a hundred others of two hundred parts each.

Call it in a thread: a pattern made to hurt takes up to a second for one path, with checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate

from kedge.tools.tool_failed import ToolFailed
from kedge.tools.tool_threads import checkpoint

#: Of a pattern: people write a line at most.
PATTERN_CHARS_MAX = 1000
#: Patterns that one with braces may stand for.
ALTERNATIVES_MAX = 100


def path_filter(pattern: str) -> Callable[[str], bool]:
    """Whether a path (relative, with "/") matches. A pattern without a slash speaks of names at any depth."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ToolFailed(f"the pattern is longer than {PATTERN_CHARS_MAX} characters")
    wanted: list[list[str]] = []
    for one in dict.fromkeys(_alternatives(pattern)):
        parts = [part for part in one.split("/") if part not in ("", ".")]
        wanted.append(parts if "/" in one else ["**", *parts])

    names = _Names()

    def matches(path: str) -> bool:
        parts = path.split("/")
        places: dict[str, int] = {}  # of what is wanted: the parts of this path that match it, as bits
        return any(_match(one, parts, places, names) for one in wanted)

    return matches


def _alternatives(pattern: str) -> list[str]:
    """`a.{b,c}` is `a.b` and `a.c`; braces within braces are done from the inside."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        checkpoint()
        one = waiting.pop()
        close = one.find("}")
        start = one.rfind("{", 0, close) if close >= 0 else -1
        if start < 0:
            done.append(one)
        else:
            waiting += [one[:start] + choice + one[close + 1 :] for choice in one[start + 1 : close].split(",")]
        if len(done) + len(waiting) > ALTERNATIVES_MAX:
            raise ToolFailed(f"the pattern stands for more than {ALTERNATIVES_MAX} others; write a simpler one")
    return done


class _Names:
    """Patterns for one part of a path, each compiled when it is first needed."""

    def __init__(self) -> None:
        self._compiled: dict[str, re.Pattern[str]] = {}

    def places(self, want: str, parts: list[str]) -> int:
        """Which parts match, as bits."""
        if not any(special in want for special in "*?["):
            fits = {want}
        else:
            if want not in self._compiled:
                self._compiled[want] = re.compile(translate(want))
            fits = set(filter(self._compiled[want].match, set(parts)))
        return sum(1 << at for at, part in enumerate(parts) if part in fits)


def _match(wanted: list[str], parts: list[str], places: dict[str, int], names: _Names) -> bool:
    end = 1 << len(parts)
    reached = 1  # bit n: the pattern so far may have taken n parts of the path
    for want in wanted:
        if want == "**":
            reached = 2 * end - (reached & -reached)  # every place from the first one on
        else:
            if want not in places:
                checkpoint()
                places[want] = names.places(want, parts)
            reached = (reached & places[want]) << 1
        if not reached:
            return False
    return bool(reached & end)
