"""The built-in model: no network, no key, nothing to install. It looks at the workspace and says how to add a real one.

It makes the first command of the README work on any machine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

from kedge.llm.base import ModelEnd, ModelPart, ModelRequest, TextDelta
from kedge.llm.look import Refused, Workspace, clean_name, show_directory, show_file

#: Between two pieces, so that one sees it stream.
PIECE_S: Final = 0.01
#: Pieces of one answer: with the pause above the whole answer takes at most about a second.
PIECES_MAX: Final = 100
#: Words of a piece, unless there would be too many pieces.
PIECE_WORDS_MIN: Final = 3
#: Words of a prompt that are looked up as file names; a person names a file early, a pasted log has thousands of words.
WORDS_LOOKED_UP_MAX: Final = 200

#: What a config.toml needs for a real model; it is printed, and a test reads it back.
EXAMPLE_CONFIG: Final = """\
model = "openai/gpt-5-mini"

[providers.openai]
type = "openai"                          # any OpenAI-compatible endpoint
base_url = "https://api.openai.com/v1"
api_key = "$OPENAI_API_KEY"              # read from the environment
models = [{ id = "gpt-5-mini" }]
"""

_ABOUT_DIRECTORY: Final = frozenset(
    {"codebase", "dir", "directory", "directories", "file", "files", "folder", "folders"}
    | {"here", "list", "ls", "project", "repo", "repository", "workspace"}
)
_ABOUT_CONTENT: Final = frozenset(
    {"cat", "content", "contents", "display", "in", "inside", "open", "print", "read", "say", "says", "show", "view"}
)


class OfflineModel:
    provider = "kedge"
    name = "offline"

    def __init__(self, config_path: str = "", piece_s: float = PIECE_S) -> None:
        #: Where the user's config.toml is, if the caller knows; otherwise the answer says how to find out.
        self._config_path = config_path
        self._piece_s = piece_s

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        async with aclosing(self._parts(request)) as parts:
            yield parts

    async def _parts(self, request: ModelRequest) -> AsyncGenerator[ModelPart, None]:
        prompt = next((message.text for message in reversed(request.messages) if message.role == "user"), "")
        # Beside the event loop: the workspace may be on a network drive that does not answer.
        answer = await asyncio.to_thread(self._answer, prompt, request.workspace)
        for piece in pieces(answer):
            yield TextDelta(piece)
            await asyncio.sleep(self._piece_s)
        yield ModelEnd("end_turn")

    def _answer(self, prompt: str, workspace: str) -> str:
        found = _about_workspace(prompt, Workspace(workspace)) if workspace else ""
        where = (
            f"to {self._config_path}" if self._config_path else "to your config.toml (`kedge config path` says where)"
        )
        if found:
            return f"{found}\n\nThis is kedge's built-in offline model; to use a real one, add it {where}."
        return (
            "I cannot answer that: no language model is configured, and I am only kedge's built-in offline model. "
            "I can tell what is in this directory (ask: what is in this directory?) and show a file of it "
            "(ask: show README.md).\n\n"
            f"To use a real model, add this {where}:\n\n{EXAMPLE_CONFIG}\n"
            "This is kedge's built-in offline model; the lines above configure a real one."
        )


def pieces(text: str) -> list[str]:
    """The text in pieces of a few words, with their blanks: together they are the text again."""
    words = re.findall(r"\s*\S+|\s+$", text)
    size = max(PIECE_WORDS_MIN, -(-len(words) // PIECES_MAX))
    return ["".join(words[start : start + size]) for start in range(0, len(words), size)]


def _about_workspace(prompt: str, workspace: Workspace) -> str:
    """What the prompt asks about the workspace; nothing if it asks something else."""
    # Names with blanks are found when they are quoted.
    quoted = [
        name for found in re.findall(r"\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'|`([^`\n]+)`", prompt) for name in found if name
    ]
    plain = [word.strip("\"'`?!,;:()[]<>").rstrip(".") for word in prompt.split()[:WORDS_LOOKED_UP_MAX]]
    names = [*quoted[:WORDS_LOOKED_UP_MAX], *plain]
    words = {word.lower() for word in plain}
    about_content = bool(words & _ABOUT_CONTENT)
    about_directory = bool(words & _ABOUT_DIRECTORY)
    try:
        for name in names:
            # A word such as "src" is a name only in a question about files; "src/x.py" and "Makefile" always are.
            if not re.search(r"[./]|^[A-Z]", name) and name not in quoted and not about_content and not about_directory:
                continue
            if path := _named(workspace, name):
                return show_directory(workspace, path) if path.is_dir() else show_file(workspace, path)
    except Refused as refused:
        if about_content or about_directory:
            return str(refused)
    if about_content and (path := workspace.like(words - _ABOUT_CONTENT - _ABOUT_DIRECTORY)):
        return show_file(workspace, path)
    missing = next((name for name in names if re.search(r"\w\.\w{1,8}$", name)), "")
    if about_content and missing:
        return f"There is no file {clean_name(missing)} in this workspace."
    return show_directory(workspace, workspace.root) if about_directory else ""


def _named(workspace: Workspace, name: str) -> Path | None:
    """What the name stands for in the workspace. Words that only look like one, "/" and addresses are none."""
    if not name.strip("/.") or "://" in name or name.lower() in _ABOUT_DIRECTORY | _ABOUT_CONTENT:
        return None
    return workspace.inside(name)
