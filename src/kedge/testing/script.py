"""The script language of prompts for `ScriptedEndpoint`.

A user message that starts with `script:` carries directives, separated by ` | `:

    say WORDS             streams the words, one per Delta; line breaks in them are kept
    think WORDS           streams reasoning; in Anthropic's format with a signature at its end
    redact DATA           sends encrypted reasoning; only in Anthropic's format
    words N               streams w1 w2 ... wN
    echo                  streams "You said: " and the text of the last user message
    pause MS              waits this long before each following word (default 0), also after tools
    wait MS               waits this long once; before the first word, the head of the response waits too
    hold KEY              waits until KEY is released; once released, a key stays so
    head                  sends the head of the response, without a word
    tool NAME {json}      calls a tool and ends the Step; tools next to each other are called in one Step. The rest is
                          the input, unchanged, valid or not
    step                  between two tools: the second is called in the next Step
    usage IN OUT [READ [WRITE]]
                          reports this usage; READ and WRITE are the parts of IN read from and written to a cache
    finish REASON         ends with this finish_reason instead of stop
    fail STATUS [OPTIONS] [TEXT]
                          an HTTP error, or an error inside the stream after the first word. Options:
                          times=N (see below), retry-after=S (default for 429: 1), code=NAME (the type of the error,
                          such as insufficient_quota)
    flaky N STATUS [TEXT] short for: fail STATUS times=N [TEXT]
    cut [times=N]         drops the connection
    garbage [times=N]     sends an invalid event, and ends
    hang                  sends nothing more, and does not end
    tag NAME              names the whole request, so that streams can be counted by tag
    title DIRECTIVE       the reply to the request for a title: DIRECTIVE is say, wait, hold, fail, cut, garbage or
    summary DIRECTIVE     hang; likewise for the request for a summary. May occur several times

    script: tag a | say hello there | hold k1 | tool view {"path": "x"} | say done
    script: tool a {} | step | tool b {} | tool c {"broken | say three steps
    script: fail 429 retry-after=0 times=2 | say at the third attempt | title hold k2

With times=N a directive takes effect the first N times that it is reached, and is then skipped: so a retry succeeds.

A request that ends with tool results continues after the directives of those tools. So does one whose script is
followed by a plain user message after a tool's result (a folded prompt). Every other request without a script is
answered with `echo`. A plain prompt sent after a Run that was cancelled *in* a tool looks like a folded one: begin it
with `script:` if that matters.

A request whose system prompt begins with "Write a title" is answered with "A scripted title", one whose last user
message begins with "Summarize" with "A scripted summary.", unless the script in it overrides that. These are the
*asides* of the endpoint: it does not count them among its requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MARK = "script:"
#: The first words of the system prompt of a title request, and of the last user message of a summary request.
TITLE_MARK = "Write a title"
SUMMARY_MARK = "Summarize"
#: The default replies to such requests.
ASIDES = {"title": "script: say A scripted title", "summary": "script: say A scripted summary."}

Json = dict[str, Any]


class ScriptError(Exception):
    """The script is invalid; the message names the directive."""


@dataclass(frozen=True, slots=True)
class Directive:
    verb: str
    rest: str
    #: The script and the index in it, by which `times` counts.
    location: tuple[str, int]

    def numbers(self, count: int) -> list[int]:
        """Return the first `count` words as numbers."""
        words = self.rest.split()[:count]
        if len(words) < count or not all(word.isascii() and word.isdigit() for word in words):
            raise ScriptError(f"{self.verb!r} needs {count} number(s), not {self.rest!r}")
        return [int(word) for word in words]

    def after(self, words: int) -> str:
        """Return the text after so many words."""
        return " ".join(self.rest.split()[words:])

    def inner(self) -> Directive:
        """Return the checked directive inside `title` or `summary`."""
        return _directive(self.rest, self.location)

    def options(self, words: int) -> tuple[dict[str, str], str]:
        """Return the options after so many words, and the text after those."""
        options: dict[str, str] = {}
        rest = self.rest.split()[words:]
        while rest and (option := _OPTION.fullmatch(rest[0])):
            options[option[1]] = option[2]
            rest.pop(0)
        if not options.get("times", "1").isdigit():
            raise ScriptError(f"'times' of {self.verb!r} must be a number, not {options['times']!r}")
        return options, " ".join(rest)


_OPTION = re.compile(r"(times|retry-after|code)=(\S+)")


def _nothing(directive: Directive) -> None:
    if directive.rest:
        raise ScriptError(f"{directive.verb!r} takes no argument, got {directive.rest!r}")


def _something(directive: Directive) -> None:
    if not directive.rest:
        raise ScriptError(f"{directive.verb!r} needs an argument")


def _times(directive: Directive) -> None:
    _, rest = directive.options(0)
    if rest:
        raise ScriptError(f"{directive.verb!r} takes only times=N, got {rest!r}")


def _failure(directive: Directive) -> None:
    directive.numbers(1)
    directive.options(1)


def _usage(directive: Directive) -> None:
    directive.numbers(min(max(len(directive.rest.split()), 2), 4))


def _aside(directive: Directive) -> None:
    inner = directive.inner()
    if inner.verb not in _IN_ASIDES:
        raise ScriptError(f"{directive.verb!r} takes {', '.join(_IN_ASIDES)}, not {inner.verb!r}")


def _numbers(count: int) -> Callable[[Directive], None]:
    def check(directive: Directive) -> None:
        directive.numbers(count)

    return check


_CHECKS: dict[str, Callable[[Directive], None]] = {
    "say": _something,
    "think": _something,
    "redact": _something,
    "words": _numbers(1),
    "echo": _nothing,
    "pause": _numbers(1),
    "wait": _numbers(1),
    "hold": _something,
    "head": _nothing,
    "tool": _something,
    "step": _nothing,
    "usage": _usage,
    "finish": _something,
    "fail": _failure,
    "flaky": _numbers(2),
    "cut": _times,
    "garbage": _times,
    "hang": _nothing,
    "tag": _something,
    "title": _aside,
    "summary": _aside,
}
_IN_ASIDES = ("say", "wait", "hold", "fail", "cut", "garbage", "hang")


def parse(text: str) -> tuple[Directive, ...]:
    """Return the checked directives of a message that starts with `script:`."""
    pieces = text.removeprefix(MARK).split(" | ")
    return tuple(_directive(piece, (text, index)) for index, piece in enumerate(pieces))


def _directive(piece: str, location: tuple[str, int]) -> Directive:
    verb, _, rest = piece.strip().partition(" ")
    directive = Directive(verb, rest.strip(), location)
    check = _CHECKS.get(verb)
    if check is None:
        raise ScriptError(f"unknown directive {verb!r}; known are {', '.join(_CHECKS)}")
    check(directive)
    return directive


def text_of(message: Json) -> str:
    """Return the text of a message, whose content is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n\n".join(part.get("text", "") for part in content if part.get("type") == "text")


