"""A file that appears under its name only when it is complete."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` at the end of the block. After an error, `path` is unchanged.

    A link is followed. A pipe or a device, such as /dev/stdout, is written directly."""
    try:
        target = path.resolve()
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("wb") as file:
                yield file
            return
        new = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex[:8]}.part")
        try:
            with new.open("xb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), stat.S_IMODE(mode))
                yield file
            os.replace(new, target)
        except BaseException:
            with suppress(OSError):
                new.unlink()
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
