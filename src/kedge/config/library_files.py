"""The files of skills, prompt commands and agents: where they are, and what they contain. Blocking.

    commands/NAME.md            a prompt that the user sends as `/NAME arguments`; `commands/sub/NAME.md` is `/sub:NAME`
    skills/NAME/SKILL.md        instructions that the model loads when it needs them, with further files beside it
    agents/NAME.md              an agent that the model gives tasks to

Each is Markdown with settings (`front_matter`). A definition of a repository that brings permissions, programs or a
model needs the user's trust in its exact content. All sizes are limited, since a repository is not trusted.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from msgspec import Struct

from kedge.config.definition_rights import DefinitionRights, LibraryKind, rights_of, text_of
from kedge.config.front_matter import FrontMatter, FrontMatterError, parse_front_matter
from kedge.config.repository import (
    UntrustedFile,
    read_inside,
    read_regular,
    repository_directories,
    trusted_owners,
)
from kedge.core.untrusted_text import one_line
from kedge.errors import Invalid
from kedge.tools.file_threads import checkpoint
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.workspace_paths import real_path

#: Definitions of one directory. Items.
DEFINITIONS_MAX = 200
#: Entries and content of all directories of a repository, and of those of the user, that one refresh reads: a hostile
#: repository must not delay its Runs by more than a fraction of a second. Items, bytes.
ENTRIES_MAX = 5000
READ_BYTES_MAX = 16 * 1024 * 1024
#: One definition: its text becomes part of a request. Bytes.
DEFINITION_BYTES_MAX = 64 * 1024
#: Levels of directories below `commands` and `agents`, and below a skill.
DEPTH_MAX = 4
#: The files of one skill: their digest is trusted, so that all of them are read. Items, bytes.
SKILL_FILES_MAX = 200
SKILL_BYTES_MAX = 4 * 1024 * 1024
#: Limits of texts in lists. Characters.
DESCRIPTION_CHARS_MAX = 1000
HINT_CHARS_MAX = 100

#: In the home directory and in each directory of a repository: directory -> the kinds that it may have.
_PLACES: dict[str, tuple[LibraryKind, ...]] = {
    ".claude": ("command", "skill", "agent"),
    ".agents": ("skill",),
    ".kedge": ("command", "skill", "agent"),
}
#: The names of `_PLACES` in a repository, where `.kedge` wins.
LIBRARY_DIRECTORIES = tuple(_PLACES)
SKILL_FILE = "SKILL.md"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
#: Files of a skill that are read and not run. A repository's skill with others brings programs.
_PLAIN_SUFFIXES = frozenset({".md", ".markdown", ".rst", ".txt", ".json", ".yaml", ".yml", ".toml", ".csv"})
_EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
#: Tools that change nothing, which an agent of an untrusted repository may have.
READING_TOOLS = ("view", "ls", "glob", "grep", "fetch", "skill")


class ReadLimit:
    """The entries and bytes that one refresh may still read."""

    def __init__(self) -> None:
        self.entries_left = ENTRIES_MAX
        self.bytes_left = READ_BYTES_MAX

    def entries(self, directory: Path) -> list[os.DirEntry[str]]:
        """Return the entries of a directory, sorted, as far as the limit allows. Raises OSError."""
        with os.scandir(directory) as entries:
            listed = sorted(islice(entries, self.entries_left), key=lambda entry: entry.name)
        self.entries_left -= len(listed)
        return listed


class LibrarySource(Struct, frozen=True):
    """A directory with definitions of one kind."""

    path: Path
    kind: LibraryKind
    #: "user", "repository" or "plugin NAME".
    origin: str = "user"
    #: Files must be in this directory. None: links may lead anywhere, since the user made them.
    root: Path | None = None
    owners: frozenset[int] = frozenset()


class Definition(Struct, frozen=True):
    source: LibrarySource
    name: str
    #: The file; of a skill its directory.
    path: Path
    #: Why it cannot be used, in one line; empty: it can.
    error: str = ""
    #: What is wrong with it although it can be used.
    warning: str = ""
    description: str = ""
    argument_hint: str = ""
    body: str = ""
    rights: DefinitionRights = DefinitionRights()
    #: The other files of a skill, relative to it.
    files: tuple[str, ...] = ()
    #: (name, value) of its permissions, model and programs. Empty: it is only a text.
    powers: tuple[tuple[str, str], ...] = ()
    #: What is trusted if it needs trust: its content, of a skill the digests of all files.
    content: bytes = b""

    @property
    def kind(self) -> LibraryKind:
        return self.source.kind

    @property
    def origin(self) -> str:
        return self.source.origin

    @property
    def needs_trust(self) -> bool:
        return self.origin == "repository" and bool(self.powers)

    @property
    def shown_rights(self) -> tuple[tuple[str, str], ...]:
        """(name, value) of everything that decides what it may do, for users who review it."""
        rights = self.rights
        tools = (("tools", ", ".join(rights.tools)),) if rights.tools is not None else ()
        without = (("disallowedTools", ", ".join(rights.without)),) if rights.without else ()
        mode = (("mode", rights.mode),) if rights.mode is not None else ()
        return (*(power for power in self.powers if power[0] != "tools"), *tools, *without, *mode)


def user_sources(home: Path, config_dir: Path) -> list[LibrarySource]:
    """Return the directories of the user; a later one wins."""
    sources = [
        LibrarySource(home / directory / _folder(kind), kind)
        for directory in (".claude", ".agents")
        for kind in _PLACES[directory]
    ]
    return [*sources, *(LibrarySource(config_dir / _folder(kind), kind) for kind in _PLACES[".kedge"])]


def repository_sources(workspace: Path, home: Path) -> list[LibrarySource]:
    """Return the directories of the repository; a later one wins. Those of the user's home are not among them."""
    try:
        directories, owners = repository_directories(workspace), trusted_owners(workspace)
    except OSError:
        return []
    real_home = Path(os.path.realpath(home))
    return [
        LibrarySource(directory / name / _folder(kind), kind, "repository", directories[0], owners)
        for directory in directories
        for name, kinds in _PLACES.items()
        if directory != real_home or name == ".kedge"
        for kind in kinds
    ]


