"""The built-in model: no network, no key, no language model. It carries out a few plain requests with the real tools.

It makes the first command of the README work on any machine and shows approvals, diffs, cancel and undo before a key is
configured. It keeps no state between two Steps: each request is a generator of tool calls, and every Step replays it
with the results in the transcript.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import msgspec

from kedge.core.reversal import Reversal
from kedge.core.transcript import Message, ShellCommand, ToolCall, ToolResult
from kedge.core.untrusted_text import json_object, visible
from kedge.llm.base import ModelEnd, ModelPart, ModelRequest, TextDelta

#: Pause between two pieces, so that the answer visibly streams. Seconds.
PIECE_S: Final = 0.01
#: Pieces of one answer: with this pause, an answer takes at most about a second.
PIECES_MAX: Final = 100
#: A longer prompt is not a plain request. Characters.
REQUEST_CHARS_MAX: Final = 1000
#: Lines of a tool result repeated in the answer, and characters of each; the result itself holds the rest.
LINES_MAX: Final = 60
LINE_CHARS_MAX: Final = 300
#: The longest that the bash tool waits for a command.
COMMAND_S_MAX: Final = 600

EXAMPLES: Final = (
    "what is in this directory?",
    "read README.md",
    "find TODO",
    "run `git status`",
    'replace "old" with "new" in notes.txt',
)
EXAMPLE_CONFIG: Final = """\
model = "openai/gpt-5-mini"

