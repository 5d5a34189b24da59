"""What the offline model reads off the results of ls and view: which entries there are, and what kind of project it is.

A result is somebody's files and their names, and may say anything: it is cut to what people read, and made printable.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

#: Entries of a directory told: what fits on a screen or two. The result of ls has the others.
ENTRIES_TOLD_MAX: Final = 40
#: Of a name or heading in a sentence. Characters.
PHRASE_CHARS_MAX: Final = 100
#: Lines looked at for the first thing a README says: above it are badges and a logo.
HEADING_LINES_MAX: Final = 100

_TOML_NAME: Final = r"^\[(?:project|package)\][^\[]*?^name\s*+=\s*+[\"']([^\"']+)"
_JSON_NAME: Final = r"^[ \t]*+(?:\{\s*+)?\"name\"\s*+:\s*+\"([^\"]+)"

#: The file that gives a project away, what it is then, and how its name is found there.
_KINDS: Final = (
    ("pyproject.toml", "Python", _TOML_NAME),
    ("setup.py", "Python", ""),
    ("requirements.txt", "Python", ""),
    ("package.json", "JavaScript or TypeScript", _JSON_NAME),
    ("Cargo.toml", "Rust", _TOML_NAME),
    ("go.mod", "Go", r"^module\s+(\S+)"),
    ("pom.xml", "Java", ""),
    ("build.gradle", "Java or Kotlin", ""),
    ("build.gradle.kts", "Kotlin", ""),
    ("Gemfile", "Ruby", ""),
    ("composer.json", "PHP", _JSON_NAME),
    ("mix.exs", "Elixir", ""),
    ("Package.swift", "Swift", ""),
    ("CMakeLists.txt", "C or C++", ""),
)

#: Control characters but tab and line ends, and those that make text run the other way.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

#: A row of ls, one level deep: its name, and what ls says behind it.
_ROW: Final = re.compile(r"  (?P<name>\S.*?)(?P<note>/?(?: \((?:ignored.*|\d+ files)\))?| -> .*)")


def clean(text: str) -> str:
    """Printable in any terminal: no escape codes from a file or its name, and nothing that UTF-8 cannot carry."""
    return _UNPRINTABLE.sub("�", text.encode("utf-8", "replace").decode())


def phrase(text: str) -> str:
    """The same on one line, and short enough for a sentence."""
    line = re.sub(r"[\n\t]", "�", clean(text))
    return line if len(line) <= PHRASE_CHARS_MAX else f"{line[: PHRASE_CHARS_MAX - 1]}…"


class Entry(Struct, frozen=True):
    name: str
    is_directory: bool
    #: As ls shows it.
    row: str


def entries(listing: str) -> list[Entry]:
    """Of the directory itself, from what ls gave."""
    found = []
    for row in listing.split("\n"):
        if match := _ROW.fullmatch(row):
            found.append(Entry(match["name"], match["note"].startswith("/"), row))
    return found


def called(name: str, among: list[Entry]) -> Entry | None:
    """The entry of this name; or else, but for case and ending, README.md for "readme"."""
    folded = name.lower()
    exact = (entry for entry in among if entry.name == name)
    alike = (entry for entry in among if folded in (entry.name.lower(), entry.name.lower().partition(".")[0]))
    return next(exact, None) or next(alike, None)


def telling(among: list[Entry]) -> list[str]:
    """Names of the files that say what a directory is: the project's own and the README, where there are any."""
    names = [entry.name for entry in among if not entry.is_directory]
    marker = next((marker for marker, _, _ in _KINDS if marker in names), "")
    readme = next((name for name in names if name.lower().startswith("readme")), "")
    return [name for name in (marker, readme) if name]


def described(path: str, among: list[Entry], texts: dict[str, str]) -> str:
    """A summary and a list. `texts`: what the telling files say, as far as they could be read."""
    where = "This directory" if path == "." else f"{phrase(path).rstrip('/')}/"
    if not among:
        return f"{where} is empty."
    directories = sum(entry.is_directory for entry in among)
    counted = f"{_count(len(among) - directories, 'file')} and {_count(directories, 'folder')}"
    lines = [f"{where} holds {counted}."]
    for name in telling(among):
        kind, pattern = next(((kind, pattern) for marker, kind, pattern in _KINDS if marker == name), ("", ""))
        text = texts.get(name, "")
        if kind:
            named = re.search(pattern, text, re.MULTILINE) if pattern else None
            lines.append(f"It looks like {kind} code ({name}{f', named {phrase(named[1])}' if named else ''}).")
        elif heading := _heading(text):
            lines.append(f"{phrase(name)} is headed: {heading}")
    lines += ["", *(clean(entry.row) for entry in among[:ENTRIES_TOLD_MAX])]
    if len(among) > ENTRIES_TOLD_MAX:
        lines.append(f"  ... and {len(among) - ENTRIES_TOLD_MAX} others")
    return "\n".join(lines)


def lines_of(viewed: str) -> list[str]:
    """The lines of a file, from what view gave: without their numbers, and without view's own remarks."""
    found = (re.match(r" *\d+\t(.*)", row, re.DOTALL) for row in viewed.split("\n"))
    return [match[1] for match in found if match]


def _count(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def _heading(text: str) -> str:
    """The first heading, or else the first line that says something."""
    lines = [line.strip() for line in text.split("\n")[:HEADING_LINES_MAX]]
    spoken = (line.strip("#= ") for line in sorted(lines, key=lambda line: not line.startswith("# ")))
    return next((phrase(line) for line in spoken if re.match(r"\w", line)), "")