def plugin_sources(name: str, path: Path) -> list[LibrarySource]:
    """Return the directories of a plugin, whose files were verified."""
    return [LibrarySource(path / _folder(kind), kind, f"plugin {name}", path) for kind in _PLACES[".kedge"]]


def _folder(kind: LibraryKind) -> str:
    return f"{kind}s"


def read_definitions(source: LibrarySource, limit: ReadLimit) -> list[Definition]:
    """Return the definitions of a directory, also those with errors, sorted by name."""
    try:
        paths = sorted(_paths(source, limit))[:DEFINITIONS_MAX]
    except OSError:
        return []
    definitions = []
    for path in paths:
        checkpoint()
        definitions.append(_read(source, path, limit))
    return sorted(definitions, key=lambda definition: definition.name)


def stamp_of(source: LibrarySource, limit: ReadLimit) -> object:
    """Return a value that changes with the files of a directory: with it, unchanged files are not read again."""
    try:
        if source.root is not None and not _is_inside(source.path, source.root):
            return None
        walked = _walk(source.path, source, DEPTH_MAX + 1, limit)
        return tuple((str(path), one.st_mtime_ns, one.st_ctime_ns, one.st_size, one.st_mode) for path, one in walked)
    except OSError:
        return None


def _paths(source: LibrarySource, limit: ReadLimit) -> Iterator[Path]:
    if source.root is not None and not _is_inside(source.path, source.root):
        return
    if source.kind == "skill":
        for entry in limit.entries(source.path):
            if _may_enter(entry, source) and os.path.lexists(os.path.join(entry.path, SKILL_FILE)):
                yield Path(entry.path)
        return
    for path, _ in _walk(source.path, source, DEPTH_MAX, limit):
        if path.suffix == ".md":
            yield path


