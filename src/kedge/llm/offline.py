"""The built-in model: no network, no key, nothing to install. It does a few plain requests with the real tools.

It makes the first command of the README work on any machine, and lets a newcomer see approvals, diffs, cancel and undo
before any key is at hand. It keeps nothing between two Steps: what to do next is read off the last request of the user
and the results of the calls made since.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import msgspec

from kedge.core.transcript import SUMMARY, Message, ShellCommand, ToolCall, ToolResult
from kedge.core.untrusted_text import json_object
from kedge.llm.base import ModelEnd, ModelPart, ModelRequest, TextDelta
from kedge.llm.look import phrase
from kedge.llm.offline_requests import Next, Used, understood

#: Between two pieces, so that one sees it stream.
PIECE_S: Final = 0.01
#: Pieces of one answer: with the pause above the whole answer takes at most about a second.
PIECES_MAX: Final = 100
#: Words of a piece, unless there would be too many pieces.
PIECE_WORDS_MIN: Final = 3
#: Calls of one Run. No request takes as many; one that did would go round in circles.
CALLS_MAX: Final = 8
#: Prompts named in a summary.
PROMPTS_TOLD_MAX: Final = 50

#: What a config.toml needs for a real model; it is printed, and a test reads it back.
EXAMPLE_CONFIG: Final = """\
model = "openai/gpt-5-mini"

[providers.openai]
type = "openai"                          # any OpenAI-compatible endpoint
base_url = "https://api.openai.com/v1"
api_key = "$OPENAI_API_KEY"              # read from the environment
models = [{ id = "gpt-5-mini" }]
"""

#: What it understands; it is printed, and a test tries them all.
EXAMPLES: Final = (
    "what is in this directory?",
    "read README.md",
    "find TODO",
    "run `git status`",
    'replace "old" with "new" in notes.txt',
    "write notes.txt with some text",
)


class OfflineModel:
    provider = "kedge"
    name = "offline"

    def __init__(self, config_path: str = "", piece_s: float = PIECE_S) -> None:
        #: Where the user's config.toml is, if the caller knows; otherwise the answer says how to find out.
        self._where = f"to {config_path}" if config_path else "to your config.toml (`kedge config path` says where)"
        self._piece_s = piece_s

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        async with aclosing(self._parts(request)) as parts:
            yield parts

    async def _parts(self, request: ModelRequest) -> AsyncGenerator[ModelPart, None]:
        found = self._next(request)
        if isinstance(found, str):
            for piece in pieces(found):
                yield TextDelta(piece)
                await asyncio.sleep(self._piece_s)
            yield ModelEnd("end_turn")
        else:
            calls = (ToolCall(f"call_{uuid.uuid4().hex}", use.tool, _json(use.given)) for use in found)
            yield ModelEnd("tool_use", tuple(calls))

    def _next(self, request: ModelRequest) -> Next:
        place, prompt = _last_prompt(request.messages)
        if prompt.startswith("Summarize") and (not request.tools or "conversation" in prompt[:50]):
            return _summary(request.messages[:place])
        wish = understood(prompt) if request.tools else None
        if wish is None:
            return self._says_what_it_can(has_tools=bool(request.tools))
        used = _used(request.messages[place + 1 :])
        found = wish.next(used) if len(used) < CALLS_MAX else "I have tried several things, and gave up."
        if not isinstance(found, str):
            offered = {tool.name for tool in request.tools}
            missing = next((use.tool for use in found if use.tool not in offered), "")
            if not missing:
                return found
            found = f"That takes the tool {missing}, which is switched off here."
        return f"{found}\n\nThis is kedge's built-in offline model; to use a real one, add it {self._where}."

    def _says_what_it_can(self, *, has_tools: bool) -> str:
        given = (
            "I can do these with kedge's tools" if has_tools else "Given tools (there are none here), I could do these"
        )
        return (
            "I cannot answer that: no language model is configured, and I am only kedge's built-in offline model. "
            f"{given}, in about these words:\n\n"
            + "".join(f"  {example}\n" for example in EXAMPLES)
            + f"\nTo use a real model, add this {self._where}:\n\n{EXAMPLE_CONFIG}\n"
            "This is kedge's built-in offline model; the lines above configure a real one."
        )


def pieces(text: str) -> list[str]:
    """The text in pieces of a few words, with their blanks: together they are the text again."""
    words = re.findall(r"\s*\S+|\s+$", text)
    size = max(PIECE_WORDS_MIN, -(-len(words) // PIECES_MAX))
    return ["".join(words[start : start + size]) for start in range(0, len(words), size)]


# --- the transcript ----------------------------------------------------------------------------------------------


def _last_prompt(messages: tuple[Message, ...]) -> tuple[int, str]:
    """Its place among the messages, and its text. Commands that people ran themselves are no prompts."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "user" and not messages[place].all(ShellCommand):
            return place, messages[place].text.strip()
    return -1, ""


def _used(messages: tuple[Message, ...]) -> list[Used]:
    calls = {call.id: call for message in messages for call in message.all(ToolCall)}
    return [
        Used(
            json_object(calls[result.tool_call_id].input),
            result.content,
            json_object(result.metadata),
            result.is_error,
            message.session_id,
        )
        for message in messages
        for result in message.all(ToolResult)
        if result.tool_call_id in calls
    ]


def _json(given: Mapping[str, Any]) -> str:
    return msgspec.json.encode(given).decode()


def _summary(messages: tuple[Message, ...]) -> str:
    """What was asked so far, word for word: without a language model there is nothing better to be had."""
    asked: list[str] = []
    for message in messages:
        if message.role == "user" and message.text.startswith(SUMMARY):
            asked += [line[2:] for line in message.text.split("\n") if line.startswith("- ")]
        elif message.role == "user" and message.text.strip():
            asked.append(phrase(message.text.strip().split("\n")[0]))
    if not asked:
        return "Nothing was asked so far."
    more = f"(and {len(asked) - PROMPTS_TOLD_MAX} before these)\n" if len(asked) > PROMPTS_TOLD_MAX else ""
    return f"The user asked, in this order:\n\n{more}" + "\n".join(f"- {line}" for line in asked[-PROMPTS_TOLD_MAX:])
