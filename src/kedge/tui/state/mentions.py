"""Files mentioned in a prompt as `@path`, and files dropped on the terminal."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection
from urllib.parse import unquote, urlsplit

from kedge.core.name_matching import can_be_mentioned

#: A longer paste is text, not paths: about 20 long paths. Characters.
PATHS_CHARS_MAX = 8192

#: `@src/app.py` or `@"with spaces.txt"`, at the start of a word: a mail address is not a mention.
_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
#: A partial mention at the end of the text.
_PARTIAL = re.compile(r'(?<!\S)@(?:"([^"\n]*)|([^\s"]*))$')
#: Punctuation of a sentence after a name.
_PUNCTUATION = ".,;:!?)]}'\""


def partial_mention(before: str) -> tuple[int, str] | None:
    """Return the start of the mention being typed, and its partial name."""
    match = _PARTIAL.search(before)
    return (match.start(), match[1] or match[2] or "") if match else None


def mention(name: str) -> str:
    return f'@"{name}"' if re.search(r"\s", name) else f"@{name}"


def mentioned(text: str, root: str, dropped: Collection[str]) -> list[str]:
    """Return the files to attach: mentioned files of the workspace, and mentioned files that were dropped here.

    Prompts may be pasted from untrusted sources. Naming a file outside the workspace must not send it to the model."""
    files: dict[str, None] = {}
    for quoted, bare in _MENTION.findall(text):
        for name in (quoted,) if quoted else (bare, bare.rstrip(_PUNCTUATION)):
            path = os.path.normpath(os.path.join(root, name))
            if os.path.isfile(path) and (path in dropped or name_inside(path, root)):
                files[path] = None
                break
    return list(files)


def name_inside(path: str, root: str) -> str:
    """Return the path relative to the root; empty if it is outside, also through a symlink."""
    real, base = os.path.realpath(path), os.path.realpath(root)
    return os.path.relpath(real, base) if real.startswith(base.rstrip("/") + "/") else ""


def paths_in(paste: str) -> list[str]:
    """Return the files if the paste contains only paths, as terminals paste dropped files; else nothing."""
    text = paste.strip()
    if len(text) > PATHS_CHARS_MAX or not text.startswith(("/", "'/", '"/', "file:///")):
        return []
    for words in (text.splitlines(), _shell_words(text)):
        paths = [_path(word) for word in words if word.strip()]
        if paths and all(os.path.isfile(path) and can_be_mentioned(path) for path in paths):
            return [os.path.normpath(path) for path in paths]
    return []


def _shell_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unclosed quote: not a list of paths
        return []


def _path(word: str) -> str:
    """Return the path of a word or file URL; empty if it is not absolute."""
    word = word.strip()
    path = unquote(urlsplit(word).path) if word.startswith("file:///") else word
    return path if os.path.isabs(path) else ""
