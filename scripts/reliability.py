"""Write docs/reliability.md: the guarantees, the figures of their proofs, and the bugs found.

`reliability.py LINES [SECONDS]` first sums the lines that proofs wrote (proof/figures.py) into docs/figures.json.
SECONDS is the duration of a run of all proofs, and omitted for a partial run. The page, and its part of the README, are
generated from that file and from the tests: their proofs, and their regression tests (`@pytest.mark.found`).
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures.json"
PAGE = ROOT / "docs" / "reliability.md"
README = ROOT / "README.md"
#: The generated part of the README.
README_PART = re.compile(r"(?<=<!-- proofs -->\n).*?(?=<!-- /proofs -->)", re.DOTALL)

GUARANTEES = {
    "G1": "Every accepted Run ends exactly once. It has one terminal event, regardless of crashes and failures.",
    "G2": "A cancel stops all Runs accepted before it and no Run accepted after it.",
    "G3": "Everything acknowledged with 202 is on disk. Neither a power cut nor a `kill -9` reverts it.",
    "G4": "A stream delivers every event once and in order. Readers may disconnect and resume at any point. Events "
    "that are no longer available are announced as a gap.",
    "G5": "A cancelled Run takes everything it started with it: no process of its tree survives, however it hides.",
    "G6": "A server that is killed leaves no tool process running.",
    "G7": "If an operation of the store or the disk fails, the reply is correct or a clean error, and no guarantee is "
    "broken.",
    "G8": "Nothing is stuck forever: when the faults stop, every Run ends in bounded time.",
    "G9": "The proofs work: faults that are seeded in the product are found.",
    "G10": "Every branch of the core is tested, and the simulator plays every fault it can simulate.",
    "G11": "Results are reproducible: the same seed gives the same simulation, byte for byte.",
    "G12": "Damage to the stored data is detected and never served. (Exception: intact pages of the database that are "
    "swapped. The log detects this; records may be from another time.)",
    "G13": "Several nodes can share the work: each Lane has one writer, and a node declared dead writes nothing.",
    "G14": "The defaults are safe: no request, path, command or page gets past the checks.",
    "G15": "No client can deny service to others: slow, stuck, numerous and endless clients are limited, and an hour "
    "of work leaks nothing.",
}
#: Figures for the README, in this order.
STRONGEST = (
    "simulated schedules of the real engine, server and client",
    "simulated power cuts",
    "kills of a real server",
    "trees that were ended",
    "bit flips and other damage",
    "fuzzed requests",
    "seeded mutants",
)
HEAD = """# Reliability

The guarantees of kedge, the extent to which each was tested, and the bugs found. `scripts/long` and `scripts/docs`
write this page from [figures.json](figures.json) and from the tests.

