"""The prompt of `kedge run`: its arguments, with standard input before them when something is piped in."""

from __future__ import annotations

import os
import select
import stat

import click

from kedge.wire.limits import PROMPT_BYTES_MAX

#: Standard input that is a pipe and stays silent for this long is one we merely inherited, if there is a prompt without
#: it. `-` waits for it however long it takes. Seconds.
SILENT_S_MAX = 2.0
#: Read at once. Bytes.
READ_BYTES = 64 * 1024

#: A prompt that begins with it is a command for the shell, not for the model.
COMMAND_MARK = "!"

_TOO_LARGE = (
    f"the prompt is larger than {PROMPT_BYTES_MAX // 1024} KiB: write it to a file in the workspace and name that file"
)


def command_in(prompt: str, arguments: tuple[str, ...]) -> str:
    """The command of a prompt that is one (`!ls`); empty for others. What is piped in is never one."""
    is_command = prompt.startswith(COMMAND_MARK) and " ".join(arguments).strip().startswith(COMMAND_MARK)
    if prompt == COMMAND_MARK:
        raise click.UsageError(f"no command behind the {COMMAND_MARK}")
    return prompt.removeprefix(COMMAND_MARK).strip() if is_command else ""


def prompt_from(arguments: tuple[str, ...], *, has_files: bool = False) -> str:
    """The prompt, or a usage error that says why there is none. `-` among the arguments stands for standard input."""
    words = " ".join(word for word in arguments if word != "-").strip()
    piped = _standard_input(asked="-" in arguments, has_words=bool(words) or has_files).strip("\n")
    prompt = "\n\n".join(part for part in (piped, words) if part.strip())
    if words.startswith(COMMAND_MARK) and piped.strip():
        raise click.UsageError("a command (!...) takes nothing from standard input")
    if not prompt and not has_files:
        raise click.UsageError("no prompt: give one as arguments or on standard input")
    try:
        size = len(prompt.encode())
    except UnicodeEncodeError:
        raise click.UsageError("the prompt is not valid UTF-8") from None
    if size > PROMPT_BYTES_MAX:
        raise click.UsageError(_TOO_LARGE)
    return prompt


def _standard_input(*, asked: bool, has_words: bool) -> str:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return ""  # closed
    if os.isatty(0) and not asked:
        return ""
    may_be_silent = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
    if has_words and not asked and may_be_silent and not select.select([0], [], [], SILENT_S_MAX)[0]:
        click.echo(f"kedge: nothing on standard input for {SILENT_S_MAX:g} s: going on without it", err=True)
        return ""
    return _read_all()


def _read_all() -> str:
    pieces: list[bytes] = []
    size = 0
    try:
        while True:
            select.select([0], [], [])  # whoever shares it may have made it non-blocking
            if not (piece := os.read(0, READ_BYTES)):
                break
            pieces.append(piece)
            size += len(piece)
            if size > PROMPT_BYTES_MAX:
                raise click.UsageError(_TOO_LARGE)
    except OSError as error:
        raise click.UsageError(f"standard input cannot be read: {error.strerror}") from None
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError:
        raise click.UsageError("standard input is not UTF-8 text: name the file in the prompt instead") from None
