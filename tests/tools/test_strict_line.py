"""The strict parser of shell lines: what it accepts means in bash exactly what it returns."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from kedge.tools.strict_line import STRICT_DEPTH_MAX, STRICT_PARTS_MAX, Part, StrictLine, parse_strictly, strict_parts

#: Lines, and their commands: the words of each, with its directory.
_ACCEPTED: dict[str, list[tuple[str, list[str]]]] = {
    "ls": [("", ["ls"])],
    "  ls \t -la  ": [("", ["ls", "-la"])],
    "cat 'a b' \"c d\" e\\ f g''h": [("", ["cat", "a b", "c d", "e f", "gh"])],
    "cat '' \"\"": [("", ["cat", "", ""])],
    'grep "a$" \'x$y\' "\\$z \\\\ \\n"': [("", ["grep", "a$", "x$y", "$z \\ \\n"])],
    "git log --oneline -5 | head -n 3": [("", ["git", "log", "--oneline", "-5"]), ("", ["head", "-n", "3"])],
    "a && b || c ; d": [("", ["a"]), ("", ["b"]), ("", ["c"]), ("", ["d"])],
    "a&&b||c;d|e": [("", ["a"]), ("", ["b"]), ("", ["c"]), ("", ["d"]), ("", ["e"])],
    "a &&\nb |\n# why\nc\n\nd;\n": [("", ["a"]), ("", ["b"]), ("", ["c"]), ("", ["d"])],
    "# first\na # second ; b\nc": [("", ["a"]), ("", ["c"])],
    "a 'b'#c d#e": [("", ["a", "b#c", "d#e"])],
    "a \\\n  b": [("", ["a", "b"])],
    "cd x && a; b": [("", ["cd", "x"]), ("x", ["a"]), ("x", ["b"])],
    "cd x && cd ../y && a | b": [("", ["cd", "x"]), ("x", ["cd", "../y"]), ("x/../y", ["a"]), ("x/../y", ["b"])],
    "(cd x; a) 2>&1 | b": [("", ["cd", "x"]), ("x", ["a"]), ("", ["b"])],
    "( (a); b )": [("", ["a"]), ("", ["b"])],
    "a 2>&1 >/dev/null 2>/dev/null 1> /dev/null >>/dev/null &>/dev/null >&2": [("", ["a"])],
    "a < 'in put' </dev/null": [("", ["a"])],
    "echo 2 >/dev/null": [("", ["echo", "2"])],
    "[ -f x ] && test ! -d y": [("", ["[", "-f", "x", "]"]), ("", ["test", "!", "-d", "y"])],
    "find . \\( -name '*.c' -o -name b \\) ! -empty": [
        ("", ["find", ".", "(", "-name", "*.c", "-o", "-name", "b", ")", "!", "-empty"])
    ],
    "git show stash@{0} HEAD~2 HEAD^ @{u} a:b": [("", ["git", "show", "stash@{0}", "HEAD~2", "HEAD^", "@{u}", "a:b"])],
    "xargs -I{} echo {}": [("", ["xargs", "-I{}", "echo", "{}"])],
    "printf '%s %5d%%\\n' a 1": [("", ["printf", "%s %5d%%\\n", "a", "1"])],
    "cat über.txt": [("", ["cat", "über.txt"])],
}

_REFUSED = r"""
a > f
a >f
a>/dev/null
a >> f
a 2> f
a &> f
a >| f
a <> f
a << EOF
a <<< x
a <(b)
a >(b)
a >/dev/nullx
a >/dev/null/../x
a > "/dev/null" > x
a 2>&1x
a 2>&f
a 3>&1
a <&0
a >&-
{x}>/dev/null
a &
a & b
a |& b
a ;; b
a ; ; b
a &&
| a
a ||
a | | b
&& a
()
( a
a )
((a))
$((1))
(a) b
(a) < f
a (b)
f() a
a $(b)
a `b`
a "`b`"
a "$(b)"
a ${b}
a ${HOME:-x}
a $b
a $HOMEX
a $1
a $@
a $'b'
a $"b"
a b$
x=1
x=1 a
x+=1 a
x[0]=1 a
export x=1
A=b;a
"a" b
'a' b
\a b
a\b
*a b
$HOME/a
~/a b
a ~
a ~/b
a ~root/b
a x=~/b
a x:~
a {b,c}
a {1..3}
a x{b,c}y
a {a{b},c}
! a
if a; then b; fi
for x in a; do b; done
while a; do b; done
case x in esac
{ a; }
[[ a ]]
time a
coproc a
function f
eval a
exec a
source a
. a
command a
builtin a
set -f
shopt -s x
alias a=b
trap a b
read x
cd
cd -
cd ~
cd -P x
cd $HOME
cd x y
cd *
cd x || a
cd x | a
a && cd x
a || cd x
a | cd x
a 'b
a "b
a "b\
a \
printf -v x y
printf %n x
printf '%5n' x
printf '%(%s)T'
printf $HOME
printf *
test -v x
[ -v 'a[$(b)]' ]
[ -R x ]
[ * = x ]
a [b
a b]c[d
a [[:alpha:]]
a [b/c]
a ^b'c
""".strip().splitlines()


def test_plain_lines_are_parsed_into_their_commands() -> None:
    for line, commands in _ACCEPTED.items():
        parts = strict_parts(line)
        assert parts is not None, line
        assert [(part.directory, [word.text for word in part.words]) for part in parts] == commands, line


def test_anything_else_is_refused() -> None:
    invisible = [
        "a\u00a0b",
        "a\u3000b",
        "a '\u200b'",
        "a\rb",
        "a\x0bb",
        "a\x00b",
        "a '\x1b[2K'",
        "a # \u202e",
        "a\u2028b",
    ]
    multiline = ["a 'b\nc'", 'a "b\nc"', "a\\\nb", "a &&\\\nb", "a <<E\nb\nE", "a \\\t b"]
    for line in [*_REFUSED, *invisible, *multiline, "", " ", "\n", "# a"]:
        assert parse_strictly(line) is None, line


def test_globs_and_variables_are_marked() -> None:
    line = "a *.py src/*.py ./[a-z]? '*' ''* \"$HOME\"/b -* b$? ${PIPESTATUS[0]}"
    (part,) = strict_parts(line) or ()
    words = part.words[1:]
    assert [word.is_glob for word in words] == [True, True, True, False, True, False, True, False, False]
    assert [word.is_variable for word in words] == [False] * 5 + [True, False, True, True]
    assert [word.can_become_option for word in words] == [True, False, False, False, True, True, True, False, True]
    assert part.literal_words is None


def test_lines_are_bounded() -> None:
    assert strict_parts(";".join(["a"] * STRICT_PARTS_MAX)) is not None
    assert strict_parts(";".join(["a"] * (STRICT_PARTS_MAX + 1))) is None
    assert strict_parts("( " * STRICT_DEPTH_MAX + "a" + " )" * STRICT_DEPTH_MAX) is not None
    assert strict_parts("( " * (STRICT_DEPTH_MAX + 1) + "a" + " )" * (STRICT_DEPTH_MAX + 1)) is None
    for text in ("(" * 9999, "'" * 9999, "a " * 5000, '"$HOME"' * 1400, "printf %" + "0" * 9000, "[a" * 5000):
        parse_strictly(text)
    assert strict_parts("a" * 10_001) is None


def test_bash_runs_the_words_that_were_parsed(tmp_path: Path) -> None:
    """Each command of the accepted lines is a program that prints its words and its directory."""
    program = "import json, os, sys\nprint(json.dumps([os.getcwd(), sys.argv]), file=open(os.environ['OUT'], 'a'))\n"
    script = f"#!{sys.executable} -S\n{program}"
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("ls", "cat", "grep", "git", "head", "find", "xargs", *"abcde"):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    for line, commands in _ACCEPTED.items():
        parsed = parse_strictly(line)
        assert parsed is not None
        names = [part.name for part in parsed.parts]
        if "|" in line or any(name in ("echo", "printf", "test", "[") for name in names):
            continue  # several at once, or not started as programs
        root = tmp_path / "root"
        for directory in ("", "x", "y"):
            (root / directory).mkdir(exist_ok=True)
        (root / "in put").touch()
        out = tmp_path / "out"
        out.write_text("")
        subprocess.run(
            [shutil.which("bash") or "/bin/bash", "-c", line],
            cwd=root,
            env={"PATH": str(programs), "OUT": str(out), "LC_ALL": "C.UTF-8"},
            check=True,
        )
        ran = [json.loads(text) for text in out.read_text().splitlines()]
        assert [[str((root / part.directory).resolve()), _words(part)] for part in _programs(parsed)] == [
            [directory, [Path(argv[0]).name, *argv[1:]]] for directory, argv in ran
        ], line
        assert commands


def _programs(line: StrictLine) -> list[Part]:
    return [part for part in line.parts if part.name != "cd"]


def _words(part: Part) -> list[str]:
    return [word.text for word in part.words]
