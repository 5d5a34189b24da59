"""Random shell lines: commands that a rule covers, with and without shell tricks."""

from __future__ import annotations

import random
import shlex

#: Programs that the rules cover, and one that they do not: each is a shell function that records its call.
PROGRAMS = ("git", "ls", "echo", "make", "npm", "grep", "a")
CANARY = "rm"
RULES = (
    "bash(git *)",
    "bash(ls *)",
    "bash(echo *)",
    "bash(make *)",
    "bash(npm run test:*)",
    "bash(grep *)",
    "bash(a ?)",
)

WORDS = (
    "status", "log", "-la", "--oneline", "HEAD~1", "HEAD^", "src/app.py", "a", "b", "x=y", "-m", "run", "test:unit",
    "ü",
    "日本",
    "ﬁ",
    "０",
    "a:b",
    "@{u}",
    "1,2",
    "%H",
    "+x",
    ".",
    "..",
    "/",
    "-",
    "--",
    "^a",
    "test",
    "if",
    "done",
    "in",
)  # fmt: skip
#: Texts that quoting keeps literal.
QUOTABLE = (
    "a b",
    ";",
    "&&",
    "|",
    "$x",
    "`b`",
    "$(rm x)",
    "*",
    "?",
    "~",
    "#",
    "!",
    "<",
    ">",
    "(",
    "{a,b}",
    "\\",
    "'",
    '"',
    "",
)
TRICKS = (
    ";", ";;", "&", "&&", "||", "|", "|&", "\n", "\r", "\t", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u00a0",
    "\u3000",
    "; rm x", "\nrm x", "& rm x", "| rm", "&& rm x", "|| rm x", "`rm x`", "$(rm x)", "<(rm x)", ">(rm x)",
    "${x:-`rm x`}",
    "$", "$x", "${x}", "$x[$(rm x)]", "$((1))", "$[1]", "$'a'", "$'\\x3b'", '$"a"', "$!", "$?", "$$", "$#", "$@",
    "$0", "`",
    "<", ">", ">>", "<<", "<<<", "<>", ">|", "&>", "2>&1", "> b", "< b", "<<E", "<<E\nrm x\nE", "<<< b", "{fd}>b",
    "*", "?", "[ab]", "{a,b}", "{1..3}", "~", "~/x", "~root", "!", "!!", "^a^b", "!(a)", "@(a|b)", "a=~", ":~",
    "a/~",
    "#", " #", " # x", "'", '"', "\\", "\\\n", "(", ")", "{", "}", "[", "]", "[[", "((", "function ", "coproc ",
    "time ",
    "A=1 ", "A+=1 ", "a[0]=1 ", "if ", "then ", "do ", "! ", "{ ", "env ", "exec ", "command ", "builtin ",
    "eval ", ". ",
    "\\;", "\\&", "\\|", "\\$x", "\\`", "\\ ", "\\'", '\\"', "\0", "\x1b", "\u200b", "\u202e", "\ufeff",
    "\ud800", "\u0301",
    "% ", "=", ":", ",", "^", "@", "~1", "a~b", "^~x", "é~", "='", "\"$(rm x)\"", "\"`rm x`\"", "\"${x}\"",
    "\"\\$x\"", "\"\\\n\"",
)  # fmt: skip


def quoted(rng: random.Random, word: str) -> str:
    """The word in one of the notations that a shell reads as the same word."""
    kind = rng.randrange(8)
    if kind < 4:
        return word
    if kind == 4:
        return "'" + word.replace("'", "'\\''") + "'"
    if kind == 5:
        return '"' + "".join(f"\\{c}" if c in '$`"\\' else c for c in word) + '"'
    index = rng.randrange(len(word) + 1)
    if kind == 6:
        return word[:index] + rng.choice(("''", '""')) + word[index:]
    return word[:index] + "\\" + word[index:] if index < len(word) and word[index].isascii() else word


