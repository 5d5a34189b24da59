"""Looking at a workspace without leaving it and without reading much: what the offline model knows.

Everything here is bounded, since a workspace may be a home directory, a network share or somebody's attack: so many
directory entries, so many bytes of a file, no FIFO or device, no symbolic link out of the workspace.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

#: Directory entries looked at. Beyond it only "more than so many" is said: a mail directory holds millions.
ENTRIES_MAX: Final = 2_000
#: Directory entries shown: what fits on a screen or two.
ENTRIES_SHOWN_MAX: Final = 40
#: Read of a file that is to be shown, in bytes and lines: enough to see what it is.
SHOWN_BYTES_MAX: Final = 6_000
SHOWN_LINES_MAX: Final = 60
#: Read of a file to learn a name or a heading from it, in bytes.
GLANCE_BYTES_MAX: Final = 64 * 1024

_KINDS: Final = (
    ("pyproject.toml", "Python"),
    ("setup.py", "Python"),
    ("requirements.txt", "Python"),
    ("package.json", "JavaScript or TypeScript"),
    ("Cargo.toml", "Rust"),
    ("go.mod", "Go"),
    ("pom.xml", "Java"),
    ("build.gradle", "Java or Kotlin"),
    ("build.gradle.kts", "Kotlin"),
    ("Gemfile", "Ruby"),
    ("composer.json", "PHP"),
    ("mix.exs", "Elixir"),
    ("Package.swift", "Swift"),
    ("CMakeLists.txt", "C or C++"),
)


#: Control characters but tab and line ends, and those that make text run the other way.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Refused(Exception):
    """The path leads out of the workspace, or to something that is not a file or directory. The message says which."""


def clean(text: str) -> str:
    """Printable in any terminal: no escape codes from a file or its name, and nothing that UTF-8 cannot carry."""
    return _UNPRINTABLE.sub("�", text.encode("utf-8", "replace").decode())


def clean_name(name: str) -> str:
    """The same on one line."""
    return re.sub(r"[\n\r\t]", "�", clean(name))


def size(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    for unit in ("kB", "MB", "GB"):
        if (shown := count / 1000) < 999.5 or unit == "GB":
            return f"{shown:.1f} {unit}" if shown < 10 else f"{shown:.0f} {unit}"
        count //= 1000
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class Looked:
    """The beginning of a file."""

    data: bytes
    total_bytes: int


class Workspace:
    def __init__(self, path: str) -> None:
        self.root = Path(os.path.realpath(path))

    def inside(self, name: str) -> Path | None:
        """The real path of something in the workspace; None if it is not there, Refused if it is somewhere else."""
        try:
            found = Path(os.path.realpath(self.root / name))
            if not found.is_relative_to(self.root):
                raise Refused(f"{clean_name(name)} leads out of this workspace, so I do not look at it.")
            return found if os.path.lexists(found) else None
        except (OSError, ValueError):  # a name too long, or with a NUL in it: no such file
            return None

    def read(self, path: Path, bytes_max: int) -> Looked:
        """The beginning of a file that `inside` found. It may have been swapped for something else since, so neither a
        link is followed nor a FIFO waited for."""
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise Refused(f"{clean_name(path.name)} is not a plain file, so I do not read it.")
            return Looked(os.read(handle, bytes_max), found.st_size)
        finally:
            os.close(handle)

    def like(self, words: set[str]) -> Path | None:
        """A file at the top whose name, but for case and ending, is one of these words: README.md for "readme"."""
        try:
            with os.scandir(self.root) as entries:
                names = sorted(entry.name for entry in itertools.islice(entries, ENTRIES_MAX))
        except OSError:
            return None
        fitting = (name for name in names if words & {name.lower(), name.lower().partition(".")[0]})
        return next((path for name in fitting if (path := self.inside(name)) and path.is_file()), None)

    def glance(self, name: str) -> str:
        """The beginning of a file as text; nothing if there is none to be had."""
        try:
            path = self.inside(name)
            return self.read(path, GLANCE_BYTES_MAX).data.decode("utf-8", "replace") if path else ""
        except (OSError, Refused):
            return ""


def show_file(workspace: Workspace, path: Path) -> str:
    name = clean_name(str(path.relative_to(workspace.root)))
    try:
        looked = workspace.read(path, SHOWN_BYTES_MAX)
    except Refused as refused:
        return str(refused)
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}."
    if not looked.data:
        return f"{name} is empty."
    if b"\0" in looked.data:
        return f"{name} is a binary file of {size(looked.total_bytes)}, so I do not print it."
    # The last character may be cut in two by the limit; any other that is no UTF-8 stays visible as �.
    text = clean(looked.data.decode("utf-8", "replace").rstrip("�"))
    lines = text.splitlines()
    shown = "\n".join(lines[:SHOWN_LINES_MAX])
    if len(lines) > SHOWN_LINES_MAX or looked.total_bytes > len(looked.data):
        return f"{name} ({size(looked.total_bytes)}) begins like this:\n\n{shown}\n\n(There is more of it.)"
    return f"{name} ({size(looked.total_bytes)}) says:\n\n{shown}"


def show_directory(workspace: Workspace, path: Path) -> str:
    """A summary and a list."""
    found: list[tuple[str, bool]] = []
    more = False
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if len(found) >= ENTRIES_MAX:
                    more = True
                    break
                found.append((entry.name, _is_directory(entry)))
    except OSError as error:
        return f"{clean_name(str(path))} cannot be read: {error.strerror}."
    shown = sorted((name, folder) for name, folder in found if not name.startswith("."))
    folders = sum(folder for _, folder in shown)
    where = str(path) if path == workspace.root else f"{path.relative_to(workspace.root)}/"
    lines = [f"{clean_name(where)} holds {_counts(len(shown) - folders, folders, len(found) - len(shown), more)}."]
    lines += _notable(workspace, path, {name for name, _ in found})
    if shown:
        lines += ["", *(f"  {_entry(path, name, folder)}" for name, folder in shown[:ENTRIES_SHOWN_MAX])]
    if len(shown) > ENTRIES_SHOWN_MAX:
        lines.append(f"  ... and {len(shown) - ENTRIES_SHOWN_MAX}{' or more' if more else ''} others")
    return "\n".join(lines)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _counts(files: int, folders: int, hidden: int, more: bool) -> str:
    def of(count: int, word: str) -> str:
        return f"{count or 'no'} {word}{'' if count == 1 else 's'}"

    if more:
        return f"more than {ENTRIES_MAX} entries"
    if not files + folders + hidden:
        return "nothing: it is empty"
    counted = f"{of(files, 'file')} and {of(folders, 'folder')}"
    return f"{counted}, and {of(hidden, 'hidden entry').replace('entrys', 'entries')}" if hidden else counted


def _entry(path: Path, name: str, folder: bool) -> str:
    shown = clean_name(name)
    if folder:
        return f"{shown}/"
    try:
        found = os.lstat(path / name)
    except OSError:
        return shown
    if stat.S_ISLNK(found.st_mode):
        return f"{shown} (a link)"
    return f"{shown}  {size(found.st_size)}" if stat.S_ISREG(found.st_mode) else f"{shown} (not a plain file)"


def _notable(workspace: Workspace, path: Path, names: set[str]) -> list[str]:
    """One sentence for each thing that tells what this directory is."""
    here = path.relative_to(workspace.root)
    found: list[str] = []
    kinds = [(marker, kind) for marker, kind in _KINDS if marker in names]
    if kinds:
        marker, kind = kinds[0]
        name = _project_name(marker, workspace.glance(str(here / marker)))
        found.append(f"It looks like {kind} code ({marker}{f', named {name}' if name else ''}).")
    readme = next((name for name in sorted(names) if name.lower().startswith("readme")), "")
    if readme and (heading := _heading(workspace.glance(str(here / readme)))):
        found.append(f"{clean_name(readme)} is headed: {heading}")
    if ".git" in names and (branch := _branch(workspace.glance(str(here / ".git" / "HEAD")))):
        found.append(f"It is a git repository, {branch}.")
    return found


def _project_name(marker: str, text: str) -> str:
    name: object = None
    try:
        if marker == "pyproject.toml":
            name = tomllib.loads(text).get("project", {}).get("name")
        elif marker == "Cargo.toml":
            name = tomllib.loads(text).get("package", {}).get("name")
        elif marker in ("package.json", "composer.json"):
            name = msgspec.json.decode(text, type=dict[str, object]).get("name")
        elif marker == "go.mod" and (module := re.search(r"^module\s+(\S+)", text, re.MULTILINE)):
            name = module.group(1)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError, AttributeError, RecursionError):
        return ""  # it is somebody's file, and may say anything
    return _short(name) if isinstance(name, str) else ""


def _heading(text: str) -> str:
    """The first heading, or else the first line that says something."""
    lines = [line.strip() for line in text.splitlines()[:100]]
    spoken = (line.lstrip("#= ").rstrip("#= ") for line in sorted(lines, key=lambda line: not line.startswith("# ")))
    return next((_short(line) for line in spoken if re.match(r"\w", line)), "")


def _branch(head: str) -> str:
    if found := re.match(r"ref: refs/heads/(\S+)", head):
        return f"on branch {_short(found.group(1))}"
    if found := re.match(r"[0-9a-f]{40}", head):
        return f"at commit {found.group()[:10]}"
    return ""


def _short(text: str) -> str:
    return clean_name(text)[:100]
