"""Strict parser of shell lines: simple commands of plain words, their joins, and nothing else.

A line is parsed only if every character of it is understood, in bash and in any POSIX shell. The rest (substitutions,
assignments, here-documents, braces, loops, background commands, keywords, unusual blanks) gives None, and the line
needs an approval as a whole: an unknown trick of a shell needs one, too.

    words            plain, quoted, with `\\` before a character; globs (`*`, `?`, `[a-z]`); VARIABLES
    joins            `|`, `&&`, `||`, `;`, line ends, `( )`; `cd DIR` at the start of a list
    redirections     `2>&1`, `>&2`, `>/dev/null`, `2>/dev/null`, `&>/dev/null`, `< FILE`
    comments         from `#` to the end of a line

The time is linear in the length of the line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Literal

from msgspec import Struct

from kedge.core.untrusted_text import is_invisible
from kedge.tools.program_rules import listed

#: Limit of a line. No user would call a longer one a plain command. Characters.
STRICT_LINE_CHARS_MAX = 10_000
#: Limit of the commands in a line: each is compared with rules and the table of programs. Items.
STRICT_PARTS_MAX = 100
#: Limit of nested `( )`: no line written by hand has more. Items.
STRICT_DEPTH_MAX = 10

#: Variables without secret values. A word with one is not literal.
VARIABLES = frozenset({"$?", "$PWD", "$HOME", "$USER", "$SHELL", "$PATH", "$LANG", "$HOSTNAME", "$OSTYPE"})

#: Commands of the shell that change how it reads or runs the commands after them, or run text as commands.
_STATE_COMMANDS = listed(
    ". alias bg bind break builtin caller command compgen complete compopt continue coproc declare dirs disown enable"
    " eval exec exit export fc fg function getopts hash history jobs let local logout mapfile popd pushd read readarray"
    " readonly return select set shift shopt source suspend time times trap typeset ulimit umask unalias unset wait"
    " if then elif else fi for while until do done case esac in { } ! [[ ]]"
)
#: Unquoted characters without a special meaning, in addition to letters and digits of all scripts.
_PLAIN = frozenset("_./:=@%+,-^")
_BLANK = " \t"
#: A word may end before these.
_WORD_END = frozenset(" \t\n|&;()<>")
_BRACKET = re.compile(r"\[[!^]?[A-Za-z0-9_.][A-Za-z0-9_.-]*\]")
#: Braces without a comma or dots are literal: `stash@{0}`, `{}`.
_BRACES = re.compile(r"\{[A-Za-z0-9_]*\}")
_VARIABLE = re.compile(r"\$(?:\?|[A-Z]+(?![A-Za-z0-9_])|\{[A-Z]+\}|\{PIPESTATUS\[[0-9]\]\})")
#: The name of a program or a path to it.
_COMMAND = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*|\[")

SegmentKind = Literal["text", "glob", "variable"]


class Segment(Struct, frozen=True):
    """A piece of a word: literal text without its quotes, a wildcard, or a variable."""

    kind: SegmentKind
    text: str


class Word(Struct, frozen=True):
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The word without quotes. Only a literal word has no other meaning."""
        return "".join(segment.text for segment in self.segments)

    @property
    def is_glob(self) -> bool:
        return any(segment.kind == "glob" for segment in self.segments)

    @property
    def is_variable(self) -> bool:
        return any(segment.kind == "variable" for segment in self.segments)

    @property
    def is_literal(self) -> bool:
        return all(segment.kind == "text" for segment in self.segments)

    @property
    def can_become_option(self) -> bool:
        """A glob that may expand to a name with a dash at its start: `*`, `?x`, `-*`. `./*` and `src/*` may not."""
        return not self.is_literal and (self.segments[0].kind != "text" or self.segments[0].text.startswith("-"))


class Part(Struct, frozen=True):
    """A simple command. Its first word is the literal name of a program."""

    words: tuple[Word, ...]
    #: The target of the `cd`s before it, joined. Empty: none.
    directory: str = ""
    #: Redirections that read and write no file, as written in the line: `2>&1`, `>/dev/null`.
    redirects: tuple[str, ...] = ()
    #: The files of `< FILE`.
    inputs: tuple[Word, ...] = ()

    @property
    def name(self) -> str:
        return self.words[0].text

    @property
    def literal_words(self) -> tuple[str, ...] | None:
        """The words, if all of them are literal."""
        return tuple(word.text for word in self.words) if all(word.is_literal for word in self.words) else None


class StrictLine(Struct, frozen=True):
    #: The commands, and between them the signs that join them: `|`, `&&`, `||`, `;`, `(`, `)`. A redirection of a group
    #: stands after its `)`.
    pieces: tuple[Part | str, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Part))


def strict_parts(line: str) -> tuple[Part, ...] | None:
    """Return the simple commands of a line, or None if there is anything else in it. `cd DIR` is a part as well."""
    parsed = parse_strictly(line)
    return parsed.parts if parsed is not None else None


def parse_strictly(line: str) -> StrictLine | None:
    if len(line) > STRICT_LINE_CHARS_MAX or any(is_invisible(character) for character in set(line) - {"\n", "\t"}):
        return None
    try:
        return StrictLine(_Parser(line).parse())
    except _NotPlain:
        return None


