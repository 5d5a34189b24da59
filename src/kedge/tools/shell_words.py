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

`runs_others` is what keeps `bash(find *)` from covering `find -exec`: see shell_programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from kedge.core.shown import is_unseen
from kedge.tools.shell_programs import (
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

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

Words = tuple[str | None, ...]

#: Of a line that is read as plain words. A longer one is nothing a rule was written for. Characters.
PLAIN_CHARS_MAX = 10_000
#: Of a line whose commands are searched; longer is longer than a program's argument may be. Characters.
LINE_CHARS_MAX = 131_072
#: Of here-documents in a line: the grammar's work grows with their square.
HEREDOCS_MAX = 100
#: Of commands looked at per line, those behind wrappers included: more are taken as one that could be anything.
COMMANDS_MAX = 2000
#: Of words of a wrapper (`env a b c rm x`) that are each tried as the command it runs.
WRAPPED_WORDS_MAX = 64
#: Of `sh -c` inside `sh -c`. Deeper is taken as a command that could be anything.
DEPTH_MAX = 5

#: Keywords and forms of the shell that are no commands; unquoted in front they change what the line is.
_KEYWORDS = listed("if then elif else fi for while until do done case esac in select function time coproc")
#: Characters that are themselves, unquoted, in every shell. Letters and digits of any script come on top.
_PLAIN = frozenset("_./:=@%+,-^")
_UNKNOWN: Words = (None,)


class Line(Struct, frozen=True):
    #: The words, if the whole line is one simple command with literal words.
    words: tuple[str, ...] | None
    #: Every command found in it; None for a word that is not literal.
    commands: tuple[Words, ...]
    #: The words run other programs or code, or write where they say: only a rule that spells them all covers it.
    runs_others: bool


def read_line(text: str) -> Line:
    words = plain_words(text)
    return Line(words, _commands(text), words is not None and runs_others(words))


def plain_words(text: str) -> tuple[str, ...] | None:
    """The literal words of one simple command, or None."""
    text = text.strip(" \t\n")
    if not text or len(text) > PLAIN_CHARS_MAX or any(map(is_unseen, text)):
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
    word = ""
    start = place
    while place < len(text):
        character = text[place]
        if character == " " or (not strict and character in "\t\n"):
            break
        if character == "'":
            end = text.find("'", place + 1)
            if end < 0:
                return None
            word += text[place + 1 : end]
            place = end + 1
        elif character == '"':
            quoted = _DOUBLE_QUOTED.match(text, place)
            if quoted is None:
                return None
            word += _QUOTED_ESCAPE.sub(lambda found: "" if found[1] == "\n" else found[1], quoted[1])
            place = quoted.end()
        elif character == "\\":
            if place + 1 == len(text):
                return None
            word += "" if text[place + 1] == "\n" else text[place + 1]
            place += 2
        elif not _is_plain(text, place, start, strict=strict):
            return None
        else:
            word += character
            place += 1
    return word, place


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


@cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _commands(text: str) -> tuple[Words, ...]:
    found: dict[Words, None] = {}
    waiting: list[tuple[Words | str, int]] = [(text, 0)]
    while waiting:
        item, depth = waiting.pop()
        if len(found) >= COMMANDS_MAX or depth > DEPTH_MAX:
            found[_UNKNOWN] = None
            break
        if isinstance(item, str):
            waiting += [(command, depth) for command in islice(_commands_of_text(item), COMMANDS_MAX + 1)]
        elif item not in found:
            found[item] = None
            waiting += [(inner, depth + isinstance(inner, str)) for inner in _inside(item)]
    return tuple(found)


def _commands_of_text(text: str) -> Iterator[Words | str]:
    if len(text) > LINE_CHARS_MAX or text.count("<<") > HEREDOCS_MAX:
        yield _UNKNOWN
        return
    source = text.encode("utf-8", "replace").replace(b"\0", b"")
    root = _parser().parse(source).root_node
    yield from _commands_below(root)
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
        found = _commands_below(_parser().parse(again).root_node)
        yield from (words for words in found if isinstance(words, str) or words[0] is not None)


_LINE_BREAK = re.compile(rb"\n(?=\\)")
_BRACKETS = re.compile(rb"\((?=\()")
_NO_BLANK = re.compile(rb"\\[ \t]|[\r\v\f]")
#: They run what they read from their standard input; of the wrappers those that begin a shell.
_READ_INPUT = SHELLS | listed(". source su sudo ssh at batch")


def _commands_below(root: Node) -> Iterator[Words | str]:
    nodes = [root]
    input_texts: list[str] = []
    reads_input = False
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.type == "command":
            words = _words_of(node)
            reads_input = reads_input or any(word and program_name(word) in _READ_INPUT for word in words)
            if words:
                yield words
        elif node.type == "redirected_statement":
            yield from _behind_redirects(node)
        elif node.type == "pipeline":
            parts = [_words_of(child) for child in node.named_children if child.type == "command"]
            input_texts += [" ".join(word or "*" for word in words[1:]) for words in parts if words[:1] in _SAYING]
        elif node.type == "ERROR" and any(child.type == "command_name" for child in node.children):
            yield _words_of(node)  # {rm,x} is no command to the grammar
        elif node.type in ("declaration_command", "unset_command"):
            yield (_text(node.children[0]), *(_literal(_text(child)) for child in node.children[1:]))
        elif node.type == "heredoc_body":
            input_texts.append(_text(node))
            yield from _BACKTICKS.findall(_text(node))
        elif node.type == "herestring_redirect":
            input_texts += filter(None, (_literal(_text(child)) for child in node.named_children))
    if reads_input:
        yield from input_texts


_SAYING = (("echo",), ("printf",))
_BACKTICKS = re.compile(r"`([^`]+)`")


def _behind_redirects(node: Node) -> Iterator[Words]:
    """To the grammar, words behind `> file` are files, too, and those behind `<< END` something of its own. To a shell
    they are words of the command; or, behind a semicolon, the next one."""
    body, further = node.child_by_field_name("body"), list[str | None]()
    for redirect in node.children_by_field_name("redirect"):
        named = [child for child in redirect.named_children if child.type != "file_descriptor"]
        if redirect.type == "file_redirect":
            further += [_literal(_text(child)) for child in named[1:]]
        elif redirect.type == "heredoc_redirect":
            further += [_literal(_text(child)) for child in redirect.children_by_field_name("argument")]
    if not further or body is None:
        return
    yield tuple(further)
    while body.type != "command" and body.named_children:
        body = body.named_children[-1]
    if body.type == "command":
        yield (*_words_of(body), *further)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _words_of(command: Node) -> Words:
    words: list[str | None] = []
    for child in command.children:
        if child.type == "command_name":
            words.append(_name(_text(child)))
        elif child.is_named and child.type != "variable_assignment" and not child.type.endswith("_redirect"):
            words.append(_literal(_text(child)))
    return tuple(words)


def _literal(text: str) -> str | None:
    if text == "{}":  # what find and xargs put things into; no braces to expand
        return text
    read = _word(text, 0, strict=False)
    return read[0] if read is not None and read[1] == len(text) else None


def _name(text: str) -> str | None:
    """Of a program at a place that is not literal ("$VENV/bin/python") the last part is enough to know it."""
    literal = _literal(text)
    if literal is None:
        tail = re.fullmatch(r'.*[$`}\w)"\']/([\w.+-]+)["\']?', text, re.DOTALL)
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
        for place, word in enumerate(command):
            if word in FIND_RUNS and command[place + 1 :]:
                yield command[place + 1 :]
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
