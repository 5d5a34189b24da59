"""The few requests that the offline model understands: which words stand for which, and what each does with the tools.

A Request is a value: given the calls made so far it says which to make next, or what to answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from kedge.llm.look import called, clean, described, entries, lines_of, phrase, telling

#: A longer prompt is no plain request, but a text somebody wants to talk about. Characters.
REQUEST_CHARS_MAX: Final = 2000
#: Lines of a result told again in the answer, and of each line: the result itself is there for the rest. Characters.
LINES_TOLD_MAX: Final = 60
LINE_CHARS_MAX: Final = 300
#: How long a command may take: the longest that bash waits for one. It is cancelled sooner by whoever started it.
COMMAND_S_MAX: Final = 600


class Use(Struct, frozen=True):
    """A call to be made."""

    tool: str
    given: Mapping[str, Any]


class Used(Struct, frozen=True):
    """A call that was made."""

    given: Mapping[str, Any]
    content: str
    metadata: Mapping[str, Any]
    is_error: bool
    session_id: str = "SESSION"


#: Calls to be made side by side, or the answer.
Next = list[Use] | str


class Request(Protocol):
    """Something the user wants, in the words of the tools."""

    def next(self, used: list[Used]) -> Next: ...


# --- what it can do ----------------------------------------------------------------------------------------------


class List(Struct, frozen=True):
    """What is in a directory, and what kind of project it is."""

    path: str

    def next(self, used: list[Used]) -> Next:
        if not used:
            return [Use("ls", {"path": self.path, "depth": 1})]
        listed, *viewed = used
        if listed.is_error and "is a file" in listed.content:
            return Read(self.path, is_path=True).next(viewed)
        if listed.is_error:
            return _failure(listed, "nothing was listed")
        found = entries(listed.content)
        names = telling(found)
        if names and not viewed:
            return [Use("view", {"path": f"{self.path}/{name}", "limit": LINES_TOLD_MAX}) for name in names]
        texts = {
            str(view.given.get("path", "")).rpartition("/")[2]: "\n".join(lines_of(view.content))
            for view in viewed
            if not view.is_error
        }
        return described(self.path, found, texts)


class Read(Struct, frozen=True):
    """What a file says. People name it by its path, or loosely: "the readme"."""

    name: str
    is_path: bool

    def next(self, used: list[Used]) -> Next:
        if not used:
            view = Use("view", {"path": self.name, "limit": LINES_TOLD_MAX})
            return [view if self.is_path else Use("ls", {"path": ".", "depth": 1})]
        if not self.is_path:
            return self._found(used[0], used[1:])
        viewed = used[0]
        if viewed.is_error and "is a directory" in viewed.content:
            return List(self.name).next(used[1:])
        if viewed.is_error:
            return _failure(viewed, "nothing was read")
        lines = lines_of(viewed.content)
        if not lines:
            return clean(viewed.content)
        total = viewed.metadata.get("lines")
        if total == len(lines):
            return f"{phrase(self.name)} says:\n\n{_told(lines)}"
        count = f"{total} lines" if total else "very many lines"
        return f"{phrase(self.name)} has {count} and begins like this:\n\n{_told(lines)}"

    def _found(self, listed: Used, later: list[Used]) -> Next:
        if listed.is_error:
            return _failure(listed, "nothing was read")
        entry = called(self.name, entries(listed.content))
        if entry is None:
            return f"There is nothing named {phrase(self.name)} in this directory."
        return (List(entry.name) if entry.is_directory else Read(entry.name, is_path=True)).next(later)


class Find(Struct, frozen=True):
    """Lines with a text in them, files with a name, or both when it may be either."""

    what: str
    path: str
    is_text: bool
    is_name: bool

    def next(self, used: list[Used]) -> Next:
        if not used:
            names = Use("glob", {"pattern": self.what, "path": self.path})
            lines = Use("grep", {"pattern": self.what, "path": self.path, "literal": True, "ignore_case": True})
            return [names] * self.is_name + [lines] * self.is_text
        return "\n\n".join(_failure(one, "nothing was found") if one.is_error else self._told(one) for one in used)

    def _told(self, found: Used) -> str:
        what, lines = phrase(self.what), found.content.split("\n")
        if "count" in found.metadata:
            count = found.metadata["count"]
            said = f"{_files(count)} named {what}" if count else f"No file is named {what}"
        else:
            count = found.metadata.get("matches", 0)
            places = f"{count} time{'s' * (count != 1)} in {_files(found.metadata.get('files', 0))}"
            said = f"{what} was found {places}" if count else f"No file has {what} in it"
        return f"{said}:\n\n{_told(lines)}" if count else f"{said}."


class Execute(Struct, frozen=True):
    command: str

    def next(self, used: list[Used]) -> Next:
        if not used:
            return [Use("bash", {"command": self.command, "timeout_s": COMMAND_S_MAX})]
        done, code = used[0], used[0].metadata.get("exit_code")
        if done.is_error:
            return _failure(done, "nothing was run")
        if done.metadata.get("timed_out"):
            ended = f"was stopped after {COMMAND_S_MAX} s"
        elif isinstance(code, int) and code < 0:
            ended = f"was ended by signal {-code}"
        else:
            ended = f"ended with exit code {code}"
        wrote = re.sub(r"\n\n(?:Exit code|Ended by signal) \d+$", "", done.content)
        if wrote in ("", "(no output)"):
            return f"`{phrase(self.command)}` {ended} and wrote nothing."
        return f"`{phrase(self.command)}` {ended} and wrote:\n\n{_told(wrote.split(chr(10)), from_end=True)}"


class Replace(Struct, frozen=True):
    """Two Steps: a file is changed only by who has read it."""

    old: str
    new: str
    path: str

    def next(self, used: list[Used]) -> Next:
        if not used:
            return [Use("view", {"path": self.path, "limit": LINES_TOLD_MAX})]
        if used[-1].is_error:
            return _failure(used[-1], "nothing was changed").replace("old_string", f'"{phrase(self.old)}"')
        if len(used) == 1:
            change = {"path": self.path, "old_string": self.old, "new_string": self.new, "replace_all": True}
            return [Use("edit", change)]
        return _changed(used[-1])


class Write(Struct, frozen=True):
    path: str
    text: str

    def next(self, used: list[Used]) -> Next:
        write = Use("write", {"path": self.path, "content": f"{self.text}\n"})
        if not used:
            return [write]
        if len(used) == 1 and used[0].is_error and "view" in used[0].content:
            return [Use("view", {"path": self.path, "limit": LINES_TOLD_MAX})]  # it exists: read first, then written
        if used[-1].is_error:
            return _failure(used[-1], "nothing was written")
        return [write] if len(used) == 2 else _changed(used[-1])


def _changed(change: Used) -> str:
    diff = str(change.metadata.get("diff", "")).rstrip("\n")
    shown = f"\n\n{_told(diff.split(chr(10)))}" if diff else ""
    return (
        f"{clean(change.content.split(chr(10))[0])}{shown}\n\nTo take it back: kedge sessions undo {change.session_id}"
    )


def _failure(used: Used, nothing: str) -> str:
    """Why a call did not do what it was to do, in plain words."""
    if used.metadata.get("denied"):
        return f"You denied it, so {nothing}."
    if reason := re.match(r"Not allowed: (.*?)\. Do not", used.content, re.DOTALL):
        return f"The permissions do not allow it ({clean(reason[1])}), so {nothing}."
    return f"That did not work: {clean(used.content).rstrip('.')}."


def _told(lines: list[str], *, from_end: bool = False) -> str:
    kept = lines[-LINES_TOLD_MAX:] if from_end else lines[:LINES_TOLD_MAX]
    rows = [row if len(row) <= LINE_CHARS_MAX else f"{row[:LINE_CHARS_MAX]}…" for row in map(clean, kept)]
    if left := len(lines) - len(kept):
        rows.insert(0 if from_end else len(rows), f"... {left} more lines")
    return "\n".join(rows)


def _files(count: int) -> str:
    return f"{count} file{'s' * (count != 1)}"


# --- what the user says ------------------------------------------------------------------------------------------

# Possessive repeats (`++`): a prompt of a thousand blanks is to be understood, or refused, as fast as any other.
#: The blanks behind something, all of them: from none in their middle is anything tried.
_GAP: Final = r"(?<=\S)\s++"
_QUOTED: Final = r"\"[^\"]*\"|'[^']*'|`[^`]*`"
_FILE: Final = rf"(?:(?:the|this)\s++)?(?:(?:new\s++)?file\s++)?(?P<path>{_QUOTED}|\S+)"
_POLITE: Final = re.compile(r"(?:(?:please|now|can you|could you|would you|will you)[\s,]++)*+", re.IGNORECASE)
_END: Final = re.compile(r"(?:(?<![\s,])[\s,]++please)?(?:[?!]+|(?<=[\w\"'`])\.+)?$", re.IGNORECASE)

_RUN: Final = re.compile(
    r"(?:run|execute)\s++(?:(?:(?:the|this)\s++)?command:?\s++)?(?P<command>\S.*)|\$\s*+(.+)", re.I
)
_SPOKEN: Final = re.compile(r"(?:the|this|that|my|your|our|a|an|all|it|some|these|those)\b", re.IGNORECASE)
_REPLACE: Final = re.compile(
    rf"(?:replace|change)\s++(?P<old>{_QUOTED}|\S.*?){_GAP}(?:with|by|to)\s++(?P<new>{_QUOTED}|\S.*?){_GAP}in\s++{_FILE}",
    re.IGNORECASE,
)
_WRITE: Final = re.compile(
    rf"(?:write|create|make)\s++(?:(?:a|the)\s++)?(?:new\s++)?(?P<file>file\s++)?(?:(?:named|called)\s++)?"
    rf"(?P<path>{_QUOTED}|\S+)\s++(?:with|containing|saying)\s++(?:the\s++(?:text|words?|contents?):?\s++)?(?P<text>.+)",
    re.IGNORECASE,
)
_WRITE_TO: Final = re.compile(rf"(?:write|put|save)\s++(?P<text>{_QUOTED})\s++(?:in|into|to)\s++{_FILE}", re.I)
_SEARCH_IN: Final = re.compile(rf"search\s++(?!for\b)(?:in\s++)?{_FILE}\s++for\s++(?P<what>\S.*)", re.IGNORECASE)
_FIND: Final = re.compile(
    r"(?:find|search(?:\s++for)?|grep(?:\s++for)?|look\s++for|where\s++is)\s++(?:(?:all|every|the)\s++)*+"
    r"(?P<files>files?\s++(?:(?:named|called|matching|like)\s++)?)?"
    rf"(?P<what>{_QUOTED}|\S.*?)(?P<too> files?)?(?:{_GAP}in\s++{_FILE})?",
    re.IGNORECASE,
)
_WORD: Final = re.compile(rf"{_QUOTED}|\S+")

#: Verbs that ask for a look, those that take a plain word as a name, and the words around a name that say nothing.
_LISTS: Final = frozenset({"ls", "dir", "list"})
_SHOWS: Final = frozenset({"read", "show", "view", "open", "cat", "display", "print"})
_TELLS: Final = frozenset(
    {"what", "what's", "whats", "which", "describe", "explain", "summarize", "tell", "give", "look"}
)
_PLACES: Final = frozenset(
    {"directory", "dir", "directories", "folder", "folders", "files", "here", "project", "repo", "repository"}
    | {"workspace", "codebase"}
)
_INSIDE: Final = frozenset({"in", "inside", "content", "contents", "say", "says"})
_FILLING: Final = frozenset(
    {"a", "about", "all", "are", "at", "current", "do", "does", "file", "is", "list", "me", "my", "of", "s", "the"}
    | {"there", "this", "to", "us", "what", "what's", "your"}
)


def understood(prompt: str) -> Request | None:
    """The request in a prompt; None if it is anything else. A request is one line: what was piped in before a prompt
    must not be taken for one."""
    line = prompt.strip()
    if len(line) > REQUEST_CHARS_MAX or "\n" in line or "\0" in line:
        return None
    line = line[len(found[0]) :] if (found := _POLITE.match(line)) else line
    plain = _END.sub("", line)
    return _running(line) or _changing(line, plain) or _finding(plain) or _looking(plain)


def _running(line: str) -> Request | None:
    """The command exactly as it stands. "Run the tests" is none."""
    if not (found := _RUN.fullmatch(line)):
        return None
    command = unquoted((found["command"] or found[2]).strip())
    return None if not command or _SPOKEN.match(command) else Execute(command)


def _changing(line: str, plain: str) -> Request | None:
    """What ends with a file's name may end as a sentence does; what ends with a text is written with all its dots."""
    if found := _REPLACE.fullmatch(plain):
        return Replace(unquoted(found["old"]), unquoted(found["new"]), unquoted(found["path"]))
    if found := _WRITE_TO.fullmatch(plain):
        return Write(unquoted(found["path"]), unquoted(found["text"]))
    if (found := _WRITE.fullmatch(line)) and (found["file"] or _is_path(found["path"])):
        return Write(unquoted(found["path"]), unquoted(found["text"]))
    return None


