"""The prompt in the editor that people have chosen for themselves."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from textual.app import App

from kedge.errors import Invalid
from kedge.wire.limits import PROMPT_BYTES_MAX

#: Runs a command to its end, with the terminal to itself; its exit code.
Runner = Callable[[list[str]], Awaitable[int]]


async def edited(text: str, run: Runner) -> str:
    """What the editor makes of the text."""
    command = _editor()
    name = os.path.basename(command[0])
    # A directory of this user alone, where an editor can also leave its own files.
    with tempfile.TemporaryDirectory(prefix="kedge-") as directory:
        file = Path(directory) / "prompt.md"
        file.write_text(text, "utf-8")
        try:
            code = await run([*command, str(file)])
        except OSError as error:
            raise Invalid(f"{name} cannot be started: {error.strerror}; set $EDITOR to another one") from None
        if code != 0:
            raise Invalid(f"{name} ended with code {code}: the prompt is as it was")
        return _read(file)


def in_terminal(app: App[Any]) -> Runner:
    async def run(command: list[str]) -> int:
        # The loop goes on, so that the server is listened to; nothing is drawn meanwhile.
        with app.batch_update(), app.suspend(), _interrupts_left_to_it():
            return await asyncio.to_thread(subprocess.call, command)

    return run


def _editor() -> list[str]:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or shutil.which("vi") or ""
    try:
        command = shlex.split(chosen)
    except ValueError:
        command = []
    if not command:
        raise Invalid("there is no editor: set $EDITOR to the one you want")
    return command


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(PROMPT_BYTES_MAX + 1)
    except OSError as error:
        raise Invalid(f"what was written cannot be read: {error.strerror}") from None
    if len(content) > PROMPT_BYTES_MAX:
        raise Invalid(f"what was written is longer than {PROMPT_BYTES_MAX // 1024} KiB: the prompt is as it was")
    return content.decode("utf-8", "replace").removesuffix("\n")


@contextmanager
def _interrupts_left_to_it() -> Iterator[None]:
    """Ctrl-C in the editor is not for us. A handler, since the editor would inherit that a signal is ignored."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