def last_user_text(messages: list[Json]) -> str:
    return next((text_of(message) for message in reversed(messages) if message.get("role") == "user"), "")


@dataclass(frozen=True, slots=True)
class ScriptPlan:
    """The remaining directives of a request, and the tag of its script."""

    directives: tuple[Directive, ...]
    tag: str = ""
    #: A key of ASIDES; empty for a request of a Run.
    aside: str = ""

    def of_this_step(self) -> Iterator[Directive]:
        """Iterate up to the tools that end the Step: the rest is for the request with their results."""
        called = False
        for directive in self.directives:
            if called and directive.verb != "tool":
                return
            called = called or directive.verb == "tool"
            yield directive


def plan(messages: list[Json]) -> ScriptPlan:
    """Return the plan for messages in the shape of chat completions, with the system prompt."""
    if aside := _aside_of(messages):
        return _plan_aside(aside, messages)
    start = next((index for index in reversed(range(len(messages))) if _is_script(messages[index])), None)
    if start is None:
        return ScriptPlan(_ECHO)
    script = tuple(directive for directive in parse(text_of(messages[start])) if directive.verb not in ASIDES)
    # A tag holds from the start of the request, wherever it occurs, and for the plain prompts that follow.
    tag = next((directive.rest for directive in script if directive.verb == "tag"), "")
    later = messages[start + 1 :]
    results = sum(message.get("role") == "tool" for message in later)
    spoken = any(message.get("role") == "assistant" and not message.get("tool_calls") for message in later)
    joined = any(message.get("role") == "user" for message in later)
    if joined and (spoken or not results):
        return ScriptPlan(_ECHO, tag)  # a new prompt after the script's Run
    return ScriptPlan(_after_tools(script, results), tag)


def _aside_of(messages: list[Json]) -> str:
    system = next((text_of(message) for message in messages if message.get("role") == "system"), "")
    if system.startswith(TITLE_MARK):
        return "title"
    return "summary" if last_user_text(messages).startswith(SUMMARY_MARK) else ""


def _plan_aside(aside: str, messages: list[Json]) -> ScriptPlan:
    """Plan the reply to an aside. The script may be anywhere in its messages: alone, or quoted in a longer text."""
    lines = [line for message in messages for line in text_of(message).splitlines() if MARK in line]
    directives: tuple[Directive, ...] = ()
    for line in lines:
        # A quote may contain half of a script, which has no effect.
        with suppress(ScriptError):
            script = parse(line[line.index(MARK) :])
            directives = tuple(directive.inner() for directive in script if directive.verb == aside)
    if not any(directive.verb == "say" for directive in directives):
        directives += parse(ASIDES[aside])
    return ScriptPlan(directives, aside=aside)


_ECHO = parse("script: echo")


def _is_script(message: Json) -> bool:
    return message.get("role") == "user" and text_of(message).startswith(MARK)


def _after_tools(script: tuple[Directive, ...], results: int) -> tuple[Directive, ...]:
    if not results:
        return script
    tools = [index for index, directive in enumerate(script) if directive.verb == "tool"]
    if results > len(tools):
        raise ScriptError(f"{results} tool results came for a script with {len(tools)} tools")
    done = tools[results - 1] + 1
    pauses = tuple(directive for directive in script[:done] if directive.verb == "pause")
    return pauses[-1:] + script[done:]
