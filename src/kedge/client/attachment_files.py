"""Files given with a prompt: read here, sent by content."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Sequence

from kedge.errors import Invalid
from kedge.wire.limits import ATTACHMENTS_MAX, BODY_BYTES_MAX, PROMPT_BYTES_MAX
from kedge.wire.models import AttachmentBody

#: Of all files of one prompt: what fits into the largest body beside the largest prompt, as base64. Bytes.
FILES_BYTES_MAX = (BODY_BYTES_MAX - 2 * PROMPT_BYTES_MAX) * 3 // 4

#: How files begin whose type is not to be guessed from a name that may be wrong.
_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}


def attachments(files: Sequence[str], cwd: str) -> list[AttachmentBody]:
    """The files, or an error that names the one that cannot be sent."""
    if len(files) > ATTACHMENTS_MAX:
        raise Invalid(f"{len(files)} attachments; at most {ATTACHMENTS_MAX} are taken")
    found: list[AttachmentBody] = []
    left = FILES_BYTES_MAX
    for file in files:
        path = _path(file, cwd)
        content = _read(file, path, left)
        left -= len(content)
        found.append(
            AttachmentBody(
                file_path=path,
                file_name=os.path.basename(file),
                mime_type=mime_type(file, content),
                content=content,
            )
        )
    return found


def _read(file: str, path: str, bytes_max: int) -> bytes:
    try:
        with open(file, "rb") as opened:
            content = opened.read(bytes_max + 1)
    except OSError as error:
        raise Invalid(f"{path} cannot be attached: {error.strerror}") from None
    if len(content) > bytes_max:
        raise Invalid(
            f"{path} is too large: the files of a prompt have at most {FILES_BYTES_MAX // 1024 // 1024} MiB together; "
            "name it in the prompt instead"
        )
    return content


def _path(file: str, cwd: str) -> str:
    """As the model finds it again: relative inside the workspace, else absolute."""
    path = os.path.abspath(file)
    return os.path.relpath(path, cwd) if path.startswith(cwd.rstrip("/") + "/") else path


def mime_type(file: str, content: bytes) -> str:
    """By how the file begins; text is what reads as text; only then the name counts."""
    for beginning, kind in _BEGINNINGS.items():
        if content.startswith(beginning):
            return kind
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "image/webp"
    guessed = mimetypes.guess_type(file)[0] or ""
    if b"\0" not in content:
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            pass
        else:
            return guessed if guessed.startswith("text/") else "text/plain"
    return "application/octet-stream" if guessed.startswith("text/") else guessed or "application/octet-stream"