[providers.openai]
type = "openai"                          # any OpenAI-compatible endpoint
base_url = "https://api.openai.com/v1"
api_key = "$OPENAI_API_KEY"              # read from the environment
models = [{ id = "gpt-5-mini" }]
"""
ABOUT: Final = (
    "No language model is configured. This is kedge's built-in offline model. It understands only these requests:\n\n"
    + "```\n"
    + "".join(f"{example}\n" for example in EXAMPLES)
    + "```\n\nTo use a real model, add this to your config.toml (`kedge config path` prints its path):\n\n"
    + f"```toml\n{EXAMPLE_CONFIG}```\n"
)
FOOTER: Final = (
    "This is kedge's built-in offline model. To use a real model, add one to your config.toml "
    "(`kedge config path` prints its path)."
)


class _Result(msgspec.Struct, frozen=True):
    """A result of a tool call; `metadata` is what the tool reports to front ends."""

    content: str
    metadata: dict[str, Any]
    session_id: str


#: Yields tool calls (name and arguments), receives their results, and returns the answer.
Script = Generator[tuple[str, dict[str, Any]], _Result, str]


def _list(path: str = ".") -> Script:
    listing = yield "ls", {"path": path, "depth": 1}
    rows = [row for row in listing.content.split("\n") if row.startswith("  ")]
    folders = sum(bool(re.search(r"/(?: \(.*\))?$", row)) for row in rows)
    name = "This directory" if path == "." else f"{path.rstrip('/')}/"
    return f"{name} contains {_count(len(rows) - folders, 'file')} and {_count(folders, 'folder')}.\n\n{_block(rows)}"


def _read(path: str) -> Script:
    view = yield "view", {"path": path, "limit": LINES_MAX}
    lines, total = re.findall(r"^ *\d+\t(.*)$", view.content, re.MULTILINE), view.metadata.get("lines")
    if not lines:
        return view.content  # an empty file, a picture or a binary file
    if total == len(lines):
        return f"{path} contains:\n\n{_block(lines)}"
    return f"{path} has {total or 'very many'} lines. The first {len(lines)}:\n\n{_block(lines)}"


def _find(text: str, path: str = ".") -> Script:
    grep = yield "grep", {"pattern": text, "path": path, "literal": True, "ignore_case": True}
    lines, files = _count(grep.metadata.get("matches", 0), "line"), _count(grep.metadata.get("files", 0), "file")
    shown = _block(grep.content.splitlines()) if grep.metadata.get("matches") else grep.content
    return f'"{text}" occurs on {lines} in {files}:\n\n{shown}'


def _run(command: str) -> Script:
    bash = yield "bash", {"command": command, "timeout_s": COMMAND_S_MAX}
    code = bash.metadata.get("exit_code")
    output = bash.content.removesuffix(f"\n\nExit code {code}")
    return f"`{command}` ended with exit code {code}:\n\n{_block(output.splitlines(), from_end=True)}"


def _replace(old: str, new: str, path: str) -> Script:
    yield "view", {"path": path, "limit": LINES_MAX}  # the edit tool requires that the file was read
    edit = yield "edit", {"path": path, "old_string": old, "new_string": new, "replace_all": True}
    diff = _block(str(edit.metadata.get("diff", "")).rstrip("\n").split("\n"), "diff")
    summary, _, _ = edit.content.partition("\n")
    return f"{summary}\n\n{diff}\n\nUndo with: kedge sessions undo {edit.session_id}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _block(lines: list[str], language: str = "", *, from_end: bool = False) -> str:
    """Return the lines as a code block of Markdown, which no line of them can end."""
    text = _cut(lines, from_end=from_end)
    if not text:
        return ""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def _cut(lines: list[str], *, from_end: bool) -> str:
    rows = [line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}…" for line in lines]
    if len(lines) <= LINES_MAX:
        return "\n".join(rows)
    more = f"... ({len(lines) - LINES_MAX} more lines)"
    return "\n".join([more, *rows[-LINES_MAX:]] if from_end else [*rows[:LINES_MAX], more])


_QUOTED: Final = r"\"[^\"]+\"|'[^']+'|`[^`]+`"
_PATH: Final = rf"(?P<path>{_QUOTED}|(?!\w+://)\S+?)"
#: Single spaces instead of repeats bound the time of a match for any prompt.
_REQUESTS: Final[tuple[tuple[str, Callable[..., Script]], ...]] = (
    (r"(?:list|what is in) (?:this directory|the files|files)|list|ls", _list),
    (rf"(?:list|ls|what is in) {_PATH}", _list),
    (rf"(?:read|show) {_PATH}", _read),
    (rf"find (?P<text>{_QUOTED}|.+?)(?: in {_PATH})?", _find),
    (rf"replace (?P<old>{_QUOTED}|.+?) with (?P<new>{_QUOTED}|.+?) in {_PATH}", _replace),
)
#: A command is taken verbatim, to the last character. "Run the tests" is not a command.
_COMMAND: Final = r"run (?!(?:the|this|my|all|a|an|it)\b)(?P<command>.+)"


def understand(prompt: str) -> Script | None:
    """Return the script of a request, or None. A request is one line: text piped in before a prompt is not one."""
    if len(prompt) > REQUEST_CHARS_MAX or "\n" in prompt or "\0" in prompt:
        return None
    plain = re.sub(r"(?:\?|(?<=[\w\"'`/])\.)$", "", prompt)
    for pattern, script, text in [(_COMMAND, _run, prompt), *((*request, plain) for request in _REQUESTS)]:
        if match := re.fullmatch(pattern, text, re.IGNORECASE):
            return script(**{key: _unquoted(value) for key, value in match.groupdict().items() if value})
    return None


def _unquoted(text: str) -> str:
    return text[1:-1] if re.fullmatch(_QUOTED, text) else text


class OfflineModel:
    provider = "kedge"
    name = "offline"

    def __init__(self, piece_s: float = PIECE_S) -> None:
        self._piece_s = piece_s

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        async with aclosing(self._parts(request)) as parts:
            yield parts

    async def _parts(self, request: ModelRequest) -> AsyncGenerator[ModelPart, None]:
        step = _next_step(request)
        if isinstance(step, ToolCall):
            yield ModelEnd("tool_use", (step,))
            return
        for piece in pieces(visible(step, mark_ends=False)):
            yield TextDelta(piece)
            await asyncio.sleep(self._piece_s)
        yield ModelEnd("end_turn")


def _is_prompt(message: Message) -> bool:
    return message.role == "user" and not message.all(ShellCommand) and not message.all(Reversal)


def _next_step(request: ModelRequest) -> ToolCall | str:
    """Return the next tool call of the last request of the user, or the answer."""
    prompts = [index for index, message in enumerate(request.messages) if _is_prompt(message)]
    script = understand(request.messages[prompts[-1]].text.strip()) if prompts else None
    if script is None:
        return ABOUT
    try:
        name, arguments = next(script)
        for message in request.messages[prompts[-1] :]:
            for result in message.all(ToolResult):
                metadata = json_object(result.metadata)
                if metadata.get("denied"):
                    return f"You denied the request, so nothing was done.\n\n{FOOTER}"
                if result.is_error:
                    return f"That did not work: {result.content.replace('old_string', 'the text')}\n\n{FOOTER}"
                name, arguments = script.send(_Result(result.content, metadata, message.session_id))
    except StopIteration as ended:
        return f"{ended.value}\n\n{FOOTER}"
    if name not in (tool.name for tool in request.tools):
        return f"This request needs the tool {name}, which is not available in this session.\n\n{FOOTER}"
    return ToolCall(f"call_{uuid.uuid4().hex}", name, msgspec.json.encode(arguments).decode())


def pieces(text: str) -> list[str]:
    """Split the text into pieces of a few words; joined, they are the text."""
    words = re.findall(r"\s*\S+|\s+$", text)
    size = max(3, -(-len(words) // PIECES_MAX))
    return ["".join(words[start : start + size]) for start in range(0, len(words), size)]
