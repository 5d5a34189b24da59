"""The shell parser, compared with real shells and tried with hostile texts."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from kedge.core.untrusted_text import is_invisible, one_line, visible
from kedge.tools.shell_parser import (
    COMMANDS_MAX,
    DEPTH_MAX,
    LINE_WORDS_MAX,
    LOCAL_BYTES_MAX,
    RULE_WORDS_MAX,
    SHELL_LINE_CHARS_MAX,
    WORKER_WORK_MAX,
    commands_of,
    find_commands,
    plain_words,
)

#: Pieces of tricky command lines.
PIECES = (
    "a", "b", "-x", "if", "time", "A=1", "git", "ü", "日", "0", ".",
    "'", '"', "\\", " ", "  ", "$", "`", "(", ")", "{", "}", "[", "]", "*", "?", "~", "^", "!", "#", "=", ":", "@",
    ";", "&", "|", "<", ">", "%", "+", ",", "/", "-", "\n", "\t", "\r", "$(", "''", '""', "'a b'", '"c d"', "\\ ",
    "HEAD~1",
)  # fmt: skip


@pytest.mark.parametrize("shell", [name for name in ("bash", "dash", "sh") if shutil.which(name)])
def test_plain_words_match_a_real_shell(shell: str) -> None:
    chance = random.Random(20)
    lines: dict[str, tuple[str, ...]] = {}
    while len(lines) < 3000:
        line = "".join(chance.choices(PIECES, k=chance.randrange(1, 9)))
        words = plain_words(line)
        if words is not None:
            lines[line.strip(" \t\n")] = words
    # A line that were more than words would run as a command, or end up in another line's words.
    script = "".join(f"printf '%s\\0' x {line}\nprintf '\\n\\0'\n" for line in lines)
    done = subprocess.run(
        [shell], input=script.encode(), capture_output=True, timeout=50, check=True, cwd="/", env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stderr == b""
    read = [tuple(part.split("\0")[1:-1]) for part in done.stdout.decode().split("\n\0")[:-1]]
    assert read == list(lines.values())


def test_words_lose_their_quotes_and_backslashes() -> None:
    assert plain_words("""git commit -m "a \\"b\\" \\c" 'd "e"' f\\ g ''""") == (
        "git",
        "commit",
        "-m",
        'a "b" \\c',
        'd "e"',
        "f g",
        "",
    )


@pytest.mark.parametrize("line", ["", " ", "\n", "''", "A=b", "if", "a=b c", "echo \ud800"])
def test_lines_without_a_command_are_not_plain(line: str) -> None:
    assert plain_words(line) is None


def test_every_command_of_a_line_is_found() -> None:
    assert set(commands_of("a 1; b $x | c; (d) && e `f`")) == {
        ("a", "1"),
        ("b", None),
        ("c",),
        ("d",),
        ("e", None),
        ("f",),
    }
    assert ("python", "x") in commands_of('"$VENV/bin/python" x')
    assert ("git", "push") in commands_of("git -C a push")


def test_commands_of_an_invalid_line_are_found() -> None:
    commands = commands_of("rm x; if")
    assert ("rm", "x") in commands
    assert (None,) not in commands


@pytest.mark.parametrize(
    "line",
    [
        "(" * 50_000,
        "$(" * 30_000,
        "{" * 100_000,
        '"$(' * 20_000,
        "a;" * 50_000,
        "env " * 25_000 + "rm x",
        "sudo " * 30 + "rm x",
        "eval " * 40 + "rm x",
        "<<E\n" * 20_000,
        "if " * 30_000,
        "[[ " * 30_000,
        "`" * 50_000,
        "a" * (SHELL_LINE_CHARS_MAX + 1),
        "sh -c " * 2000 + "rm",
        "'" + "a" * 100_000,
        "\\" * 100_001,
    ],
    ids=lambda line: line[:6],
)
def test_hostile_line_takes_bounded_work(line: str) -> None:
    words = plain_words(line)
    assert words is None or len(words) < 20_000
    assert len(commands_of(line)) <= COMMANDS_MAX + 1


@pytest.mark.found(
    "attack 2",
    "a command line of 3 kB took the grammar 14 s on the event loop, without asking; each text is read once, the "
    "work for a line is bounded, and a long line is read in a process that the kernel ends",
)
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "line",
    [
        "env " * 60 + "'-x=y=" + "a=(" * 30_000 + " '",
        "sh -c '" + "$[" * 45_000 + "'",
        "x) " * 33_000,
        "a|" * 49_000,
        "[  " + "-&" * 40_000 + "x(<<<",
        "fd " + "-x " * 33_000,
        "{ " * 8000 + "a" + " >b c; }" * 8000,
        "sh -c " + " ".join(f"a{number}" for number in range(14_000)),
    ],
    ids=lambda line: line[:8],
)
def test_grammar_takes_bounded_time(line: str) -> None:
    commands = commands_of(line)
    assert (None,) in commands or len(commands) <= 3


def test_text_after_many_wrappers_is_parsed_once() -> None:
    """And the same in a process of its own as here."""
    line = "env " * 60 + "'-x=y=" + "a=(" * 20 + "; rm x'"
    assert len(line.encode()) > LOCAL_BYTES_MAX
    commands = commands_of(line)
    assert ("rm", "x") in commands
    assert (None,) not in commands
    assert find_commands(line, WORKER_WORK_MAX) == commands


@pytest.mark.found(
    "a line with thousands of equal commands",
    "only the last 2000 commands of a line were looked at, so that `rm x;` before 3000 times `a;` passed a deny rule; "
    "equal ones count once, and a line with more is one that could run anything",
)
def test_repeated_commands_hide_no_other() -> None:
    assert ("rm", "x") in commands_of("rm x;" + "a;" * 3000)


def test_rules_get_a_bounded_number_of_words() -> None:
    commands = commands_of("find " + "a " * 1000 + "-exec rm " * 40 + "b " * 1000)
    assert ("rm", "b") in [(command[0], command[-1]) for command in commands]
    assert max(map(len, commands)) == RULE_WORDS_MAX
    found = commands_of("; ".join(f"find {number} " + "-exec rm " * 60 + f"b{number} " * 400 for number in range(20)))
    assert (None,) in found
    assert sum(map(len, found)) <= LINE_WORDS_MAX + RULE_WORDS_MAX + 1


def test_deeply_nested_shells_are_unknown() -> None:
    line = "rm x"
    for _ in range(DEPTH_MAX + 2):
        line = "sh -c '" + line.replace("'", "'\\''") + "'"
    assert (None,) in commands_of(line)


def test_visible_text_hides_nothing() -> None:
    assert visible("ls -la") == "ls -la"
    assert visible("a\u202eb\u200bc\x1b[0m\u00a0\u3164\ufe0f\U000e0041") == (
        "a\\u{202e}b\\u{200b}c\\u{1b}[0m\\u{a0}\\u{3164}\\u{fe0f}\\u{e0041}"
    )
    assert visible("a\n\tb\r") == "a\n\tb\\u{d}"
    assert visible("grüße 日本") == "grüße 日本"
    long = "x" * 100_000 + "\0"
    assert visible(long) == "x" * 100_000 + "\\u{0}"


def test_a_title_is_one_line_and_cut() -> None:
    assert one_line("\n  a\u2028b \nc", 80) == "a"
    assert one_line("a\x1bb", 80) == "a\\u{1b}b"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"
    assert one_line("", 10) == ""


def test_invisible_characters_are_known() -> None:
    assert all(map(is_invisible, "\0\t\n\x7f\x85\u00ad\u200b\u2028\ufeff\ue000\u2800\ud800"))
    assert not any(map(is_invisible, " aé日+$"))
