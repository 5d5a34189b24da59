"""Editing of the prompt in the user's editor."""

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

#: Runs a command with exclusive use of the terminal; returns its exit code.
EditorRunner = Callable[[list[str]], Awaitable[int]]


async def edited(text: str, run: EditorRunner) -> str:
    """Return the text after editing."""
    command = _editor()
    name = os.path.basename(command[0])
    # A private directory, where the editor can also create its own files.
    with tempfile.TemporaryDirectory(prefix="kedge-") as directory:
        file = Path(directory) / "prompt.md"
        file.write_text(text, "utf-8")
        try:
            code = await run([*command, str(file)])
        except OSError as error:
            raise Invalid(f"Cannot start {name}: {error.strerror}. Set $EDITOR to another editor") from None
        if code != 0:
            raise Invalid(f"{name} exited with code {code}: the prompt is unchanged")
        return _read(file)


def in_terminal(app: App[Any]) -> EditorRunner:
    async def run(command: list[str]) -> int:
        # The event loop keeps running to receive events; nothing is drawn meanwhile.
        with app.batch_update(), app.suspend(), _interrupts_ignored():
            return await asyncio.to_thread(subprocess.call, command)

    return run


def _editor() -> list[str]:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or shutil.which("vi") or ""
    try:
        command = shlex.split(editor)
    except ValueError:
        command = []
    if not command:
        raise Invalid("No editor found. Set $EDITOR, for example: export EDITOR=nano")
    return command


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(PROMPT_BYTES_MAX + 1)
    except OSError as error:
        raise Invalid(f"Cannot read the edited prompt: {error.strerror}") from None
    if len(content) > PROMPT_BYTES_MAX:
        raise Invalid(f"The edited text is longer than {PROMPT_BYTES_MAX // 1024} KiB: the prompt is unchanged")
    return content.decode("utf-8", "replace").removesuffix("\n")


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C, which is for the editor. A handler instead of SIG_IGN, which the editor would inherit."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
