"""Attachments named by path: read when the prompt is accepted, so that later changes do not affect the Run."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from msgspec.structs import replace

from kedge.core.records import Attachment, AttachmentContent, Prompt, attachment_digest
from kedge.errors import EmptyPrompt, Invalid, TooLarge
from kedge.tools import disk, file_threads
from kedge.tools.file_threads import FileThreads
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.workspace_paths import resolve

#: One file. It is sent to the model completely, with every Step. Bytes.
ATTACHMENT_BYTES_MAX = 5 * 1024 * 1024
#: All files of a prompt: about what fits into one request with inline content. Bytes.
ATTACHMENTS_BYTES_MAX = 12 * 1024 * 1024


async def read_files(prompt: Prompt, root: Path, threads: FileThreads) -> tuple[Prompt, tuple[AttachmentContent, ...]]:
    """Read the files that are named by path only, in threads of the workspace; return the complete prompt and the
    contents that were read. Invalid if a file cannot be read, EmptyPrompt if neither prompt nor files have a text.

    A client may name any file: it has the user's rights."""
    if all(attachment.digest for attachment in prompt.attachments):
        return _not_empty(prompt), ()

    def read() -> tuple[list[Attachment], list[AttachmentContent]]:
        contents: list[AttachmentContent] = []
        return [_read(file, root, contents) for file in prompt.attachments], contents

    files, contents = await threads.run(read, limit_s=file_threads.READ_S)
    if sum(file.size for file in files) > ATTACHMENTS_BYTES_MAX:
        raise TooLarge(f"The attachments have more than {ATTACHMENTS_BYTES_MAX // 2**20} MiB in total. Remove some.")
    return _not_empty(replace(prompt, attachments=files)), tuple(contents)


def _not_empty(prompt: Prompt) -> Prompt:
    if prompt.text.strip() or any(file.size and file.mime_type.startswith("text/") for file in prompt.attachments):
        return prompt
    raise EmptyPrompt("The prompt is empty; send a text or attach one.")


def _read(attachment: Attachment, root: Path, contents: list[AttachmentContent]) -> Attachment:
    if attachment.digest:
        return attachment
    try:
        path = resolve(attachment.file_path, root).path
        content = disk.read(path, bytes_max=ATTACHMENT_BYTES_MAX)
    except ToolFailed as failed:
        raise Invalid(f"Attachment {attachment.file_path}: {failed}") from None
    if content is None:
        raise Invalid(f"Attachment {attachment.file_path}: file not found.")
    contents.append(AttachmentContent(attachment_digest(content.data), content.data))
    return Attachment(
        attachment.file_path,
        attachment.file_name or path.name,
        mime_type_of(path.name, content.data) if attachment.mime_type == UNKNOWN else attachment.mime_type,
        len(content.data),
        contents[-1].digest,
    )


UNKNOWN = "application/octet-stream"


def mime_type_of(name: str, data: bytes) -> str:
    """Return the MIME type by name; a text file is text/plain whatever its name."""
    guessed = mimetypes.guess_type(name)[0]
    if guessed is not None and guessed.startswith("image/"):
        return guessed
    try:
        data.decode()
    except UnicodeDecodeError:
        return guessed or UNKNOWN
    return "text/plain" if b"\0" not in data else UNKNOWN