def random_line(rng: random.Random) -> str:
    """A command, mostly one that a rule covers, with up to three tricks inserted anywhere."""
    words = [rng.choice((*PROGRAMS, *PROGRAMS, CANARY))]
    if words[0] == "npm":
        words += ["run", "test:" + rng.choice(("unit", "a b", "x;rm"))]
    words += [rng.choice(WORDS) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    parts = [quoted(rng, word) for word in words]
    for _ in range(rng.choice((0, 0, 1))):
        parts.append(shlex.quote(rng.choice(QUOTABLE) + rng.choice(QUOTABLE)))
    line = rng.choice((" ", " ", " ", "  ")).join(parts)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3))):
        index = rng.choice((0, len(line), rng.randrange(len(line) + 1), rng.randrange(len(line) + 1)))
        line = line[:index] + rng.choice(TRICKS) + line[index:]
    return line


#: Constructs that run a command: {c} is a list of commands, {s} a simple command, {q} a list as one quoted word.
AROUND_LISTS = (
    "true; {c}", "{c}; true", "true && {c}", "false || {c}", "{c} & true", "true | {c}", "true\n{c}", "{c}\ntrue",
    "( {c} )", "({c})", "{{ {c}; }}", "echo $({c})", 'echo "$({c})"', "echo `echo; {c}`", "x=$({c})", "cat <({c})",
    "if true; then {c}; fi", "if {c}; then true; fi", "while false; do {c}; done", "until {c}; do true; done",
    "for i in a b; do {c}; done", "case x in x) {c};; esac", "f() {{ {c}; }}; f", "function f {{ {c}; }}; f",
    "[[ -n $({c}) ]]", "echo ${{x:-$({c})}}", "export A=$({c})", "echo $(( $({c}) ))", "true > out; {c}",
    "! ( {c} )",
    "sh -c {q}", "bash -c {q}", "bash -lc {q}", "eval {q}", "env sh -c {q}", "trap {q} EXIT", "( {c} ) > out 2>&1",
    "find . -exec sh -c {q} ';'", "timeout 5 bash -c {q}", "echo a | xargs sh -c {q}",
    "cat x | while read y; do {c}; done",
)  # fmt: skip
AROUND_COMMANDS = (
    "env {s}", "env -i A=1 {s}", "sudo -u root {s}", "timeout -s KILL 5 {s}", "nice -n 5 {s}", "nohup {s}",
    "setsid {s}",
    "stdbuf -o0 {s}", "xargs -n 1 {s}", "command {s}", "exec {s}", "time {s}", "! {s}", "A=1 B=2 {s}",
    "{s} > out", "> out {s}",
    "find . -exec {s} ';'", "find . -name x -execdir {s} {{}} +", "ssh host {s}", "ionice {s}", "doas {s}",
    "{s} 2>&1 | cat",
)  # fmt: skip
DENIED = (
    "rm x",
    "rm",
    "rm -rf x",
    "r\\m x",
    "'rm' x",
    '"rm" x',
    "r''m x",
    "/bin/rm x",
    "\\rm x",
    "./rm x",
    "rm $x",
    "rm *",
)


def denied_line(rng: random.Random) -> str:
    """A line that runs rm somewhere inside."""
    line = rng.choice(DENIED)
    for _ in range(rng.choice((0, 0, 1, 2))):
        # Assignments and redirections belong to the shell; after a program they would be its arguments.
        is_plain = not set(line) & set(">!|;") and not line.startswith(("A=1", "time "))
        line = rng.choice(AROUND_COMMANDS).format(s=line) if is_plain else line
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        outer = rng.choice(AROUND_LISTS)
        if "`" in outer and "`" in line:
            continue
        if line.startswith("(") and "({c}" in outer:
            line = f" {line}"  # $((x)) is always arithmetic
        line = outer.format(c=line, q=shlex.quote(line))
    return line