class _NotPlain(Exception):
    """The line has something that this parser does not understand."""


class _Parser:
    """A recursive descent over the characters of a line. Each method begins at `at`, and ends after what it parsed."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0
        self._depth = 0
        self._directory = ""
        self._pieces: list[Part | str] = []
        self._parts = 0

    def parse(self) -> tuple[Part | str, ...]:
        self._list()
        if self._at < len(self._line):
            raise _NotPlain
        return tuple(self._pieces)

    # --- joins ---

    def _list(self) -> None:
        """Lists of commands up to the end of the line or the `)` of the group."""
        self._skip_lines()
        while True:
            self._and_or()
            self._skip_blanks()
            if self._peek() not in (";", "\n"):
                return
            self._at += 1
            self._skip_lines()
            if self._peek() in ("", ")"):
                return
            self._pieces.append(";")

    def _and_or(self) -> None:
        only_cd = True
        while True:
            is_cd = self._pipeline(may_be_cd=only_cd)
            only_cd = only_cd and is_cd
            sign = self._line[self._at : self._at + 2]
            if sign not in ("&&", "||"):
                return
            if is_cd and sign == "||":
                raise _NotPlain  # the next command runs if the directory is missing, in another one
            self._join(sign)

    def _pipeline(self, *, may_be_cd: bool) -> bool:
        """Return whether it is a `cd` alone."""
        is_cd = self._command(may_be_cd=may_be_cd)
        while self._peek() == "|" and self._peek(1) not in ("|", "&"):
            if is_cd:
                raise _NotPlain
            self._join("|")
            self._command(may_be_cd=False)
        return is_cd

    def _join(self, sign: str) -> None:
        self._pieces.append(sign)
        self._at += len(sign)
        self._skip_lines()

    def _command(self, *, may_be_cd: bool) -> bool:
        self._skip_blanks()
        if self._peek() == "(":
            self._group()
            return False
        return self._simple(may_be_cd=may_be_cd)

    def _group(self) -> None:
        self._depth += 1
        if self._depth > STRICT_DEPTH_MAX or self._peek(1) == "(":
            raise _NotPlain  # `((` begins an arithmetic command
        self._at += 1
        self._pieces.append("(")
        directory = self._directory
        self._list()
        self._directory = directory
        if self._peek() != ")" or self._peek(1) == "(":
            raise _NotPlain
        self._at += 1
        self._pieces.append(")")
        self._depth -= 1
        self._skip_blanks()
        while (redirect := self._redirect()) is not None:
            if not isinstance(redirect, str):
                raise _NotPlain
            self._pieces.append(redirect)
            self._skip_blanks()
        if self._peek() not in ("", "\n", "|", "&", ";", ")"):
            raise _NotPlain

    def _simple(self, *, may_be_cd: bool) -> bool:
        began = self._at
        words: list[Word] = [self._word()]
        spelled = self._line[began : self._at]
        if _COMMAND.fullmatch(spelled) is None or spelled in _STATE_COMMANDS:
            raise _NotPlain
        redirects: list[str] = []
        inputs: list[Word] = []
        self._skip_blanks()
        while self._peek() not in ("", "\n", "|", ";", ")"):
            redirect = self._redirect()
            if isinstance(redirect, str):
                redirects.append(redirect)
            elif redirect is not None:
                inputs.append(redirect)
            elif self._peek() == "&":
                break
            else:
                words.append(self._word())
            self._skip_blanks()
        self._parts += 1
        if self._parts > STRICT_PARTS_MAX:
            raise _NotPlain
        part = Part(tuple(words), self._directory, tuple(redirects), tuple(inputs))
        self._pieces.append(part)
        _check_state(part)
        if part.name != "cd":
            return False
        if not may_be_cd:
            raise _NotPlain
        self._directory = os.path.join(self._directory, _target(part))
        return True

    # --- words ---

    def _redirect(self) -> str | Word | None:
        """Return a redirection, or the file of `< FILE`, or None for any other word."""
        match = _REDIRECT.match(self._line, self._at)
        if match is None:
            return None
        sign = match[0]
        self._at = match.end()
        if sign.endswith(("<", ">")):
            self._skip_blanks()
        target = self._word()
        if sign == "<":
            if not target.is_literal or not target.text:
                raise _NotPlain
            return target
        is_plain = target.is_literal and target.text in (("1", "2") if sign.endswith("&") else ("/dev/null",))
        if not is_plain:
            raise _NotPlain
        return sign + target.text

    def _word(self) -> Word:
        segments: list[Segment] = []
        began = self._at
        while (character := self._peek()) and character not in _WORD_END:
            if character == "'":
                end = self._line.find("'", self._at + 1)
                segments.append(Segment("text", self._quoted(self._at + 1, end)))
                self._at = end + 1
            elif character == '"':
                self._double_quoted(segments)
            elif character == "\\":
                segments.append(Segment("text", self._escaped()))
            elif character == "$":
                self._variable(segments)
            else:
                self._unquoted(segments, character, began)
        if self._at == began or self._peek() in ("<", ">"):
            raise _NotPlain  # `word>file`, `{name}>file`
        return Word(tuple(_merged(segments)))

    def _unquoted(self, segments: list[Segment], character: str, began: int) -> None:
        is_first = self._at == began
        if character in "*?":
            segments.append(Segment("glob", character))
        elif character == "[":
            match = _BRACKET.match(self._line, self._at)
            if match is not None:
                segments.append(Segment("glob", match[0]))
                self._at = match.end()
                return
            if not is_first or self._peek(1) not in _BLANK:
                raise _NotPlain
            segments.append(Segment("text", character))
        elif character == "{":
            match = _BRACES.match(self._line, self._at)
            if match is None:
                raise _NotPlain
            segments.append(Segment("text", match[0]))
            self._at = match.end()
            return
        elif (
            character in _PLAIN
            or character.isalnum()
            or character in "]!"
            or (character == "#" and not is_first)
            # At the start, and after these signs in an assignment, a tilde is a home directory.
            or (character == "~" and not is_first and self._line[self._at - 1] not in "=:")
        ):
            segments.append(Segment("text", character))
        else:
            raise _NotPlain
        self._at += 1

    def _double_quoted(self, segments: list[Segment]) -> None:
        self._at += 1
        segments.append(Segment("text", ""))
        while (character := self._peek()) != '"':
            if character == "$" and self._peek(1) in ('"', " ", "|", ")"):
                segments.append(Segment("text", "$"))
                self._at += 1
            elif character == "$":
                self._variable(segments)
            elif character == "\\" and self._peek(1) in ("$", "`", '"', "\\"):
                segments.append(Segment("text", self._escaped()))
            elif character in ("", "\n", "`"):
                raise _NotPlain
            else:
                segments.append(Segment("text", character))
                self._at += 1
        self._at += 1

    def _variable(self, segments: list[Segment]) -> None:
        match = _VARIABLE.match(self._line, self._at)
        if match is None:
            raise _NotPlain
        name = match[0].replace("{", "").replace("}", "")
        if name not in VARIABLES and not name.startswith("$PIPESTATUS["):
            raise _NotPlain
        segments.append(Segment("variable", match[0]))
        self._at = match.end()

    def _escaped(self) -> str:
        character = self._peek(1)
        if character in ("", "\n", "\t"):
            raise _NotPlain
        self._at += 2
        return character

    def _quoted(self, start: int, end: int) -> str:
        text = self._line[start:end]
        if end < 0 or "\n" in text:
            raise _NotPlain
        return text

    # --- characters ---

    def _peek(self, ahead: int = 0) -> str:
        """Return a character; empty after the end."""
        return self._line[self._at + ahead : self._at + ahead + 1]

    def _skip_blanks(self) -> None:
        """Skip blanks, a comment, and line ends after a backslash."""
        began = self._at
        while True:
            if self._peek() in (" ", "\t"):
                self._at += 1
            elif self._peek() == "\\" and self._peek(1) == "\n" and self._at > began:
                self._at += 2  # only after a blank: elsewhere it joins two halves of a word
            else:
                break
        is_word_start = self._at == 0 or self._line[self._at - 1] in " \t\n;|&()"
        if self._peek() == "#" and is_word_start:
            end = self._line.find("\n", self._at)
            self._at = len(self._line) if end < 0 else end

    def _skip_lines(self) -> None:
        self._skip_blanks()
        while self._peek() == "\n":
            self._at += 1
            self._skip_blanks()


#: The sign of a redirection. Its target follows.
_REDIRECT = re.compile(r"[12]?>&(?=[12])|&>>?(?![>&|])|[12]?>>?(?![>&|(])|<(?![<>&(])")


#: Conversions of `printf`, without `%n`, which sets a variable, and without widths that take gigabytes of memory.
_FORMAT = re.compile(r"(?:[^%]|%[-+ #']*(?:[0-9]{1,4})?(?:\.(?:[0-9]{1,4})?)?[sdiuxXofeEgGcbq]|%%)*")


def _check_state(part: Part) -> None:
    """Refuse what sets a variable or evaluates text: `printf -v`, `printf %n`, `test -v 'a[$(x)]'`."""
    rest = part.words[1:]
    if part.name == "printf" and rest:
        form = rest[0]
        if not form.is_literal or form.text.startswith("-") or _FORMAT.fullmatch(form.text) is None:
            raise _NotPlain
    if part.name in ("test", "[") and any(word.is_glob or word.text in ("-v", "-R") for word in rest):
        raise _NotPlain


def _merged(segments: list[Segment]) -> Iterator[Segment]:
    """Join neighbours, and drop empty quotes: `""*` begins with a wildcard."""
    for kind, group in groupby(segments, key=lambda segment: segment.kind):
        if kind != "text":
            yield from group
        elif text := "".join(segment.text for segment in group):
            yield Segment("text", text)


def _target(part: Part) -> str:
    """Return the directory of a `cd`."""
    words = part.literal_words
    if words is None or len(words) != 2 or part.inputs or words[1].startswith("-") or not words[1]:
        raise _NotPlain
    return words[1]
