"""Files named in a prompt as `@path`: how that is written, what is attached, and what a dropped file looks like."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection
from urllib.parse import unquote, urlsplit

from kedge.core.untrusted_text import visible

#: A paste that is longer is text, whatever it begins with. Characters: some 20 long paths.
PATHS_CHARS_MAX = 8192

#: `@src/app.py` or `@"with spaces.txt"`, at the beginning of a word: an address of mail is none.
_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
#: The same while it is being written, at the end of what is there.
_BEGUN = re.compile(r'(?<!\S)@(?:"([^"\n]*)|([^\s"]*))$')
#: What a sentence puts behind a name.
_PUNCTUATION = ".,;:!?)]}'\""


def begun(before: str) -> tuple[int, str] | None:
    """Where the mention begins that is being written, and what is there of its name."""
    found = _BEGUN.search(before)
    return (found.start(), found[1] or found[2] or "") if found else None


def can_be_mentioned(name: str) -> bool:
    """Not if it has a quote, or what nobody would see: that is neither shown nor typed."""
    return '"' not in name and visible(name, keep="") == name


def mention(name: str) -> str:
    return f'@"{name}"' if re.search(r"\s", name) else f"@{name}"


def mentioned(text: str, root: str, dropped: Collection[str]) -> list[str]:
    """The files to attach: those of the workspace that are named, and those from elsewhere that were dropped here.

    Text comes from anywhere. One that only names a file outside the workspace must not send that file away."""
    found: dict[str, None] = {}
    for quoted, bare in _MENTION.findall(text):
        for name in (quoted,) if quoted else (bare, bare.rstrip(_PUNCTUATION)):
            path = os.path.normpath(os.path.join(root, name))
            if os.path.isfile(path) and (path in dropped or name_inside(path, root)):
                found[path] = None
                break
    return list(found)


def name_inside(path: str, root: str) -> str:
    """The path from the root on; empty if it lies elsewhere, or is a link that leads there."""
    real, base = os.path.realpath(path), os.path.realpath(root)
    return os.path.relpath(real, base) if real.startswith(base.rstrip("/") + "/") else ""


def paths_in(paste: str) -> list[str]:
    """The files whose paths are all there is, as terminals paste what is dropped on them; else none."""
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
    except ValueError:  # a quote is not closed: text
        return []


def _path(word: str) -> str:
    """Empty if it is no absolute one."""
    word = word.strip()
    path = unquote(urlsplit(word).path) if word.startswith("file:///") else word
    return path if os.path.isabs(path) else ""
