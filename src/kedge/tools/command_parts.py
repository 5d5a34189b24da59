"""The simple commands of a line as rules see them: their words, directories, and whether a wildcard may cover them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kedge.core.approvals import IntentPart
from kedge.tools.credentials import is_credential, is_named_credential
from kedge.tools.file_threads import checkpoint
from kedge.tools.shell_parser import commands_of, plain_words
from kedge.tools.strict_line import Part, StrictLine
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.wildcard_programs import wildcard_use
from kedge.tools.workspace_paths import GUARD_PARTS_MAX, PATH_BYTES_MAX, guards, real_path, subject_of

#: Words of a command that are checked as files. Only an exact rule covers a command with more words. Items.
GUARDED_WORDS_MAX = 100
#: Words of a line that are looked up on the disk, at some 5 us each. Items.
TOKENS_RESOLVED_MAX = 5000
#: What separates words in a line of any kind, roughly.
_SEPARATOR = re.compile(r"[\s'\"`$(){}<>|&;=,:\\]+")


def intent_parts(
    command: str, strict: StrictLine | None, read_only: tuple[bool, ...], cwd: Path, root: Path
) -> tuple[IntentPart, ...] | None:
    """Return the simple commands of a line, or None if there is anything else in it. Blocking.

    `read_only`: for each command of `strict`, whether it only reads."""
    if strict is not None:
        return tuple(
            _strict_part(part, is_read_only, cwd, root)
            for part, is_read_only in zip(strict.parts, read_only, strict=True)
        )
    # A command that changes the state of the shell, alone in its line: `source setup.sh`.
    words = plain_words(command)
    return (_part(words, cwd, root),) if words is not None else None


def _strict_part(part: Part, is_read_only: bool, cwd: Path, root: Path) -> IntentPart:
    directory = _directory(cwd, part.directory)
    if is_read_only or directory is None or part.inputs:
        return IntentPart(None, is_read_only)
    return _part(part.literal_words, directory, root)


def _part(words: tuple[str, ...] | None, directory: Path, root: Path) -> IntentPart:
    # Rules apply to this workspace: `make` elsewhere runs another Makefile.
    if words is None or not directory.is_relative_to(root):
        return IntentPart(None)
    is_protected = names_guarded(words, directory, root)
    use = None if is_protected else wildcard_use(words, directory, root)
    return IntentPart(
        words,
        exact_only=use is None,
        spelled=use.spelled if use is not None else 1,
        wide=" ".join((*use.offer, "*")) if use is not None and use.offer else "",
        directory="" if directory == root else directory.relative_to(root).as_posix(),
    )


def _directory(cwd: Path, target: str) -> Path | None:
    """Return the directory after `cd`. None if a shell and the kernel may disagree about `link/..`."""
    path = cwd / target
    try:
        real = real_path(path)
    except (ToolFailed, ValueError, OSError):
        return None
    return real if real == real_path(Path(os.path.normpath(path))) else None


def names_guarded(words: tuple[str, ...], cwd: Path, root: Path) -> bool:
    """Return whether a word, or the value of an option, is a guarded file or holds credentials: `cp x .git/hooks/y`,
    `git show HEAD:.env`. The author of `bash(cp *)` does not expect that."""
    names = {part for word in words[1:GUARDED_WORDS_MAX] for part in (word, *_values(word))}
    for name in names - {""}:
        checkpoint()
        path = cwd / name
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            continue  # the kernel opens no such path
        try:
            if len(path.parts) > GUARD_PARTS_MAX or guards(Path(os.path.normpath(path))) or guards(real_path(path)):
                return True
            if any(map(is_credential, _subjects(path, root))):
                return True
        except ToolFailed:  # too many symlinks
            return True
    return len(words) > GUARDED_WORDS_MAX


def _values(word: str) -> tuple[str, ...]:
    """Return the parts of a word that may be a path: `--file=x`, `-fx`, `HEAD:x`."""
    return (word.rpartition("=")[2], word.rpartition(":")[2], word[2:] if word.startswith("-") else "")


def _subjects(path: Path, root: Path) -> tuple[str, str]:
    return subject_of(Path(os.path.normpath(path)), root), subject_of(real_path(path), root)


def names_credential(command: str, cwd: Path, root: Path) -> bool:
    """Return whether a line of any kind names a file with credentials, as far as its text shows. Blocking.

    A name that counts for its suffix only (`config.key`) must be that of a file: it may be an expression."""
    words = {word for words in commands_of(command) for word in words if word}
    tokens = {*_SEPARATOR.split(command), *(part for word in words for part in (word, *_values(word)))} - {""}
    for count, token in enumerate(tokens):
        checkpoint()
        path = cwd / token
        lexical = subject_of(Path(os.path.normpath(path)), root)
        if is_named_credential(lexical):
            return True
        try:
            if count > TOKENS_RESOLVED_MAX or not os.path.lexists(path):
                continue
            if is_credential(lexical) or is_credential(subject_of(real_path(path), root)):
                return True
        except (ToolFailed, ValueError, OSError):
            continue
    return False
