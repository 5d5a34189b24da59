"""The little language in which a prompt tells `ScriptedEndpoint` what to answer.

A user message that starts with `script:` carries directives, separated by ` | `:

    say WORDS             streams the words, one per Delta
    think WORDS           the same as reasoning
    words N               streams w1 w2 ... wN
    echo                  streams "You said: " and the text of the last user message
    pause MS              waits this long before each of the words that follow (default 0), also behind tools
    hold KEY              waits until KEY is released; once released, a key stays so
    tool NAME {json}      calls a tool and ends the Step; tools next to each other are called in one Step
    usage IN OUT          what the reply is said to have cost
    finish REASON         ends with this finish_reason instead of stop
    fail STATUS [TEXT]    an HTTP error, or an error inside the stream if something was said already
    flaky N STATUS [TEXT] fails like that the first N times that this place of this script is reached, then goes on
    cut                   drops the connection
    hang                  says nothing more, ever
    tag NAME              names the whole request, so that streams can be counted by tag

    script: tag a | say hello there | hold k1 | tool view {"path": "x"} | say done

A request that ends with tool results goes on behind the directives of those tools. So does one whose script was joined
by a plain user message after a tool's result (a folded prompt). Every other request without a script of its own is
answered with `echo`. Note that a plain prompt sent after a Run that was cancelled *in* a tool looks just like a folded
one: begin it with `script:` if that matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MARK = "script:"

Json = dict[str, Any]


class ScriptError(Exception):
    """The script cannot be understood; the message says which directive."""


@dataclass(frozen=True, slots=True)
class Directive:
    verb: str
    rest: str
    #: Which place of which script this is: what `flaky` counts by.
    place: tuple[str, int]

    def numbers(self, count: int) -> list[int]:
        """The first `count` words as numbers."""
        words = self.rest.split()[:count]
        if len(words) < count or not all(word.isascii() and word.isdigit() for word in words):
            raise ScriptError(f"{self.verb!r} needs {count} number(s), not {self.rest!r}")
        return [int(word) for word in words]

    def after(self, words: int) -> str:
        """The rest behind so many words."""
        return " ".join(self.rest.split()[words:])


def _nothing(directive: Directive) -> None:
    if directive.rest:
        raise ScriptError(f"{directive.verb!r} takes nothing, not {directive.rest!r}")


def _something(directive: Directive) -> None:
    if not directive.rest:
        raise ScriptError(f"{directive.verb!r} needs something behind it")


def _numbers(count: int) -> Callable[[Directive], None]:
    def check(directive: Directive) -> None:
        directive.numbers(count)

    return check


_CHECKS: dict[str, Callable[[Directive], None]] = {
    "say": _something,
    "think": _something,
    "words": _numbers(1),
    "echo": _nothing,
    "pause": _numbers(1),
    "hold": _something,
    "tool": _something,
    "usage": _numbers(2),
    "finish": _something,
    "fail": _numbers(1),
    "flaky": _numbers(2),
    "cut": _nothing,
    "hang": _nothing,
    "tag": _something,
}


def parse(text: str) -> tuple[Directive, ...]:
    """The directives of a message that starts with `script:`, checked."""
    found: list[Directive] = []
    for index, piece in enumerate(text.removeprefix(MARK).split(" | ")):
        verb, _, rest = piece.strip().partition(" ")
        directive = Directive(verb, rest.strip(), (text, index))
        check = _CHECKS.get(verb)
        if check is None:
            raise ScriptError(f"no directive is called {verb!r}; there are {', '.join(_CHECKS)}")
        check(directive)
        found.append(directive)
    return tuple(found)


def text_of(message: Json) -> str:
    """The text of a message, whose content is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n\n".join(part.get("text", "") for part in content if part.get("type") == "text")


def last_user_text(messages: list[Json]) -> str:
    return next((text_of(message) for message in reversed(messages) if message.get("role") == "user"), "")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is still to be done for a request, and the tag of its script."""

    directives: tuple[Directive, ...]
    tag: str = ""


def plan(messages: list[Json]) -> Plan:
    start = next((index for index in reversed(range(len(messages))) if _is_script(messages[index])), None)
    if start is None:
        return Plan(_ECHO)
    script = parse(text_of(messages[start]))
    # A tag counts from the first word of the request, wherever it stands, and for the plain prompts that follow.
    tag = next((directive.rest for directive in script if directive.verb == "tag"), "")
    later = messages[start + 1 :]
    results = sum(message.get("role") == "tool" for message in later)
    spoken = any(message.get("role") == "assistant" and not message.get("tool_calls") for message in later)
    joined = any(message.get("role") == "user" for message in later)
    if joined and (spoken or not results):
        return Plan(_ECHO, tag)  # a prompt of its own, after the script's Run
    return Plan(_behind_tools(script, results), tag)


_ECHO = parse("script: echo")


def _is_script(message: Json) -> bool:
    return message.get("role") == "user" and text_of(message).startswith(MARK)


def _behind_tools(script: tuple[Directive, ...], results: int) -> tuple[Directive, ...]:
    if not results:
        return script
    tools = [index for index, directive in enumerate(script) if directive.verb == "tool"]
    if results > len(tools):
        raise ScriptError(f"{results} tool results came for a script with {len(tools)} tools")
    done = tools[results - 1] + 1
    pauses = tuple(directive for directive in script[:done] if directive.verb == "pause")
    return pauses[-1:] + script[done:]
