"""Reading a shell line for rules: what it certainly is, and what it might run.

Two readers, for two questions that err in opposite directions.

*May it?* (`words`) A scanner that knows nothing but plain words, quotes and backslashes, and gives up at every other
character. What it reads is one simple command with literal words, in any shell; a line it does not read asks people.
It refuses what it does not know, so a trick of the shell it has never heard of asks as well.

*Must it not?* (`commands`) A real grammar finds every command in the line: in substitutions, loops, function bodies,
and behind `env`, `xargs`, `sh -c` and their like. A word that depends on the moment (`$x`, `*`) is None. Of a line the
grammar cannot read, the commands it did find are given, and nothing is made up: deny rules guard against accidents, a
shell has a thousand ways around them, and refusing each unusual line would be no wall but a nuisance. Such a line has
no `words`, so it asks.

Reading must end, whatever the line is. Work is counted, and a line that takes more is taken as one that could run
anything. The grammar takes quadratic time for some texts (`a|a|a|...`), cannot be interrupted, and blocks every other
thread meanwhile: it reads short texts here, and long lines in a process of their own (shell_parse_worker).

`runs_others` is what keeps `bash(find *)` from covering `find -exec`: see program_rules.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from kedge.core.approvals import RULE_CHARS_MAX
from kedge.core.untrusted_text import is_invisible
from kedge.tools.program_rules import (
    FIND_RUNS,
    FINDERS,
    GIT_WRAPPERS,
    SHELLS,
    WRAPPERS,
    listed,
    program_name,
    runs_others,
    without_git_options,
)
from kedge.tools.shell_parse_worker import answer_apart, commands_apart

if TYPE_CHECKING:
    from tree_sitter import Language, Node

Words = tuple[str | None, ...]

#: Of a line that is read as plain words. A longer one is nothing a rule was written for. Characters.
PLAIN_CHARS_MAX = 10_000
#: Of a line whose commands are searched; longer is longer than a program's argument may be. Characters.
LINE_CHARS_MAX = 131_072
#: Of here-documents in a line: the grammar's work grows with their square.
HEREDOCS_MAX = 100
#: Of commands looked at per line, those behind wrappers included: more are taken as one that could be anything. Each is
#: compared with each deny rule for its program, on the event loop.
COMMANDS_MAX = 1000
#: Of words of a command that rules are compared with: no rule has as many, so further ones change nothing.
RULE_WORDS_MAX = RULE_CHARS_MAX // 2
#: Of these words in all commands of a line: more are taken as a command that could be anything. A script of 100 kB has
#: half as many. Items.
LINE_WORDS_MAX = 50_000
#: Of words of a wrapper (`env a b c rm x`) that are each tried as the command it runs.
WRAPPED_WORDS_MAX = 64
#: Of `sh -c` inside `sh -c`. Deeper is taken as a command that could be anything.
DEPTH_MAX = 5
#: Of a line that is read in this process. Bytes.
HERE_BYTES_MAX = 300
#: Of characters in it that have a meaning for the shell. The grammar takes the longer the more there are: 6 ms for the
#: worst line that was found, 27 ms without this limit.
HERE_SIGNS_MAX = 40
#: Of processor time for it: more goes to a process of its own, which comes to the same result. Seconds.
HERE_CPU_S_MAX = 0.02
#: Of work on one line in this process: bytes that are parsed or copied, and nodes of the syntax tree. A line of
#: HERE_BYTES_MAX that is read four times takes less; what takes more goes to a process of its own.
HERE_WORK_MAX = 10_000
#: Of work in a process of its own. A script of 100 kB that is read four times takes less.
APART_WORK_MAX = 2_000_000
#: What reading a text takes however short it is, as work.
TEXT_WORK = 100
#: Of a word that rules are compared with, in characters: no rule is nearly as long. A longer one is not literal.
WORD_CHARS_MAX = 4096
#: Of a word that is not literal, the end that may name a program (255 bytes at most). Characters.
NAME_CHARS_MAX = 300

#: Keywords and forms of the shell that are no commands; unquoted in front they change what the line is.
_KEYWORDS = listed("if then elif else fi for while until do done case esac in select function time coproc")
#: Characters that are themselves, unquoted, in every shell. Letters and digits of any script come on top.
_PLAIN = frozenset("_./:=@%+,-^")
_UNKNOWN: Words = (None,)
_SIGN = re.compile(r"[^\w\s./:,@%+^~-]")
#: One line at a time: the grammar holds the interpreter's lock, and the event loop would wait for each thread in turn.
_here = threading.Lock()


class Line(Struct, frozen=True):
    #: The words, if the whole line is one simple command with literal words.
    words: tuple[str, ...] | None
    #: Every command found in it; None for a word that is not literal.
    commands: tuple[Words, ...]
    #: The words run other programs or code, or write where they say: only a rule that spells them all covers it.
    runs_others: bool


def read_line(text: str) -> Line:
    """Blocking: a long line is read in another process."""
    words = plain_words(text)
    commands = None
    if len(text.encode("utf-8", "replace")) <= HERE_BYTES_MAX and len(_SIGN.findall(text)) <= HERE_SIGNS_MAX:
        with _here:
            commands = find_commands(text, HERE_WORK_MAX, HERE_CPU_S_MAX)
    if commands is None:
        commands = commands_apart(text)
    return Line(words, commands or (_UNKNOWN,), words is not None and runs_others(words))


def plain_words(text: str) -> tuple[str, ...] | None:
    """The literal words of one simple command, or None."""
    text = text.strip(" \t\n")
    if not text or len(text) > PLAIN_CHARS_MAX or any(map(is_invisible, text)):
        return None
    words: list[str] = []
    place = 0
    while place < len(text):
        if text[place] == " ":
            place += 1
            continue
        read = _word(text, place, strict=True)
        if read is None:
            return None
        word, end = read
        # Unquoted in front: an assignment, a keyword.
        if not words and ("=" in text[place:end] or text[place:end] in _KEYWORDS):
            return None
        words.append(word)
        place = end
    return tuple(words) if words and words[0] else None


def _word(text: str, place: int, *, strict: bool) -> tuple[str, int] | None:
    """The literal word that begins here, and where it ends; None if it is not literal. Strict: only what is certain."""
    pieces: list[str] = []
    start = place
    while place < len(text):
        character = text[place]
        if character == " " or (not strict and character in "\t\n"):
            break
        if character == "'":
            end = text.find("'", place + 1)
            if end < 0:
                return None
            pieces.append(text[place + 1 : end])
            place = end + 1
        elif character == '"':
            quoted = _DOUBLE_QUOTED.match(text, place)
            if quoted is None:
                return None
            pieces.append(_QUOTED_ESCAPE.sub(lambda found: "" if found[1] == "\n" else found[1], quoted[1]))
            place = quoted.end()
        elif character == "\\":
            if place + 1 == len(text):
                return None
            pieces.append("" if text[place + 1] == "\n" else text[place + 1])
            place += 2
        elif not _is_plain(text, place, start, strict=strict):
            return None
        else:
            pieces.append(character)
            place += 1
    return "".join(pieces), place


#: In double quotes `$` and the backtick are at work, and the backslash before a few characters.
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\$`]|\\.)*)"', re.DOTALL)
_QUOTED_ESCAPE = re.compile(r'\\([$`"\\\n])')


def _is_plain(text: str, place: int, start: int, *, strict: bool) -> bool:
    character = text[place]
    if character in _PLAIN or character.isalnum():
        return True
    if character == "~":  # HEAD~1 is itself; a home directory begins a word, or follows = or : in an assignment
        return place > start and (text[place - 1].isalnum() or text[place - 1] == "^")
    return not strict and character not in "$`*?[]{}()<>;&|~"


# --- every command in a line ---


class _TooMuch(Exception):
    """A line takes more work than it may."""


class _Budget:
    def __init__(self, work: int, cpu_s: float) -> None:
        self._left = work
        self._cpu_end = time.thread_time() + cpu_s

    def spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise _TooMuch

    def check_time(self) -> None:
        if time.thread_time() > self._cpu_end:
            raise _TooMuch


@cache
def _language() -> Language:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def _parsed(source: bytes, budget: _Budget) -> Node:
    from tree_sitter import Parser

    budget.check_time()
    budget.spend(len(source) + TEXT_WORK)
    return Parser(_language()).parse(source).root_node  # a parser of its own: threads must not share one


def find_commands(text: str, work_max: int, cpu_s_max: float = math.inf) -> tuple[Words, ...] | None:
    """Every command in the line, those behind wrappers included. None: it takes more work, or time."""
    budget = _Budget(work_max, cpu_s_max)
    found: dict[Words, None] = {}
    texts: set[str] = set()
    waiting: list[tuple[Words | str, int]] = [(text, 0)]
    words = 0
    try:
        while waiting:
            item, depth = waiting.pop()
            if len(found) >= COMMANDS_MAX or words > LINE_WORDS_MAX or depth > DEPTH_MAX:
                found[_UNKNOWN] = None
                break
            if isinstance(item, str):
                if item not in texts:
                    texts.add(item)
                    waiting += [(one, depth) for one in dict.fromkeys(_commands_of_text(item, budget))]
            elif item not in found:
                budget.spend(len(item))
                found[item] = None
                words += min(len(item), RULE_WORDS_MAX)
                waiting += [(inner, depth + isinstance(inner, str)) for inner in _inside(item)]
    except _TooMuch:
        return None
    return tuple(dict.fromkeys(map(_for_rules, found)))


def _for_rules(command: Words) -> Words:
    words = command[:RULE_WORDS_MAX]
    return tuple(None if word is None or len(word) > WORD_CHARS_MAX else word for word in words)


def _commands_of_text(text: str, budget: _Budget) -> Iterator[Words | str]:
    if len(text) > LINE_CHARS_MAX or text.count("<<") > HEREDOCS_MAX:
        yield _UNKNOWN
        return
    source = text.encode("utf-8", "replace").replace(b"\0", b"")
    root = _parsed(source, budget)
    yield from _Reading(source, budget).commands(root)
    # Some things the grammar takes for something else: a command behind a line break that begins with a backslash is a
    # word more to it, and two open brackets are always arithmetic, where bash tries subshells next: both are read again
    # with a blank in between. It parts words at a line that goes on, at an escaped blank and at odd white space, where
    # the shell does not, and so sees comments that are none: these are read again without. What was arithmetic after
    # all has no commands but words that name variables.
    apart = _LINE_BREAK.sub(b"\n ", source)
    apart = _BRACKETS.sub(b"( ", apart) if root.has_error else apart
    for again in dict.fromkeys((apart, source.replace(b"\\\n", b""), _NO_BLANK.sub(b"_", source))):
        if again == source:
            continue
        found = _Reading(again, budget).commands(_parsed(again, budget))
        yield from (words for words in found if isinstance(words, str) or words[0] is not None)


_LINE_BREAK = re.compile(rb"\n(?=\\)")
_BRACKETS = re.compile(rb"\((?=\()")
_NO_BLANK = re.compile(rb"\\[ \t]|[\r\v\f]")
#: They run what they read from their standard input; of the wrappers those that begin a shell.
_READ_INPUT = SHELLS | listed(". source su sudo ssh at batch")


class _Reading:
    """The syntax tree of one text, read for commands."""

    def __init__(self, source: bytes, budget: _Budget) -> None:
        self._source = source
        self._budget = budget

    def commands(self, root: Node) -> Iterator[Words | str]:
        nodes = [root]
        input_texts: list[str] = []
        reads_input = False
        while nodes:
            node = nodes.pop()
            nodes += self._children(node)
            if node.type == "command":
                words = self._words_of(node)
                reads_input = reads_input or any(word and program_name(word) in _READ_INPUT for word in words)
                if words:
                    yield words
            elif node.type == "redirected_statement":
                yield from self._behind_redirects(node)
            elif node.type == "pipeline":
                parts = [self._words_of(child) for child in self._children(node) if child.type == "command"]
                input_texts += [" ".join(word or "*" for word in words[1:]) for words in parts if words[:1] in _SAYING]
            elif node.type == "ERROR" and any(child.type == "command_name" for child in self._children(node)):
                yield self._words_of(node)  # {rm,x} is no command to the grammar
            elif node.type in ("declaration_command", "unset_command"):
                first, *further = self._children(node)
                yield (self._text(first), *map(self._literal, further))
            elif node.type == "heredoc_body":
                body = self._text(node)
                input_texts.append(body)
                yield from _BACKTICKS.findall(body)
            elif node.type == "herestring_redirect":
                input_texts += filter(None, (self._literal(child) for child in self._children(node) if child.is_named))
        if reads_input:
            yield from input_texts

    def _behind_redirects(self, node: Node) -> Iterator[Words]:
        """To the grammar, words behind `> file` are files, too, and those behind `<< END` something of its own. To a
        shell they are words of the command; or, behind a semicolon, the next one."""
        body, further = node.child_by_field_name("body"), list[str | None]()
        for redirect in node.children_by_field_name("redirect"):
            children = [child for child in self._children(redirect) if child.is_named]
            if redirect.type == "file_redirect":
                named = [child for child in children if child.type != "file_descriptor"]
                further += map(self._literal, named[1:])
            elif redirect.type == "heredoc_redirect":
                further += map(self._literal, redirect.children_by_field_name("argument"))
        if not further or body is None:
            return
        yield tuple(further)
        while body.type != "command" and (named := [child for child in self._children(body) if child.is_named]):
            body = named[-1]
        if body.type == "command":
            yield (*self._words_of(body), *further)

    def _words_of(self, command: Node) -> Words:
        words: list[str | None] = []
        for child in self._children(command):
            if child.type == "command_name":
                words.append(_name(self._text(child)))
            elif child.is_named and child.type != "variable_assignment" and not child.type.endswith("_redirect"):
                words.append(self._literal(child))
        return tuple(words)

    def _literal(self, node: Node) -> str | None:
        return _literal(self._text(node))

    def _children(self, node: Node) -> list[Node]:
        self._budget.spend(1 + node.child_count)
        return node.children

    def _text(self, node: Node) -> str:
        start, end = node.byte_range
        self._budget.spend(end - start)
        return self._source[start:end].decode("utf-8", "replace")


_SAYING = (("echo",), ("printf",))
_BACKTICKS = re.compile(r"`([^`]+)`")


def _literal(text: str) -> str | None:
    if text == "{}":  # what find and xargs put things into; no braces to expand
        return text
    read = _word(text, 0, strict=False)
    return read[0] if read is not None and read[1] == len(text) else None


def _name(text: str) -> str | None:
    """Of a program at a place that is not literal ("$VENV/bin/python") the last part is enough to know it."""
    literal = _literal(text)
    if literal is None:
        tail = re.fullmatch(r'.*[$`}\w)"\']/([\w.+-]+)["\']?', text[-NAME_CHARS_MAX:], re.DOTALL)
        literal = tail[1] if tail is not None else None
    return literal


def _inside(command: Words) -> Iterator[Words | str]:
    """What a command runs besides itself, commands and texts of the shell."""
    first = command[0]
    if first is None:
        return
    name = program_name(first)
    if name != first:
        yield (name, *command[1:])
        return
    rest = command[1:]
    if name == "git":
        plain = without_git_options(command)
        if plain != command:
            yield plain
        elif command[1:2] and command[1] in GIT_WRAPPERS:
            yield from _wrapped(command[2:])
    elif name in FINDERS:
        places = [place for place, word in enumerate(command[:-1], start=1) if word in FIND_RUNS]
        if len(places) > WRAPPED_WORDS_MAX:
            yield _UNKNOWN
        else:
            yield from (command[place:] for place in places)
    elif name == "eval":
        literal = [word for word in rest if word is not None]
        yield " ".join(literal) if len(literal) == len(rest) else _UNKNOWN
    elif name in SHELLS:
        # A word that is not literal may be the option.
        given = enumerate(rest)
        code = next((place for place, word in given if word is None or re.match(r"-\w*c", word)), len(rest))
        yield from (word if word is not None else _UNKNOWN for word in rest[code + 1 :])
    elif name in ("tar", "bsdtar", "split"):
        yield from _texts(rest)
    elif name in WRAPPERS:
        yield from _wrapped(rest)


def _wrapped(rest: Words) -> Iterator[Words | str]:
    yield from _behind(rest)
    yield from _texts(rest)


def _texts(rest: Words) -> Iterator[str]:
    """Texts to run: a word as it is ('A=1 rm x'), or an option's value (--command='rm x', --on=exec='rm x', -c'rm x',
    --to-command=rm)."""
    for word in rest:
        if word is None:
            continue
        if re.search(r"[\s;&|(`]", word):
            yield from {word: None, word.split("=", 1)[-1]: None, word.rsplit("=", 1)[-1]: None}
            yield from (word[2:], word[3:]) if re.match(r"-\w", word) else ()
        elif word.startswith("--") and "=" in word:
            yield word.split("=", 1)[1]


def _behind(rest: Words) -> Iterator[Words]:
    """A wrapper has options of its own, with values. Each word might be the command: all of them are tried."""
    if len(rest) > WRAPPED_WORDS_MAX:
        yield _UNKNOWN
        return
    for place, word in enumerate(rest):
        if word is None or not (word.startswith("-") or "=" in word):
            yield rest[place:]
        elif re.match(r"-[A-Za-z]\w", word):  # env -Srm x
            yield (word[2:], *rest[place + 1 :])


def answer() -> None:
    """The process that `commands_apart` starts."""
    answer_apart(lambda text: find_commands(text, APART_WORK_MAX))