def _walk(
    directory: Path, source: LibrarySource, depth_left: int, limit: ReadLimit
) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files below a directory with their states. Raises OSError."""
    left = [(directory, depth_left)]
    while left and limit.entries_left > 0:
        here, depth = left.pop()
        checkpoint()
        for entry in limit.entries(here):
            if _may_enter(entry, source):
                if depth > 0:
                    left.append((Path(entry.path), depth - 1))
                continue
            try:
                yield Path(entry.path), entry.stat()
            except OSError:  # a link to nothing, or the file is gone
                continue


def _may_enter(entry: os.DirEntry[str], source: LibrarySource) -> bool:
    try:
        if not entry.is_dir():
            return False
    except OSError:
        return False
    return source.root is None or not entry.is_symlink() or _is_inside(Path(entry.path), source.root)


def _is_inside(path: Path, root: Path) -> bool:
    try:
        return real_path(path).is_relative_to(real_path(root))
    except ToolFailed:  # too many links
        return False


def _content(path: Path, source: LibrarySource, bytes_max: int, limit: ReadLimit) -> bytes:
    """Return the content of a file. Raises Invalid if it cannot be used."""
    if limit.bytes_left <= 0:
        raise Invalid(f"it is not read: all files together have more than {READ_BYTES_MAX} bytes")
    try:
        if source.root is None:
            content = read_regular(path, bytes_max + 1, frozenset({os.geteuid()}))
        else:
            content = read_inside(path, source.root, source.owners | {os.geteuid()}, bytes_max + 1)
    except UntrustedFile as error:
        raise Invalid(f"it {error}") from None
    except OSError as error:
        raise Invalid(f"it cannot be read ({error.strerror})") from None
    if content is None:
        raise Invalid("it is not a file")
    if len(content) > bytes_max:
        raise Invalid(f"it has more than {bytes_max} bytes")
    limit.bytes_left -= len(content)
    return content


# --- one definition -------------------------------------------------------------------------------------------------


def _read(source: LibrarySource, path: Path, limit: ReadLimit) -> Definition:
    file = path / SKILL_FILE if source.kind == "skill" else path
    name = _default_name(source, path)
    try:
        content = _content(file, source, DEFINITION_BYTES_MAX, limit)
        try:
            parsed = parse_front_matter(content.decode(), frozenset({"argument-hint"}))
        except UnicodeDecodeError:
            raise Invalid("it is not UTF-8 text") from None
        return _defined(source, path, name, parsed, content, limit)
    except (Invalid, FrontMatterError) as error:
        reason = f"{file}: {error}"
        return Definition(source, name, path, one_line(reason, DESCRIPTION_CHARS_MAX))


def _default_name(source: LibrarySource, path: Path) -> str:
    if source.kind == "command":
        return one_line(":".join(path.relative_to(source.path).with_suffix("").parts), 200)
    return one_line(path.name if source.kind == "skill" else path.stem, 200)


def _defined(
    source: LibrarySource, path: Path, name: str, parsed: FrontMatter, content: bytes, limit: ReadLimit
) -> Definition:
    kind = source.kind
    if kind != "command":
        name = text_of(parsed, "name") or name
    if not all(map(_NAME.fullmatch, name.split(":") if kind == "command" else [name])):
        raise Invalid(f"the name {name[:80]!r} is not valid; use small letters, digits, - and _")
    if kind != "command" and not text_of(parsed, "description"):
        raise Invalid("it has no description")
    files: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    if kind == "skill":
        files, programs, content = _skill_files(source, path, limit)
    rights = rights_of(parsed, kind)
    powers = [("allowed-tools", ", ".join(rights.allow))] if rights.allow else []
    powers += [("model", rights.model)] if rights.model else []
    if rights.tools is not None and set(rights.tools) - set(READING_TOOLS):
        powers += [("tools", ", ".join(rights.tools))]
    powers += [("files", ", ".join(programs))] if programs else []
    return Definition(
        source,
        name,
        path,
        warning=one_line("; ".join(rights.warnings), DESCRIPTION_CHARS_MAX),
        description=_plain(text_of(parsed, "description") or _first_line(parsed.body), DESCRIPTION_CHARS_MAX),
        argument_hint=_plain(text_of(parsed, "argument-hint"), HINT_CHARS_MAX),
        body=parsed.body.replace("\0", "\ufffd").strip(),
        rights=rights,
        files=files,
        powers=tuple(powers),
        content=content if source.origin == "repository" and powers else b"",
    )


def _plain(text: str, chars_max: int) -> str:
    """Return a text of an author in one line, with invisible characters escaped."""
    return one_line(" ".join(text[: 4 * chars_max].split()), chars_max)


def _first_line(body: str) -> str:
    return next((line.lstrip("# ") for line in body[:DESCRIPTION_CHARS_MAX].splitlines() if line.strip()), "")


def _skill_files(
    source: LibrarySource, directory: Path, limit: ReadLimit
) -> tuple[tuple[str, ...], tuple[str, ...], bytes]:
    """Return the files beside SKILL.md, those of them that may be programs, and the digests of all. Only the files of a
    repository need digests."""
    names: list[str] = []
    programs: list[str] = []
    lines: list[str] = []
    left = SKILL_BYTES_MAX
    try:
        for path, status in _walk(directory, source, DEPTH_MAX, limit):
            checkpoint()
            if len(names) >= SKILL_FILES_MAX:
                raise Invalid(f"it has more than {SKILL_FILES_MAX} files")
            name = PurePosixPath(path.relative_to(directory)).as_posix()
            content = _content(path, source, left, limit) if source.origin == "repository" else b""
            left -= len(content)
            is_executable = bool(status.st_mode & _EXECUTABLE)
            lines.append(f"{name}\0{is_executable}\0{hashlib.sha256(content).hexdigest()}\n")
            if is_executable or path.suffix.lower() not in _PLAIN_SUFFIXES:
                programs.append(name)
            if name != SKILL_FILE:
                names.append(name)
    except OSError as error:
        raise Invalid(f"its files cannot be read ({error.strerror})") from None
    except Invalid as error:
        raise Invalid(f"its files cannot be used: {error}") from None
    content = "".join(sorted(lines)).encode("utf-8", "surrogateescape")
    return tuple(sorted(names)), tuple(sorted(programs)), content


def read_skill_file(skill: Definition, name: str, bytes_max: int) -> tuple[bytes, bool]:
    """Return the content of a file of a skill, and whether it is cut. Raises Invalid."""
    source = skill.source
    if name not in skill.files:
        raise Invalid(f"the skill {skill.name} has no file {name[:200]!r}")
    root = skill.path if source.root is None else source.root
    try:
        content = read_inside(skill.path / name, root, source.owners | {os.geteuid()}, bytes_max + 1)
    except UntrustedFile as error:
        raise Invalid(f"it {error}") from None
    except OSError as error:
        raise Invalid(f"it cannot be read ({error.strerror})") from None
    if content is None:
        raise Invalid("it is not a file any more")
    return content[:bytes_max], len(content) > bytes_max


def definitions_needing_trust(workspace: Path, home: Path) -> list[Definition]:
    """Return the definitions of the repository that do nothing before the user trusts them."""
    limit = ReadLimit()
    sources = repository_sources(workspace, home)
    every = (definition for source in sources for definition in read_definitions(source, limit))
    return [definition for definition in every if definition.needs_trust]
