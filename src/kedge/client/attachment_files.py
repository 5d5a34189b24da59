"""Attachments of a prompt, read from files."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Sequence

from kedge.errors import Invalid
from kedge.wire.limits import ATTACHMENTS_MAX, BODY_BYTES_MAX, PROMPT_BYTES_MAX
from kedge.wire.models import AttachmentBody

#: All files of one prompt: as base64, they fit into the largest body together with the largest prompt. Bytes.
FILES_BYTES_MAX = (BODY_BYTES_MAX - 2 * PROMPT_BYTES_MAX) * 3 // 4

#: Magic numbers: more reliable than file names.
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}


def read_attachments(files: Sequence[str], cwd: str) -> list[AttachmentBody]:
    """Read the files. Raises Invalid with the name of the file that cannot be sent."""
    if len(files) > ATTACHMENTS_MAX:
        raise Invalid(f"There are {len(files)} attachments; at most {ATTACHMENTS_MAX} are allowed.")
    result: list[AttachmentBody] = []
    left = FILES_BYTES_MAX
    for file in files:
        path = _path(file, cwd)
        content = _read(file, path, left)
        left -= len(content)
        result.append(
            AttachmentBody(
                file_path=path,
                file_name=os.path.basename(file),
                mime_type=mime_type(file, content),
                content=content,
            )
        )
    return result


def _read(file: str, path: str, bytes_max: int) -> bytes:
    try:
        with open(file, "rb") as opened:
            content = opened.read(bytes_max + 1)
    except OSError as error:
        raise Invalid(f"Cannot attach {path}: {error.strerror}.") from None
    if len(content) > bytes_max:
        raise Invalid(
            f"{path} is too large: the attachments of a prompt may total {FILES_BYTES_MAX // 1024 // 1024} MiB. "
            "Name the file in the prompt instead."
        )
    return content


def _path(file: str, cwd: str) -> str:
    """Return a path that the model can use: relative inside the workspace, else absolute."""
    path = os.path.abspath(file)
    return os.path.relpath(path, cwd) if path.startswith(cwd.rstrip("/") + "/") else path


def mime_type(file: str, content: bytes) -> str:
    """Guess the type from the signature, then from whether the content is UTF-8 text, then from the name."""
    for signature, kind in _SIGNATURES.items():
        if content.startswith(signature):
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