def _finding(line: str) -> Request | None:
    found = _SEARCH_IN.fullmatch(line) or _FIND.fullmatch(line)
    if not found:
        return None
    given, path = found["what"], unquoted(found["path"] or ".")
    what = unquoted(given)
    path = "." if path.lower() in _PLACES | {"code", "this"} else path
    if "files" in found.re.groupindex and (found["files"] or found["too"]):
        return Find(f"*{what}" if re.fullmatch(r"\.\w+", what) else what, path, is_text=False, is_name=True)
    is_pattern = given == what and bool(re.search(r"[*?]", what)) and not re.search(r"\s", what)
    is_name = is_pattern or (given == what and bool(re.fullmatch(r"[\w./-]*\w\.\w{1,8}", what)))
    return Find(what, path, is_text=not is_pattern, is_name=is_name)


def _looking(line: str) -> Request | None:
    words = _WORD.findall(line)
    verb = words[0].lower() if words else ""
    if verb not in _LISTS | _SHOWS | _TELLS:
        return _reading(words[0]) if len(words) == 1 and _is_path(words[0]) else None
    plain = {word.lower() for word in words[1:]}
    is_place = bool(plain & _PLACES)
    ignored = _PLACES | _INSIDE | _FILLING
    names = [word for word in words[1:] if word.lower().strip(",;:") not in ignored and not re.match(r"-\w", word)]
    if not names:
        return List(".") if is_place or verb in _LISTS else None
    if len(names) > 1 or "://" in names[0]:
        return None
    name = names[0]
    if verb in _LISTS or (is_place and not re.search(r"\w\.\w", name)):
        return List(unquoted(name).rstrip(",;:"))
    return _reading(name) if verb in _SHOWS or _is_path(name) or plain & _INSIDE else None


def _reading(name: str) -> Request:
    path = unquoted(name).rstrip(",;:")
    return List(path) if path.endswith("/") or path in (".", "..") else Read(path, is_path=_is_path(name))


def _is_path(word: str) -> bool:
    """It is quoted, or has a dot or a slash where paths have them: not "e.g." and not the end of a sentence."""
    return unquoted(word) != word or bool(re.search(r"/|\w\.\w|^\.{1,2}$|^\.\w", word))


def unquoted(text: str) -> str:
    """Without the quotes around it, if it is one quoted text."""
    return text[1:-1] if re.fullmatch(_QUOTED, text) else text
