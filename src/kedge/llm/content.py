"""What the formats of all providers share when a transcript is put into their words."""

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

#: Of a tool's name. The strictest of the large providers takes no more.
TOOL_NAME_CHARS_MAX: Final = 64
#: A result must say something: an empty text is refused by some, and taken for a mistake by models.
NO_OUTPUT: Final = "(no output)"
#: Images that every provider takes which takes any. One that is refused would be sent again with each later prompt.
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
NO_IMAGES: Final = "[An image was left out here, since this model cannot be shown it.]"

_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def tool_name(name: str) -> str:
    """The name of a call in the form that providers take back: a model may have called what no tool can be called."""
    return _NOT_IN_NAMES.sub("_", name[:TOOL_NAME_CHARS_MAX]) or "unknown"


def tool_input(given: str) -> str:
    """The JSON text of an object, as the model wrote it if it is one: providers parse the input of earlier calls and
    fail on what a model got wrong."""
    text = without_surrogates(given) or "{}"
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])  # its values are checked, not built
        return text
    except NOT_JSON:
        pass
    return msgspec.json.encode({"malformed": text}).decode()


def command_text(command: ShellCommand) -> str:
    return f"I ran this command:\n$ {command.command}\n{command.output}\n(exit code {command.exit_code})"


class Refusing(Struct, frozen=True):
    """What becomes of a file that the model cannot be sent. In the newest prompt it is an error with a sentence; in an
    older one it is only noted, since otherwise one wrong file would make every later prompt of the session fail."""

    shown_name: str
    is_newest: bool
    accepts_images: bool

    def image(self, path: str) -> str | None:
        """None if images are taken, else the note that stands for this one."""
        if self.accepts_images:
            return None
        file = path or "the image"
        if self.is_newest:
            raise ModelFailed(f"Model {self.shown_name} takes no images; leave {file} out or choose another model.")
        return f"[{file} was left out here: images are not sent]"

    def other(self, file: Binary, taken: str) -> str:
        """The note that stands for a file that is neither text nor one of those `taken`."""
        what = f"{file.path or 'The attached file'} ({file.mime_type or 'unknown type'}) is neither text nor {taken}"
        if self.is_newest:
            raise ModelFailed(f"{what}, and nothing else can be sent to {self.shown_name}; leave it out.")
        return f"[{what}; its content was not sent]"


def refusing(request: ModelRequest, shown_name: str) -> Iterator[tuple[Message, Refusing]]:
    """Each message with what becomes of its files."""
    newest = next((message for message in reversed(request.messages) if message.role == "user"), None)
    for message in request.messages:
        yield message, Refusing(shown_name, message is newest, request.accepts_images)


def file_text(file: Binary) -> str | None:
    """A text file as a prompt shows it; None if it is no text."""
    try:
        text = base64.b64decode(file.data, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return f"File {file.path}:\n\n{text}"


def image_path(image: ImageUrl) -> str:
    """What to call an image in a sentence: a data URL would fill the screen."""
    return "the image" if image.url.startswith("data:") else image.url