`scripts/prove` runs the proofs in their small size; `scripts/long` runs them in their large size, including a few that
have no small one. Each figure names its commit, since a proof may have been repeated alone. A failing proof prints its
seed and the command that replays it; see [CONTRIBUTING.md](../CONTRIBUTING.md#proofs). The time of a proof is the sum
of its parts, which run in parallel.
"""
TRACK_RECORD = """## Track record

Bugs that the proofs and attacks have found. Each was fixed at its cause and has a regression test.
"""


@dataclass
class Figure:
    """The sum of the figures of one proof, over all of its parts."""

    guarantee: str
    what: str
    size: str
    wrong_is: str
    count: int = 0
    wrong: int = 0
    #: The time of all parts, and of the longest one.
    seconds: float = 0.0
    longest_s: float = 0.0
    notes: dict[str, int | str] = field(default_factory=dict)
    tests: list[str] = field(default_factory=list)
    #: The end of the seeds of all large runs so far, if each run uses new seeds.
    seeds_upto: int = 0
    commit: str = ""
    date: str = ""

    def add(self, line: dict[str, Any]) -> None:
        self.count += line["count"]
        self.wrong += line["wrong"]
        self.seconds = round(self.seconds + line["seconds"], 1)
        self.longest_s = max(self.longest_s, line["seconds"])
        self.seeds_upto = max(self.seeds_upto, line.get("seeds_upto", 0))
        self.tests = sorted({*self.tests, line["test"]} - {""})
        for name, value in line["notes"].items():
            before = self.notes.get(name)
            both = isinstance(value, int) and isinstance(before, int)
            self.notes[name] = before + value if both else value

    def __str__(self) -> str:
        return f"{self.count:,} {self.what}: {self.wrong:,} {self.wrong_is}"


@dataclass(frozen=True)
class Proof:
    """A call of `proof` in the tests."""

    guarantees: tuple[str, ...]
    what: str
    file: str


@dataclass(frozen=True)
class Found:
    """A test with the marker `found`."""

    by: str
    what: str
    test: str


# --- proofs and regression tests --------------------------------------------------------------------------------------


@cache
def test_files() -> dict[str, ast.Module]:
    """Return the test files with proofs or regression tests, by path. Parsing all files would take seconds."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(text, str(path))
        for path in sorted([*(ROOT / "proof").rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
        if re.search(r"\bproof\(|\bmark\.found\(", text := path.read_text())
    }


def texts(call: ast.Call) -> list[str]:
    """Return the arguments that are string literals."""
    return [
        argument.value
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


@cache
def proofs() -> list[Proof]:
    result = []
    for file, tree in test_files().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id="proof")):
                    # An argument that is not a literal cannot be listed.
                    guarantee, what, *_ = [*texts(node), "", ""]
                    result.append(Proof(tuple(guarantee.split()), what, file))
    return result


@cache
def all_found() -> list[Found]:
    result = []
    for file, tree in test_files().items():
        for test in ast.walk(tree):
            if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in (part for decorator in test.decorator_list for part in ast.walk(decorator)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.found":
                    by, what, *_ = [*texts(node), "", ""]
                    result.append(Found(by, what, f"{file}::{test.name}"))
    return result


def summary_of(file: str) -> str:
    """Return the first paragraph of a module's docstring."""
    docstring = ast.get_docstring(test_files()[file]) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


# --- figures ----------------------------------------------------------------------------------------------------------


def gather(lines: list[str], wall_s: int) -> list[Figure]:
    """Sum the lines, replace the figures of the same proofs in figures.json, and return the sums."""
    known = {(" ".join(proof.guarantees), proof.what) for proof in proofs()}
    commit, date = commit_here(), datetime.now(UTC).date().isoformat()
    sums: dict[tuple[str, str, str], Figure] = {}
    for line in map(json.loads, lines):
        key = (line["guarantee"], line["what"], line["size"])
        sums.setdefault(key, Figure(*key, line["wrong_is"], commit=commit, date=date)).add(line)
    # The larger of two sizes counts.
    new = {(sum_.guarantee, sum_.what): sum_ for sum_ in sorted(sums.values(), key=lambda sum_: sum_.count)}
    old = {(figure.guarantee, figure.what): figure for figure in figures()}
    for key in new.keys() & old.keys():
        new[key].seeds_upto = max(new[key].seeds_upto, old[key].seeds_upto)
    kept = {key: figure for key, figure in {**old, **new}.items() if key in known}
    run = {
        "commit": commit,
        "date": date,
        "wall_s": wall_s,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if wall_s == 0 and FIGURES.exists():
        run = json.loads(FIGURES.read_text())["run"]  # a partial run keeps the last full run
    rows = [asdict(kept[key]) for key in sorted(kept, key=lambda key: (number(key[0]), key))]
    FIGURES.write_text(json.dumps({"run": run, "figures": rows}, indent=1, ensure_ascii=False) + "\n")
    return [new[key] for key in sorted(new, key=lambda key: (number(key[0]), key))]


def commit_here() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--", ".", ":!docs", ":!README.md")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + (" with changes" if changed else "")


def number(guarantee: str) -> int:
    return int(guarantee.split()[0].removeprefix("G"))


def figures() -> list[Figure]:
    return [Figure(**row) for row in json.loads(FIGURES.read_text())["figures"]] if FIGURES.exists() else []


def table(shown: list[Figure]) -> str:
    """Return the figures as a table for the terminal."""
    heads = ("", "what", "tried", "wrong", "seconds")
    rows = [
        (figure.guarantee, figure.what, f"{figure.count:,}", f"{figure.wrong:,}", f"{figure.seconds:,.0f}")
        for figure in shown
    ]
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(row))
        for row in (list(zip(cells, widths, strict=True)) for cells in (heads, *rows))
    ]
    return "\n".join([*(line.rstrip() for line in lines), *(f"NOT RUN: {what}" for what in not_run(shown))])


def not_run(run: list[Figure]) -> list[str]:
    return sorted({proof.what for proof in proofs()} - {figure.what for figure in run})


# --- pages ------------------------------------------------------------------------------------------------------------


def page() -> str:
    """Return the page, from figures.json and the tests alone."""
    parts = [HEAD, last_run(), promises()]
    for guarantee, sentence in GUARANTEES.items():
        parts.append(f"## {guarantee}\n\n{sentence}\n")
        parts.append(shown_for(guarantee))
    rows = [(cell(found.by), cell(found.what), f"`{found.test}`") for found in all_found()]
    return "\n".join([*parts, TRACK_RECORD, grid(("found by", "bug and fix", "regression test"), rows)])


def last_run() -> str:
    if not FIGURES.exists():
        return "There are no figures yet. `scripts/long` creates them.\n"
    run = json.loads(FIGURES.read_text())["run"]
    took = f"It took {duration(run['wall_s'])} on {run['cores']} cores" if run["wall_s"] else f"{run['cores']} cores"
    return (
        f"The last full run was on {run['date']}, of commit {run['commit']}. {took}, with Python "
        f"{run['python']} on {run['system']}.\n"
    )


def promises() -> str:
    reached = figures()
    rows = []
    for guarantee, sentence in GUARANTEES.items():
        results = [str(figure) for figure in reached if guarantee in figure.guarantee.split()]
        last = "<br>".join(results) or "no figure yet"
        rows.append((f"[{guarantee}](#{guarantee.lower()})", sentence, cell(last)))
    return grid(("", "guarantee", "last result"), rows)


def shown_for(guarantee: str) -> str:
    own = [proof for proof in proofs() if guarantee in proof.guarantees]
    by_name = {figure.what: figure for figure in figures() if guarantee in figure.guarantee.split()}
    rows, notes = [], []
    for what in dict.fromkeys(proof.what for proof in own):
        figure = by_name.get(what)
        if figure is None:
            rows.append((cell(what), "no figure yet", "", "", "", ""))
            continue
        wrong = f"{figure.wrong:,} {figure.wrong_is}"
        rows.append((cell(what), f"{figure.count:,}", wrong, duration(figure.seconds), figure.size, figure.commit))
        if figure.seeds_upto > figure.count:
            notes.append(f"- {what}: all large runs so far, each with new seeds: {figure.seeds_upto:,}.")
        if figure.notes:
            notes.append(f"- {what}: {'; '.join(f'{name} {spelled(value)}' for name, value in figure.notes.items())}.")
    files = sorted({proof.file for proof in own})
    shown = [f"- [{file}](../{file}): {summary_of(file)}" for file in files]
    command = f"KEDGE_PROOF=long .venv/bin/python -m pytest -n auto -m proof {' '.join(files)}"
    parts = [grid(("what", "tried", "wrong", "time", "size", "commit"), rows)]
    parts += ["\n".join([*notes, ""])] if notes else []
    return "\n".join([*parts, "Proofs:\n", *shown, "", f"```sh\n{command}\n```\n"])


def readme_part() -> str:
    by_name = {figure.what: figure for figure in figures()}
    lines = [f"- {by_name[what]}" for what in STRONGEST if what in by_name]
    return "\n".join(["Some results of the last large run:\n", *lines, "", ""])


def with_part(readme: str) -> str:
    return README_PART.sub(lambda _: readme_part(), readme)


def grid(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), ""])


def spelled(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def main(lines: str = "", wall_s: str = "0") -> int:
    missing = False
    if lines:
        path = Path(lines)
        if not path.exists():
            print(f"{lines} not found: no proof has written figures. Set KEDGE_FIGURES.", file=sys.stderr)
            return 1
        sums = gather(path.read_text().splitlines(), int(wall_s))
        print(table(sums))
        missing = bool(int(wall_s)) and bool(not_run(sums))
    PAGE.write_text(page())
    README.write_text(with_part(README.read_text()))
    return int(missing)  # in a full run each proof must have a figure


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
