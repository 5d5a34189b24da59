"""Patterns for paths, as people write them: `*.py`, `src/**/*.{ts,tsx}`, `[ab]?.txt`.

rg's own --glob is not used for them: it brings back what .gitignore leaves out (`src/**` would list every build
directory). Parts are matched one by one, so that no pattern takes more than the product of the two lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from kedge.tools.processes import ToolFailed

#: Of a pattern: people write a line at most.
PATTERN_CHARS_MAX = 1000
#: Patterns that one with braces may stand for.
ALTERNATIVES_MAX = 100


def path_filter(pattern: str) -> Callable[[str], bool]:
    """Whether a path (relative, with "/") matches. A pattern without a slash speaks of names at any depth."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ToolFailed(f"the pattern is longer than {PATTERN_CHARS_MAX} characters")
    wanted = []
    for one in _alternatives(pattern):
        parts = [part for part in one.split("/") if part not in ("", ".")]
        wanted.append(parts if "/" in one else ["**", *parts])

    def matches(path: str) -> bool:
        parts = path.split("/")
        return any(_match(one, parts) for one in wanted)

    return matches


def _alternatives(pattern: str) -> list[str]:
    """`a.{b,c}` is `a.b` and `a.c`; braces within braces are done from the inside."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
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


def _match(wanted: list[str], parts: list[str]) -> bool:
    reached = {0}  # how many parts of the path the pattern so far may have taken
    for want in wanted:
        if want == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], want)}
        if not reached:
            return False
    return len(parts) in reached
