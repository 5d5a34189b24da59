"""The prompt of `kedge run`: standard input, if something is piped in, followed by the arguments."""

from __future__ import annotations

import os
import select
import stat

import click

from kedge.wire.limits import PROMPT_BYTES_MAX

#: A pipe without data for this long was probably inherited by accident; it is ignored if there are arguments. `-` waits
#: without a limit. Seconds.
SILENT_S_MAX = 2.0
#: Size of one read. Bytes.
STDIN_READ_BYTES = 64 * 1024

#: A prompt that starts with this is a shell command.
COMMAND_MARK = "!"

_TOO_LARGE = (
    f"The prompt is larger than {PROMPT_BYTES_MAX // 1024} KiB. Write it to a file in the workspace and name the file"
)


def command_in(prompt: str, arguments: tuple[str, ...]) -> str:
    """Return the shell command of a prompt such as `!ls`; else an empty string. Piped input is never a command."""
    is_command = prompt.startswith(COMMAND_MARK) and " ".join(arguments).strip().startswith(COMMAND_MARK)
    if prompt == COMMAND_MARK:
        raise click.UsageError(f"No command after {COMMAND_MARK}")
    return prompt.removeprefix(COMMAND_MARK).strip() if is_command else ""


def is_typed(prompt: str, arguments: tuple[str, ...]) -> bool:
    """Return whether all of the prompt is from the arguments. Piped text may be by others: it expands to nothing."""
    return prompt == _text(arguments)


def prompt_from(arguments: tuple[str, ...], *, has_files: bool = False) -> str:
    """Return the prompt, or raise a usage error. `-` among the arguments stands for standard input."""
    text = _text(arguments)
    piped = _standard_input(asked="-" in arguments, has_text=bool(text) or has_files).strip("\n")
    prompt = "\n\n".join(part for part in (piped, text) if part.strip())
    if text.startswith(COMMAND_MARK) and piped.strip():
        raise click.UsageError("A command (!...) does not read standard input")
    if not prompt and not has_files:
        raise click.UsageError("No prompt. Pass one as arguments or on standard input")
    try:
        size = len(prompt.encode())
    except UnicodeEncodeError:
        raise click.UsageError("The prompt is not valid UTF-8") from None
    if size > PROMPT_BYTES_MAX:
        raise click.UsageError(_TOO_LARGE)
    return prompt


def _text(arguments: tuple[str, ...]) -> str:
    return " ".join(word for word in arguments if word != "-").strip()


def _standard_input(*, asked: bool, has_text: bool) -> str:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return ""  # closed
    if os.isatty(0) and not asked:
        return ""
    may_be_silent = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
    if has_text and not asked and may_be_silent and not select.select([0], [], [], SILENT_S_MAX)[0]:
        click.echo(f"kedge: no data on standard input for {SILENT_S_MAX:g} s; continuing without it", err=True)
        return ""
    return _read_all()


def _read_all() -> str:
    pieces: list[bytes] = []
    size = 0
    try:
        while True:
            select.select([0], [], [])  # another process may have made it non-blocking
            if not (piece := os.read(0, STDIN_READ_BYTES)):
                break
            pieces.append(piece)
            size += len(piece)
            if size > PROMPT_BYTES_MAX:
                raise click.UsageError(_TOO_LARGE)
    except OSError as error:
        raise click.UsageError(f"Cannot read standard input: {error.strerror}") from None
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError:
        raise click.UsageError("Standard input is not UTF-8 text. Name the file in the prompt instead") from None
