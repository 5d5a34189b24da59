"""Glob patterns for paths: `*.py`, `src/**/*.{ts,tsx}`, `[ab]?.txt`.

The --glob of rg is not used: it overrides .gitignore (`src/**` would list every build directory). Components are
matched one by one, and the positions in a path that a pattern may have reached are the bits of one number: a path may
have two thousand components, and a pattern may expand to a hundred patterns of two hundred components each.

Call it in a thread: a hostile pattern takes up to a second for one path, with checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate

from kedge.tools.file_threads import checkpoint
from kedge.tools.tool_failed import ToolFailed

#: Limit of a pattern: a line. Characters.
PATTERN_CHARS_MAX = 1000
#: Limit of the patterns that braces expand to. Items.
ALTERNATIVES_MAX = 100


def path_filter(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches relative paths. A pattern without a slash matches names at any depth."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ToolFailed(f"the pattern is longer than {PATTERN_CHARS_MAX} characters")
    patterns: list[list[str]] = []
    for one in dict.fromkeys(_alternatives(pattern)):
        parts = [part for part in one.split("/") if part not in ("", ".")]
        patterns.append(parts if "/" in one else ["**", *parts])

    names = _Names()

    def matches(path: str) -> bool:
        parts = path.split("/")
        places: dict[str, int] = {}  # for each component pattern, the matching components of this path as bits
        return any(_match(one, parts, places, names) for one in patterns)

    return matches


def _alternatives(pattern: str) -> list[str]:
    """Expand braces: `a.{b,c}` to `a.b` and `a.c`, nested ones from the inside."""
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
            raise ToolFailed(f"the braces expand to more than {ALTERNATIVES_MAX} patterns; write a simpler pattern")
    return done


class _Names:
    """Patterns for one component of a path, compiled on first use."""

    def __init__(self) -> None:
        self._compiled: dict[str, re.Pattern[str]] = {}

    def places(self, pattern: str, parts: list[str]) -> int:
        """Return the matching components as bits."""
        if not any(special in pattern for special in "*?["):
            fits = {pattern}
        else:
            if pattern not in self._compiled:
                self._compiled[pattern] = re.compile(translate(pattern))
            fits = set(filter(self._compiled[pattern].match, set(parts)))
        return sum(1 << at for at, part in enumerate(parts) if part in fits)


def _match(patterns: list[str], parts: list[str], places: dict[str, int], names: _Names) -> bool:
    end = 1 << len(parts)
    reached = 1  # bit n: the pattern so far may have matched n components
    for pattern in patterns:
        if pattern == "**":
            reached = 2 * end - (reached & -reached)  # every position from the first one on
        else:
            if pattern not in places:
                checkpoint()
                places[pattern] = names.places(pattern, parts)
            reached = (reached & places[pattern]) << 1
        if not reached:
            return False
    return bool(reached & end)
