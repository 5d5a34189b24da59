"""Random command lines around the table of read-only programs, and the workspace with traps in which they run."""

from __future__ import annotations

import os
import random
import shlex
from pathlib import Path

from kedge.tools.git_reads import SUBCOMMANDS, git_rules
from kedge.tools.read_only_programs import PROGRAMS, Program, program
from tests.tools.test_read_only import lines_of, make_repository, run_git

#: Words that make one program or another write, run a program or send.
_TRICKS = r"""
-o, out, -oout, --output=out, --output, -i, -w, -T., -exec, -delete, -fprint, ./evil, ;, --pre=./evil, --pre,
--compress-program=./evil, --textconv, --ext-diff, -O./evil, -c, -C, -r, core.pager=./evil, w out, 1w out,
1e ./evil, $!N;w out, s/o/x/w out, /o/w out, --, -, -f, -I{}, {}, *, ./*, -*, odd/*, ?o*, [-]*, >out, >, 2>out,
|tee, -e, -n, -v, %n, $(./evil), `./evil`, <(./evil), &, -D, -R, -L, -S, --help, -a, -s, -d, -u, -x, @odd/-o,
--files0-from=a.txt, --in-place, -z, -m, --edit-description, --no-index, new, -Z, https://127.0.0.1:9/,
/dev/tcp/127.0.0.1/9, ext::./evil, file://x, |, &&, |xargs, -print0|xargs -0
"""
TRICKS = tuple(_TRICKS.strip().replace(",\n", ", ").split(", "))
VALUES = {
    "number": ("0", "1", "3", "+2", "-1", "1k"),
    "text": ("x", "a.txt", "%s", "one", "-o", "./evil", "out", "", "1,3", ":", "%h", "never", "short"),
    "path": ("a.txt", "src", ".", "src/main.py", "HEAD", "missing", "odd", "odd/--output=out", "./-o", "-", "link_in"),
    "name": ("ls", "evil", "main", "root"),
    "form": ("+%s", "+%F"),
    "filter": (".", "keys", ".name", "input", '"a" | @sh', "debug", "error"),
    "setting": ("user.name", "core.pager", "remote.origin.url"),
}
JOINS = (" | ", " && ", " || ", " ; ", "\n", "|", "; cd src && ")


def make_canary(base: Path) -> Path:
    """Make the workspace. Whatever runs `evil`, or writes anywhere below `base`, changes the tree."""
    root = make_repository(base)
    evil = f"#!/bin/sh\ntouch {base}/ran\necho evil\n"
    for name in ("evil", "pre-commit"):
        (root / name).write_text(evil)
        (root / name).chmod(0o755)
    (root / "odd").mkdir()
    for name in ("-o", "--output=out", "-exec", "x -o y", "-i", "a\nb"):
        (root / "odd" / name).write_text("one\n")
    for name in ("-o", "--output=pwned", "-delete"):
        (root / name).write_text("one\n")
    for key in ("core.fsmonitor", "core.pager", "core.editor"):
        run_git(root, "config", key, str(root / "evil"))
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (root / ".git/hooks" / hook).write_text(evil)
        (root / ".git/hooks" / hook).chmod(0o755)
    os.utime(root / "src/main.py")  # git would refresh its index
    (base / "ran").unlink(missing_ok=True)
    return root


def random_read(rng: random.Random, corpus: list[str]) -> str:
    """A line of the corpus with changes, or a line from the table. Half of them have a trick inside."""
    line = _from_table(rng) if rng.random() < 0.6 else rng.choice(corpus)
    for _ in range(rng.choice((0, 1, 2))):
        line = _changed(rng, line, corpus)
    words = line.split(" ")
    for _ in range(rng.choice((0, 1, 2))):
        words.insert(rng.randrange(len(words)) + 1, rng.choice(TRICKS))
    return " ".join(words)


def corpus_lines() -> list[str]:
    return [line for name in ("lines_that_pass.txt", "lines_that_ask.txt") for line in lines_of(name)]


def _changed(rng: random.Random, line: str, corpus: list[str]) -> str:
    words = line.split(" ")
    index = rng.randrange(len(words))
    match rng.randrange(8):
        case 0:
            words[index] = rng.choice(TRICKS)
        case 1 | 2:
            words.insert(index + 1, rng.choice(TRICKS))
        case 3:
            words[index : index + 1] = rng.choice(corpus).split(" ")[1:3]
        case 4:
            return line + rng.choice(JOINS) + rng.choice(corpus)
        case 5:
            return f"({line})" if rng.random() < 0.5 else f"cd src && {line}"
        case 6:
            words[index] = shlex.quote(words[index])
        case _:
            words.append(rng.choice(VALUES["path"]))
    return " ".join(words)


def _from_table(rng: random.Random) -> str:
    if rng.random() < 0.4:
        name = rng.choice(sorted(SUBCOMMANDS))
        return _command(rng, f"git {name}", git_rules(name))
    name = rng.choice(sorted(PROGRAMS - {"sleep"}))
    return _command(rng, name, program(name))


def _command(rng: random.Random, name: str, rules: Program | None) -> str:
    assert rules is not None
    words = [name]
    for option in rng.sample(sorted(rules.options), min(len(rules.options), rng.randrange(4))):
        kind = rules.options[option]
        if kind is None or (option in rules.optional and rng.random() < 0.5):
            words.append(option)
            continue
        value = shlex.quote(rng.choice(VALUES.get(kind, VALUES["text"])))
        glue = "=" if option.startswith("--") else rng.choice(("", " "))
        words.append(f"{option}{glue}{value}")
    for kind in rules.arguments:
        for _ in range(rng.randrange(3) if kind.endswith("*") else 1):
            words.append(shlex.quote(rng.choice(VALUES.get(kind.rstrip("*?"), VALUES["text"]))))
    return " ".join(words)
