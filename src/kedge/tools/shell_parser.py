"""Parser of shell lines for rules: the exact words of a simple command, and all commands that a line might run.

Two parsers answer two questions, and err in opposite directions.

*May it run?* (`plain_words`) A scanner that accepts only plain words, quotes and backslashes. Its result is one simple
command with literal words, in any shell. Any other line needs an approval, so an unknown trick of a shell needs one,
too.

*Must it not run?* (`commands_of`) A real grammar finds every command in the line: in substitutions, loops and function
bodies, and after `env`, `xargs`, `sh -c` and the like. A word that is known only at run time (`$x`, `*`) is None. If
the grammar cannot parse a line, the commands that it did find are returned: deny rules protect against accidents, a
shell has a thousand ways around them, and refusing every unusual line would annoy without protecting. Such a line has
no plain words, so it needs an approval.

Parsing must end for every line. Work is counted, and a line that takes too much is treated as one that could run
anything. The grammar takes quadratic time for some texts (`a|a|a|...`), cannot be interrupted, and blocks every other
thread meanwhile. Therefore it parses short lines here, and long lines in a worker process (`shell_parse_worker`).
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

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
    without_git_options,
)
from kedge.tools.shell_parse_worker import parse_in_worker, run_worker

if TYPE_CHECKING:
    from tree_sitter import Language, Node

Words = tuple[str | None, ...]

#: Limit of a line that is parsed as plain words. No rule is meant for a longer one. Characters.
PLAIN_CHARS_MAX = 10_000
#: Limit of a line whose commands are searched: the kernel takes no longer argument. Characters.
SHELL_LINE_CHARS_MAX = 131_072
#: Limit of here-documents in a line: the work of the grammar grows with their square. Items.
HEREDOCS_MAX = 100
#: Limit of commands per line, those after wrappers included. A line with more could run anything. Each is compared with
#: each deny rule for its program, on the event loop. Items.
COMMANDS_MAX = 1000
#: Words of a command that are compared with rules. No rule has more words. Items.
RULE_WORDS_MAX = RULE_CHARS_MAX // 2
#: Limit of these words in all commands of a line. A line with more could run anything. A script of 100 kB has half as
#: many. Items.
LINE_WORDS_MAX = 50_000
#: Limit of words of a wrapper (`env a b c rm x`) that are each tried as the command that it runs. Items.
WRAPPED_WORDS_MAX = 64
#: Limit of nested `sh -c`. A deeper line could run anything.
DEPTH_MAX = 5
#: Limit of a line that is parsed in this process. Bytes.
LOCAL_BYTES_MAX = 300
#: Limit of shell metacharacters in it, which determine the time: 6 ms for the worst line found, 27 ms without the
#: limit.
LOCAL_SIGNS_MAX = 40
#: Limit of processor time for it. A line that takes more goes to a worker, with the same result. Seconds.
LOCAL_CPU_S_MAX = 0.02
#: Limit of work on one line in this process: bytes parsed or copied, and nodes of the syntax tree. A line of
#: LOCAL_BYTES_MAX that is parsed four times takes less. A line that takes more goes to a worker.
LOCAL_WORK_MAX = 10_000
#: Limit of work in a worker. A script of 100 kB that is parsed four times takes less.
WORKER_WORK_MAX = 2_000_000
#: Work for a text of any length.
TEXT_WORK = 100
#: Limit of a word that is compared with rules. A longer one counts as not literal: no rule is nearly as long.
#: Characters.
WORD_CHARS_MAX = 4096
#: The end of a non-literal word that may name a program (at most 255 bytes). Characters.
NAME_CHARS_MAX = 300

#: Shell keywords, which are not commands. An unquoted one at the start changes the meaning of the line.
_KEYWORDS = listed("if then elif else fi for while until do done case esac in select function time coproc")
#: Unquoted characters without a special meaning in any shell, in addition to letters and digits of all scripts.
_PLAIN = frozenset("_./:=@%+,-^")
_UNKNOWN: Words = (None,)
_SIGN = re.compile(r"[^\w\s./:,@%+^~-]")
#: One line at a time: the grammar holds the interpreter's lock, and the event loop would wait for each thread in turn.
_lock = threading.Lock()


def commands_of(text: str) -> tuple[Words, ...]:
    """Return all commands in a line; None for a word that is not literal. Blocking: a long line is parsed in another
    process."""
    commands = None
    if len(text.encode("utf-8", "replace")) <= LOCAL_BYTES_MAX and len(_SIGN.findall(text)) <= LOCAL_SIGNS_MAX:
        with _lock:
            commands = find_commands(text, LOCAL_WORK_MAX, LOCAL_CPU_S_MAX)
    if commands is None:
        commands = parse_in_worker(text)
    return commands or (_UNKNOWN,)


def plain_words(text: str) -> tuple[str, ...] | None:
    """Return the literal words of one simple command, or None."""
    text = text.strip(" \t\n")
    if not text or len(text) > PLAIN_CHARS_MAX or any(map(is_invisible, text)):
        return None
    words: list[str] = []
    index = 0
    while index < len(text):
        if text[index] == " ":
            index += 1
            continue
        parsed = _word(text, index, strict=True)
        if parsed is None:
            return None
        word, end = parsed
        # An assignment or a keyword, unquoted at the start.
        if not words and ("=" in text[index:end] or text[index:end] in _KEYWORDS):
            return None
        words.append(word)
        index = end
    return tuple(words) if words and words[0] else None


def _word(text: str, start: int, *, strict: bool) -> tuple[str, int] | None:
    """Return the literal word at `start` and its end, or None if it is not literal or, if `strict`, may not be."""
    pieces: list[str] = []
    index = start
    while index < len(text):
        character = text[index]
        if character == " " or (not strict and character in "\t\n"):
            break
        if character == "'":
            end = text.find("'", index + 1)
            if end < 0:
                return None
            pieces.append(text[index + 1 : end])
            index = end + 1
        elif character == '"':
            quoted = _DOUBLE_QUOTED.match(text, index)
            if quoted is None:
                return None
            pieces.append(_QUOTED_ESCAPE.sub(lambda escape: "" if escape[1] == "\n" else escape[1], quoted[1]))
            index = quoted.end()
        elif character == "\\":
            if index + 1 == len(text):
                return None
            pieces.append("" if text[index + 1] == "\n" else text[index + 1])
            index += 2
        elif not _is_plain(text, index, start, strict=strict):
            return None
        else:
            pieces.append(character)
            index += 1
    return "".join(pieces), index


#: In double quotes `$` and the backtick are special, and the backslash before a few characters.
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\$`]|\\.)*)"', re.DOTALL)
_QUOTED_ESCAPE = re.compile(r'\\([$`"\\\n])')


def _is_plain(text: str, index: int, start: int, *, strict: bool) -> bool:
    character = text[index]
    if character in _PLAIN or character.isalnum():
        return True
    if character == "~":  # plain in HEAD~1; a home directory starts a word, or follows = or : in an assignment
        return index > start and (text[index - 1].isalnum() or text[index - 1] == "^")
    return not strict and character not in "$`*?[]{}()<>;&|~"


# --- every command in a line ---


class _TooMuch(Exception):
    """A line exceeds its budget."""


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
    return Parser(_language()).parse(source).root_node  # a new parser: threads must not share one


def find_commands(text: str, work_max: int, cpu_s_max: float = math.inf) -> tuple[Words, ...] | None:
    """Return all commands of a line, those after wrappers included. None if that exceeds the limits."""
    budget = _Budget(work_max, cpu_s_max)
    commands: dict[Words, None] = {}
    texts: set[str] = set()
    waiting: list[tuple[Words | str, int]] = [(text, 0)]
    words = 0
    try:
        while waiting:
            item, depth = waiting.pop()
            if len(commands) >= COMMANDS_MAX or words > LINE_WORDS_MAX or depth > DEPTH_MAX:
                commands[_UNKNOWN] = None
                break
            if isinstance(item, str):
                if item not in texts:
                    texts.add(item)
                    waiting += [(one, depth) for one in dict.fromkeys(_commands_of_text(item, budget))]
            elif item not in commands:
                budget.spend(len(item))
                commands[item] = None
                words += min(len(item), RULE_WORDS_MAX)
                waiting += [(inner, depth + isinstance(inner, str)) for inner in _run_by(item)]
    except _TooMuch:
        return None
    return tuple(dict.fromkeys(map(_for_rules, commands)))


def _for_rules(command: Words) -> Words:
    words = command[:RULE_WORDS_MAX]
    return tuple(None if word is None or len(word) > WORD_CHARS_MAX else word for word in words)


def _commands_of_text(text: str, budget: _Budget) -> Iterator[Words | str]:
    if len(text) > SHELL_LINE_CHARS_MAX or text.count("<<") > HEREDOCS_MAX:
        yield _UNKNOWN
        return
    source = text.encode("utf-8", "replace").replace(b"\0", b"")
    root = _parsed(source, budget)
    yield from _SyntaxTree(source, budget).commands(root)
    # The grammar misreads some texts. A command after a line break that starts with a backslash is an argument to it,
    # and two open brackets are always arithmetic, where bash also tries subshells: both are parsed again with a blank
    # in between. It splits words at a continued line, an escaped blank and odd white space, where the shell does not,
    # and so finds comments that do not exist: these are parsed again without. Real arithmetic has no commands except
    # words that name variables.
    split = _LINE_BREAK.sub(b"\n ", source)
    split = _BRACKETS.sub(b"( ", split) if root.has_error else split
    for variant in dict.fromkeys((split, source.replace(b"\\\n", b""), _NO_BLANK.sub(b"_", source))):
        if variant == source:
            continue
        commands = _SyntaxTree(variant, budget).commands(_parsed(variant, budget))
        yield from (words for words in commands if isinstance(words, str) or words[0] is not None)


_LINE_BREAK = re.compile(rb"\n(?=\\)")
_BRACKETS = re.compile(rb"\((?=\()")
_NO_BLANK = re.compile(rb"\\[ \t]|[\r\v\f]")
#: Programs that run their standard input: shells, and wrappers that start one.
_READ_INPUT = SHELLS | listed(". source su sudo ssh at batch")


class _SyntaxTree:
    """The syntax tree of one text."""

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
            if node.type == "heredoc_body":
                body = self._text(node)
                input_texts.append(body)
                yield from _BACKTICKS.findall(body)
            input_texts += self._input_texts(node)
            for command in self._commands_at(node):
                if node.type == "command":
                    reads_input = reads_input or any(word and program_name(word) in _READ_INPUT for word in command)
                yield command
        if reads_input:
            yield from input_texts

    def _commands_at(self, node: Node) -> Iterator[Words]:
        match node.type:
            case "command":
                if words := self._words_of(node):
                    yield words
            case "redirected_statement":
                yield from self._after_redirects(node)
            case "ERROR" if any(child.type == "command_name" for child in self._children(node)):
                yield self._words_of(node)  # {rm,x} is not a command to the grammar
            case "declaration_command" | "unset_command":
                first, *further = self._children(node)
                yield (self._text(first), *map(self._literal, further))

    def _input_texts(self, node: Node) -> Iterator[str]:
        """Yield texts that may be the standard input of a command."""
        match node.type:
            case "pipeline":
                commands = [self._words_of(child) for child in self._children(node) if child.type == "command"]
                yield from (" ".join(word or "*" for word in words[1:]) for words in commands if words[:1] in _PRINTING)
            case "herestring_redirect":
                yield from filter(None, (self._literal(child) for child in self._children(node) if child.is_named))

    def _after_redirects(self, node: Node) -> Iterator[Words]:
        """Yield words after a redirection. To the grammar those after `> file` are files, too, and those after `<< END`
        have their own nodes. To a shell they are words of the command or, after a semicolon, the next command."""
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


_PRINTING = (("echo",), ("printf",))
_BACKTICKS = re.compile(r"`([^`]+)`")


def _literal(text: str) -> str | None:
    if text == "{}":  # the placeholder of find and xargs, which is not expanded
        return text
    parsed = _word(text, 0, strict=False)
    return parsed[0] if parsed is not None and parsed[1] == len(text) else None


def _name(text: str) -> str | None:
    """Return the name of a program; for a path that is not literal ("$VENV/bin/python") its last part."""
    literal = _literal(text)
    if literal is None:
        tail = re.fullmatch(r'.*[$`}\w)"\']/([\w.+-]+)["\']?', text[-NAME_CHARS_MAX:], re.DOTALL)
        literal = tail[1] if tail is not None else None
    return literal


def _run_by(command: Words) -> Iterator[Words | str]:
    """Yield the commands and shell texts that a command runs."""
    first, rest = command[0], command[1:]
    if first is None:
        return
    name = program_name(first)
    if name != first:
        yield (name, *rest)
    elif name == "git":
        yield from _run_by_git(command)
    elif name in FINDERS:
        yield from _run_by_find(command)
    elif name == "eval":
        literal = [word for word in rest if word is not None]
        yield " ".join(literal) if len(literal) == len(rest) else _UNKNOWN
    elif name in SHELLS:
        yield from _run_by_shell(rest)
    elif name in ("tar", "bsdtar", "split"):
        yield from _texts(rest)
    elif name in WRAPPERS:
        yield from _wrapped(rest)


def _run_by_git(command: Words) -> Iterator[Words | str]:
    plain = without_git_options(command)
    if plain != command:
        yield plain
    elif command[1:2] and command[1] in GIT_WRAPPERS:
        yield from _wrapped(command[2:])


def _run_by_find(command: Words) -> Iterator[Words]:
    starts = [start for start, word in enumerate(command[:-1], start=1) if word in FIND_RUNS]
    yield from [_UNKNOWN] if len(starts) > WRAPPED_WORDS_MAX else (command[start:] for start in starts)


def _run_by_shell(rest: Words) -> Iterator[Words | str]:
    # A word that is not literal may be the option -c.
    option = next((index for index, word in enumerate(rest) if word is None or re.match(r"-\w*c", word)), len(rest))
    yield from (_UNKNOWN if word is None else word for word in rest[option + 1 :])


def _wrapped(rest: Words) -> Iterator[Words | str]:
    yield from _after_options(rest)
    yield from _texts(rest)


def _texts(rest: Words) -> Iterator[str]:
    """Yield texts to run: a whole word ('A=1 rm x'), or the value of an option (--command='rm x', --on=exec='rm x',
    -c'rm x', --to-command=rm)."""
    for word in rest:
        if word is None:
            continue
        if re.search(r"[\s;&|(`]", word):
            yield from {word: None, word.split("=", 1)[-1]: None, word.rsplit("=", 1)[-1]: None}
            yield from (word[2:], word[3:]) if re.match(r"-\w", word) else ()
        elif word.startswith("--") and "=" in word:
            yield word.split("=", 1)[1]


def _after_options(rest: Words) -> Iterator[Words]:
    """Yield every possible command of a wrapper: its options may have values, so each word is tried."""
    if len(rest) > WRAPPED_WORDS_MAX:
        yield _UNKNOWN
        return
    for index, word in enumerate(rest):
        if word is None or not (word.startswith("-") or "=" in word):
            yield rest[index:]
        elif re.match(r"-[A-Za-z]\w", word):  # env -Srm x
            yield (word[2:], *rest[index + 1 :])


def main() -> None:
    """Entry point of the process that `parse_in_worker` starts."""
    run_worker(lambda text: find_commands(text, WORKER_WORK_MAX))
