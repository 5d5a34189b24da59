"""Conversion of transcript content that all request formats share."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from kedge.core.transcript import Binary, ImageUrl, Message, ShellCommand
from kedge.core.untrusted_text import without_surrogates
from kedge.errors import ModelFailed
from kedge.llm.base import ModelRequest
from kedge.llm.transport import NOT_JSON

Json = dict[str, Any]

#: Name of a tool: the strictest limit among the large providers. Characters.
TOOL_NAME_CHARS_MAX: Final = 64
#: Replaces an empty result, which some providers refuse and models take for a mistake.
NO_OUTPUT: Final = "(no output)"
#: Image types that every provider with images accepts. A refused image would fail each later prompt, too.
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
NO_IMAGES: Final = "[An image was left out here, since this model cannot be shown it.]"

_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def tool_name(name: str) -> str:
    """Return a valid tool name: providers refuse the invalid names that models may have called."""
    return _NOT_IN_NAMES.sub("_", name[:TOOL_NAME_CHARS_MAX]) or "unknown"


def tool_input(source: str) -> str:
    """Return the JSON object that the model wrote, or a valid one: providers parse the input of earlier calls and fail
    on invalid JSON."""
    text = without_surrogates(source) or "{}"
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])  # validates the values without building them
        return text
    except NOT_JSON:
        pass
    return msgspec.json.encode({"malformed": text}).decode()


def command_text(command: ShellCommand) -> str:
    return f"I ran this command:\n$ {command.command}\n{command.output}\n(exit code {command.exit_code})"


class Refusing(Struct, frozen=True):
    """Handles files that the model does not accept. In the newest prompt such a file is an error; in an older one it is
    replaced by a note, since otherwise it would make every later prompt of the session fail."""

    shown_name: str
    is_newest: bool
    accepts_images: bool

    def image(self, path: str) -> str | None:
        """Return None if images are accepted, otherwise the note that replaces this one."""
        if self.accepts_images:
            return None
        file = path or "the image"
        if self.is_newest:
            raise ModelFailed(f"Model {self.shown_name} does not accept images; remove {file} or choose another model.")
        return f"[{file} was left out here: images are not sent]"

    def other(self, file: Binary, taken: str) -> str:
        """Return the note that replaces a file that is neither text nor of a type in `taken`."""
        what = f"{file.path or 'The attached file'} ({file.mime_type or 'unknown type'}) is neither text nor {taken}"
        if self.is_newest:
            raise ModelFailed(f"{what}, and {self.shown_name} accepts nothing else; remove it.")
        return f"[{what}; its content was not sent]"


def refusing(request: ModelRequest, shown_name: str) -> Iterator[tuple[Message, Refusing]]:
    """Yield each message with the handler for its files."""
    newest = next((message for message in reversed(request.messages) if message.role == "user"), None)
    for message in request.messages:
        yield message, Refusing(shown_name, message is newest, request.accepts_images)


def file_text(file: Binary) -> str | None:
    """Return a text file as part of a prompt; None if it is not text."""
    try:
        text = base64.b64decode(file.data, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return f"File {file.path}:\n\n{text}"


def image_path(image: ImageUrl) -> str:
    """Return a name of an image for messages: a data URL would fill the screen."""
    return "the image" if image.url.startswith("data:") else image.url
