"""Fuzzed commands against rules, compared with real shells: a rule allows exactly one command, word for word."""

from __future__ import annotations

import random
import shlex
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from kedge.core.approvals import parse_rules
from kedge.tools.shell_parser import plain_words
from kedge.tools.strict_line import parse_strictly
from proof.figures import IS_LONG, proof
from tests.fuzz.random_lines import CANARY, PROGRAMS, RULES, denied_line, quoted, random_line
from tests.fuzz.seeds import IS_REPLAY, name_of, parts, replay
from tests.tools.test_rules import corpus, said

#: Lines per seed.
EACH = 100
#: Lines per shell process.
BATCH = 2_000
#: Each program prints its call. No other program exists, so a line that runs more than expected fails.
STUBS = "".join(f"{name}() {{ printf '%s\\0' {name} \"$@\"; }}\n" for name in (*PROGRAMS, CANARY))
#: Files that globs can match. None may change.
FILES = ("a", "b", "ab", "test:unit", "status")


def calls_in_shell(shell: str, lines: list[str], directory: Path) -> list[tuple[str, ...]]:
    """The program calls of each line, as one tuple per line."""
    script = STUBS + "".join(f"{line}\nprintf '\\n\\0'\n" for line in lines)
    environment = {"PATH": "/nonexistent", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [f"/bin/{shell}", "-s"],
        input=script.encode(),
        capture_output=True,
        cwd=directory,
        env=environment,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stderr[:500]
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    return [tuple(part.split("\0")[:-1]) for part in done.stdout.decode().split("\n\0")[:-1]]


def words_of(line: str) -> tuple[str, ...] | None:
    """The words of all commands of an allowed line, or None if the stubs of a shell would not print all of them."""
    parsed = parse_strictly(line)
    if parsed is None:
        return plain_words(line)
    is_printed = not {"|", "||"} & {piece for piece in parsed.pieces if isinstance(piece, str)}
    if not is_printed or ">" in line:
        return None
    return tuple(word for part in parsed.parts for word in part.literal_words or ())


def check_with_shells(allowed: list[tuple[int, str]], directory: Path) -> int:
    """Check that each (seed, line) runs in real shells as the rules parsed it; return the number of runs."""
    remaining = iter(allowed)
    tried = 0
    while batch := list(islice(remaining, BATCH)):
        lines = [line for _, line in batch]
        expected = [words_of(line) for line in lines]
        for shell in ("bash", "dash"):
            if not Path(f"/bin/{shell}").exists():
                continue
            actual = calls_in_shell(shell, lines, directory)
            wrong = [(item, words) for item, words, call in zip(batch, actual, expected, strict=True) if words != call]
            assert wrong == [], f"{shell}: {replay('test_shell_rules.py', wrong[0][0][0])}"
            tried += len(lines)
    return tried


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("seeds", parts(50, 10_000, 1_000), ids=name_of)
def test_allowed_words_match_real_shells(directory: Path, seeds: range) -> None:
    rules = parse_rules(RULES, ())
    with proof("G14", "fuzzed commands", "bypasses") as figure:
        allowed: list[tuple[int, str]] = []
        for seed in seeds:
            rng = random.Random(seed)
            for _ in range(EACH):
                line = random_line(rng)
                decision = said(line, rules).decision
                assert decision != "deny", replay("test_shell_rules.py", seed)
                if decision == "allow" and words_of(line) is not None:
                    allowed.append((seed, line))
        runs = check_with_shells(allowed, directory)
        figure.count, figure.notes = len(seeds) * EACH, {"allowed": len(allowed), "runs in real shells": runs}
        assert IS_REPLAY or len(allowed) > figure.count // 20


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("seeds", parts(50, 10_000, 1_000), ids=name_of)
def test_nested_denied_command_is_denied(seeds: range) -> None:
    """Approvals are skipped and every command is allowed: only the deny rule refuses."""
    rules = parse_rules(("bash",), (f"bash({CANARY} *)",))
    with proof("G14", "fuzzed commands with a denied one inside", "bypasses") as figure:
        for seed in seeds:
            rng = random.Random(seed)
            lines = [denied_line(rng) for _ in range(EACH)]
            wrong = [line for line in lines if said(line, rules, skip=True).decision != "deny"]
            figure.count += len(lines)
            figure.wrong += len(wrong)
            assert wrong == [], replay("test_shell_rules.py", seed)


def test_generated_lines_are_valid_shell() -> None:
    """Otherwise the test above would prove nothing."""
    rng = random.Random(4)
    for line in {denied_line(rng) for _ in range(100)}:
        subprocess.run(["/bin/bash", "-n", "-c", line], check=True)


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("seeds", parts(50, 2_000, 1_000), ids=name_of)
def test_corpus_tricks_ask_in_any_quoting(seeds: range) -> None:
    """Covers tricks that are plain words to the shell, and ask because of their effect in the program."""
    lines = [(rules, words) for rules, line in corpus("corpus_must_ask.txt") if (words := plain_words(line))]
    assert len(lines) > 200
    with proof("G14", "tricks in other quotes", "bypasses") as figure:
        for seed in seeds:
            rng = random.Random(seed)
            for rules, words in rng.choices(lines, k=EACH):
                line = " ".join(quoted(rng, word) if word.isalnum() else shlex.quote(word) for word in words)
                assert plain_words(line) in (words, None)
                assert said(line, parse_rules(rules, ())).decision == "ask", replay("test_shell_rules.py", seed)
            figure.count += EACH
