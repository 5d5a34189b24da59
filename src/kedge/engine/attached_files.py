"""Attachments given by their path alone: read when the prompt is accepted, so that a Run works on what it was given."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from pathlib import Path

from msgspec.structs import replace

from kedge.core.records import Attachment, Prompt
from kedge.errors import Invalid, TooLarge
from kedge.tools import disk
from kedge.tools.paths import resolve
from kedge.tools.tool_failed import ToolFailed

#: Of one file. It goes to the model as a whole, with every Step. Bytes.
FILE_BYTES_MAX = 5 * 1024 * 1024
#: Of all files of a prompt: about what fits into a request, for who sends them along. Bytes.
FILES_BYTES_MAX = 12 * 1024 * 1024


async def with_contents(prompt: Prompt, root: Path) -> Prompt:
    """Invalid when a file cannot be read. A client may name any file: it has the user's rights."""
    if all(given.content or not given.file_path for given in prompt.attachments):
        return prompt
    filled = await asyncio.to_thread(lambda: tuple(_filled(given, root) for given in prompt.attachments))
    if sum(len(given.content) for given in filled) * 3 // 4 > FILES_BYTES_MAX:
        raise TooLarge(f"the attachments have more than {FILES_BYTES_MAX // 2**20} MiB together; leave some out")
    return replace(prompt, attachments=filled)


def _filled(given: Attachment, root: Path) -> Attachment:
    if given.content or not given.file_path:
        return given
    try:
        path = resolve(given.file_path, root).path
        found = disk.read(path, bytes_max=FILE_BYTES_MAX)
    except ToolFailed as failed:
        raise Invalid(f"attachment {given.file_path}: {failed}") from None
    if found is None:
        raise Invalid(f"attachment {given.file_path}: there is no such file")
    return Attachment(
        given.file_path,
        given.file_name or path.name,
        mime_type_of(path.name, found.data) if given.mime_type == UNKNOWN else given.mime_type,
        base64.b64encode(found.data).decode(),
    )


UNKNOWN = "application/octet-stream"


def mime_type_of(name: str, data: bytes) -> str:
    """By its name; a file that is text says so whatever it is called."""
    guessed = mimetypes.guess_type(name)[0]
    if guessed is not None and guessed.startswith("image/"):
        return guessed
    try:
        data.decode()
    except UnicodeDecodeError:
        return guessed or UNKNOWN
    return "text/plain" if b"\0" not in data else UNKNOWN
