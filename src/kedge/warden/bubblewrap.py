"""The sandbox by bubblewrap, for machines without Landlock: a command in front of the command."""

from __future__ import annotations

PROGRAM = "bwrap"


def wrapped(argv: tuple[str, ...], writable: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` with the whole file system read-only but for `writable`. A path that does not exist is left out."""
    places = [word for path in writable for word in ("--bind-try", path, path)]
    return (PROGRAM, "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", *places, "--", *argv)
