"""Read-only command lines: those that run without an approval.

Every command of the line must be in the table of programs, with listed options only, and every path that it reads must
be one that the view tool would open without an approval: inside the workspace, with links resolved, not hidden by a
deny rule, and not a credential.

The shell does not get the line itself. `ReadOnlyLine.text` is the same line with quoted words, expanded globs and the
full path of each program: whatever this parser and a shell might understand differently, the shell runs what was
checked. git gets options that keep a repository from running programs, and the names that `xargs` reads are checked by
`xargs_guard` when they arrive.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from kedge.programs import first_program, is_outside
from kedge.tools import xargs_guard
from kedge.tools.credentials import CREDENTIALS, GREP_DIRECTORIES, GREP_OPTIONS, RG_OPTIONS
from kedge.tools.file_threads import checkpoint
from kedge.tools.git_reads import git_reading, is_git_environment_plain, is_plain_repository, without_credentials
from kedge.tools.path_expansion import Room, expand
from kedge.tools.program_rules import listed
from kedge.tools.read_only_programs import Program, parsed, program, read, version_options
from kedge.tools.strict_line import Part, StrictLine, Word
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.workspace_paths import GUARD_PARTS_MAX, Target, resolve

#: Limit of the words of a line with its globs expanded: each may be a path that is resolved. Items.
READ_WORDS_MAX = 1000

#: Commands that the shell does not look up in PATH.
_BUILTINS = frozenset({"echo", "printf", "pwd", "test", "[", "true", "false", "type", "cd"})
#: Commands that print their arguments and open no files.
_PRINTING = frozenset({"echo", "printf"})
#: Programs that read more files than those that a name stands for: `strings @FILE`, links in directories.
_NOT_OF_NAMES = frozenset({"strings", "diff"})
#: Programs that read all files of a directory, with the options that leave out those with credentials.
_SEARCHING = {
    **dict.fromkeys(("grep", "egrep", "fgrep"), (*GREP_OPTIONS, *GREP_DIRECTORIES)),
    "diff": GREP_OPTIONS,
    "rg": RG_OPTIONS,
}
_RECURSIVE = frozenset({"-r", "--recursive"})
#: Programs that choose another version of themselves by a file of the repository.
_SHIMS = frozenset({"rustup", "volta-shim", "mise", "asdf", "corepack", "rtx"})
_TEST_OPERATORS = listed("! = == != -eq -ne -lt -le -gt -ge -nt -ot -ef -e -f -d -r -w -x -s -L -h -n -z -a -o ( )")
_SED = parsed("text path* -nErsuz -e=text --quiet --silent --regexp-extended --expression=text")
#: Possessive: a script that does not match must not be tried in many ways.
_SED_ADDRESS = r"(?:[0-9]++(?:~[0-9]++)?|\$|/(?:[^/\\\[\n]|\\.|\[\^?+\]?+[^]/\\\n]*+\])*+/I?)"
_SED_COMMAND = rf" ?(?:{_SED_ADDRESS}(?:, ?(?:[+~][0-9]++|{_SED_ADDRESS}))? ?!?)? ?[pq=dln]? ?"
_SED_SCRIPT = re.compile(rf"{_SED_COMMAND}(?:;{_SED_COMMAND})*")
_FIND_FLAGS = listed(
    "! ( ) , -not -o -or -a -and -print -print0 -prune -empty -readable -writable -executable -depth -xdev -mount"
    " -true -false -ls -daystart -quit -nouser -nogroup -noleaf"
)
_FIND_VALUES = listed(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype -maxdepth -mindepth -size"
    " -mtime -mmin -ctime -cmin -atime -amin -perm -user -group -uid -gid -links -inum -newermt -printf -lname"
)


class Surroundings(Struct, frozen=True):
    """The place where a line would run, and the files it may read."""

    cwd: Path
    root: Path
    environment: Mapping[str, str]
    #: kedge's own files.
    guarded: tuple[Path, ...] = ()
    is_hidden: Callable[[str], bool] = lambda subject: False
    #: A deny rule hides some files: commands that read whole directories need an approval.
    hides_files: bool = False

    def is_open(self, path: str, directory: Path) -> bool:
        """Return whether a path may be read without an approval. Blocking."""
        if path in ("/dev/null", "-", ""):
            return True
        try:
            target = resolve(str(directory / path), self.root, self.guarded)
        except (ToolFailed, ValueError, OSError):
            return False
        is_closed = target.is_secret or target.is_credential or self._is_hidden(target)
        return target.is_inside and not is_closed

    def _is_hidden(self, target: Target) -> bool:
        return any(map(self.is_hidden, {target.subject, target.unresolved or target.subject, str(target.path)}))

    @property
    def has_closed_files(self) -> bool:
        own = [Path(os.path.realpath(path)) for path in self.guarded]
        return self.hides_files or any(path.is_relative_to(self.root) for path in own)


class ReadOnlyLine(Struct, frozen=True):
    #: For each command of the line: whether it only reads.
    parts: tuple[bool, ...]
    #: The line for the shell.
    text: str


def check_line(line: StrictLine, around: Surroundings) -> ReadOnlyLine:
    """Check every command of a line. Blocking."""
    can_read = not any(map(_loads_code, around.environment))
    is_read_only: list[bool] = []
    texts: list[str] = []
    may_write = False
    room = Room(READ_WORDS_MAX)
    for piece in line.pieces:
        if isinstance(piece, str):
            texts.append(_redirect(piece) if ">" in piece else piece)
            continue
        checkpoint()
        text = _checked(piece, around, room, may_write=may_write) if can_read else None
        may_write = may_write or text is None
        is_read_only.append(text is not None)
        texts.append(_plain(piece) if text is None else text)
    return ReadOnlyLine(tuple(is_read_only), " ".join(texts))


def _loads_code(variable: str) -> bool:
    """Return whether the shell or the dynamic loader runs code from a file that this variable names, or finds files
    elsewhere. A configuration may pass any variable."""
    return variable.startswith(
        ("BASH_ENV", "BASH_FUNC_", "ENV", "SHELLOPTS", "BASHOPTS", "LD_", "DYLD_", "GCONV_PATH", "LOCPATH", "CDPATH")
    ) or variable in ("POSIXLY_CORRECT", "MAGIC", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


# --- text for the shell ---


def _plain(part: Part) -> str:
    """Return a command that is not read-only, with the same words."""
    words = [part.name, *map(_spelled, part.words[1:])]
    return " ".join([*words, *map(_redirect, part.redirects), *(f"< {_spelled(word)}" for word in part.inputs)])


def _spelled(word: Word) -> str:
    pieces = [
        f'"{segment.text}"'
        if segment.kind == "variable"
        else segment.text
        if segment.kind == "glob"
        else shlex.quote(segment.text)
        for segment in word.segments
    ]
    return "".join(pieces) or "''"


def _redirect(sign: str) -> str:
    return ">/dev/null 2>&1" if sign.startswith("&>") else sign


# --- commands ---


class _Command(Struct, frozen=True):
    """The words of a command with its globs expanded."""

    name: str
    words: tuple[str, ...]
    directory: Path
    has_variable: bool


def _checked(part: Part, around: Surroundings, room: Room, *, may_write: bool) -> str | None:
    """Return the text of a read-only command for the shell, or None. `may_write`: a command before it may change files,
    so that a glob may mean other files when it runs."""
    directory = _directory(part.directory, around)
    if directory is None:
        return None
    if part.name == "cd":
        target = _directory(os.path.join(part.directory, part.words[1].text), around)
        # If the directory is gone, the rest must not run elsewhere.
        return f"cd -- {shlex.quote(str(target))} || exit" if target is not None and not part.inputs else None
    has_variable = any(word.is_variable for word in part.words)
    if has_variable and (part.name not in (*_PRINTING, "test", "[") or any(word.is_glob for word in part.words)):
        return None
    words: list[str] = []
    for word in part.words[1:]:
        if word.is_glob:
            names = None if may_write else expand(word, directory, room)
            if names is None or not all(around.is_open(name, directory) for name in names):
                return None
        else:
            names = [word.text]
        words += names
        room.words -= len(names)
    if room.words < 0 or not all(around.is_open(word.text, directory) for word in part.inputs):
        return None
    if part.name == "xargs" and part.inputs:
        return None  # the guard would not read them
    run = _run(_Command(part.name, tuple(words), directory, has_variable), around)
    if run is None:
        return None
    text = " ".join([part.name, *map(_spelled, part.words[1:])]) if has_variable else run
    inputs = [f"< {shlex.quote(word.text)}" for word in part.inputs]
    return " ".join([text, *map(_redirect, part.redirects), *inputs])


def _directory(path: str, around: Surroundings) -> Path | None:
    """Return a directory of the workspace, or None. Shells resolve `link/..` by its letters, programs by its target."""
    try:
        real = resolve(str(around.cwd / path), around.root).path
        by_letters = resolve(os.path.normpath(around.cwd / path), around.root).path
    except (ToolFailed, ValueError, OSError):
        return None
    is_inside = real.is_relative_to(around.root) and len(real.parts) <= GUARD_PARTS_MAX
    return real if is_inside and real == by_letters and real.is_dir() else None


def _run(command: _Command, around: Surroundings) -> str | None:
    """Return the text that runs a command, if it is read-only."""
    if command.name == "xargs":
        return _xargs(command, around)
    words = _words(command, around)
    path = _program(command.name, around) if words is not None else None
    return shlex.join([path, *words]) if words is not None and path is not None else None


def _program(name: str, around: Surroundings) -> str | None:
    """Return the program that a shell would run, if it is outside of the workspace."""
    if name in _BUILTINS:
        return name
    path = first_program(name, around.environment.get("PATH", os.defpath))
    if path is None or not is_outside(path, around.root):
        return None
    directories = around.environment.get("PATH", os.defpath).split(os.pathsep)
    # A script runs others by their names, which the workspace may replace: `egrep` runs grep. Or it loads modules.
    is_plain = all(is_outside(directory, around.root) for directory in directories) and not any(
        variable.startswith(("PERL", "PYTHON", "RUBY")) for variable in around.environment
    )
    if name != "which" and not is_plain and _is_script(path):
        return None
    # They are links to the program that chooses, or hard links.
    twins = (os.path.join(os.path.dirname(path), shim) for shim in _SHIMS)
    is_shim = "shims" in Path(path).parts or os.path.basename(os.path.realpath(path)) in _SHIMS
    is_shim = is_shim or any(os.path.exists(twin) and os.path.samefile(twin, path) for twin in twins)
    return None if is_shim else path


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def _words(command: _Command, around: Surroundings) -> tuple[str, ...] | None:
    """Return the words to run a command with, if they only read."""
    name, words = command.name, command.words
    if name in _PRINTING:
        return words
    if name in ("test", "["):
        return words if _is_test(command, around) else None
    if words and frozenset(words) <= version_options(name) and len(words) == 1:
        return words
    if name == "git":
        return _git(command, around)
    if name == "find":
        paths = find_paths(words)
    elif name == "sed":
        paths = _sed_paths(words)
    else:
        paths = _table_paths(command, around)
    if paths is None or not all(around.is_open(path, command.directory) for path in paths):
        return None
    return _without_credentials(name, words)


def _without_credentials(name: str, words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Add the options with which a program that searches directories skips files with credentials. None: unknown where
    they belong."""
    if name not in _SEARCHING:
        return words
    end = words.index("--") if "--" in words else len(words)
    reading = read(_rules(name), words[:end])
    if reading is None:
        return None  # the dashes are the value of an option
    if name in ("grep", "egrep", "fgrep") and _RECURSIVE.isdisjoint(reading.options):
        return words
    return (*words[:end], *_SEARCHING[name], *words[end:])


def _rules(name: str) -> Program:
    rules = program(name)
    assert rules is not None
    return rules


def _table_paths(command: _Command, around: Surroundings) -> tuple[str, ...] | None:
    rules = program(command.name)
    reading = read(rules, command.words) if rules is not None else None
    if reading is None:
        return None
    options = frozenset(reading.options)
    directories = any((command.directory / path).is_dir() for path in reading.paths)
    if command.name == "diff" and directories and "--no-dereference" not in options:
        return None  # it follows the links in them
    if command.name == "strings" and any(path.startswith("@") for path in reading.paths):
        return None  # a file with options
    if command.name == "rg" and "RIPGREP_CONFIG_PATH" in around.environment and "--no-config" not in options:
        return None
    reads_all = command.name == "rg" or directories or not _RECURSIVE.isdisjoint(options)
    if around.has_closed_files and reads_all and command.name in ("rg", "grep", "diff"):
        return None
    return reading.paths


def _is_test(command: _Command, around: Surroundings) -> bool:
    words = list(command.words)
    if command.name == "[" and (not words or words.pop() != "]"):
        return False
    operands = [word for word in words if word not in _TEST_OPERATORS]
    return not any(word.startswith("-") and not word[1:].isdigit() for word in operands) and all(
        around.is_open(word, command.directory) for word in operands
    )


def _git(command: _Command, around: Surroundings) -> tuple[str, ...] | None:
    reading = git_reading(command.words)
    if reading is None or not is_git_environment_plain(around.environment):
        return None
    directory = _directory(str(command.directory / reading.directory), around)
    if directory is None or not is_plain_repository(directory, around.root, shows_files=reading.shows_files):
        return None
    if reading.shows_files and around.has_closed_files:
        return None
    if not all(around.is_open(path, directory) for path in reading.paths):
        return None
    words = without_credentials(reading, directory)
    return ("-C", str(directory), *words) if words is not None and reading.directory else words


def find_paths(words: tuple[str, ...]) -> tuple[str, ...] | None:
    rest = list(words)[::-1]
    paths: list[str] = []
    while rest and rest[-1][:1] not in ("-", "(", "!", ","):
        paths.append(rest.pop())
    while rest:
        word = rest.pop()
        if word in ("-newer", "-samefile", "-anewer", "-cnewer") and rest:
            paths.append(rest.pop())
        elif word in _FIND_VALUES and rest:
            rest.pop()
        elif word not in _FIND_FLAGS:
            return None
    return tuple(paths)


def _sed_paths(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """`sed -n` with commands that print, skip or end."""
    scripts: list[str] = []
    plain: list[str] = []
    rest = list(words)[::-1]
    while rest:
        word = rest.pop()
        if word in ("-e", "--expression") and rest:
            scripts.append(rest.pop())
        else:
            plain.append(word)
    reading = read(_SED, tuple(plain))
    if reading is None or {"-e", "--expression"} & {*reading.options}:
        return None
    if {"-n", "--quiet", "--silent"}.isdisjoint(reading.options) or not (scripts or reading.arguments):
        return None
    paths = reading.arguments if scripts else reading.arguments[1:]
    scripts += [] if scripts else [reading.arguments[0]]
    return paths if all(_SED_SCRIPT.fullmatch(script) for script in scripts) else None


def _xargs(command: _Command, around: Surroundings) -> str | None:
    """`xargs` of a command whose further arguments are paths or text. The guard checks each name that arrives."""
    how = _xargs_options(command.words)
    if how is None or around.has_closed_files:
        return None
    name, *rest = how.command
    rules = program(name)
    if name != "echo" and name != "sed" and (rules is None or rules.arguments[-1:] not in (("path*",), ("text*",))):
        return None
    if name in _NOT_OF_NAMES:
        return None
    if how.mark:
        if name in ("jq", how.mark) or any(how.mark in word and word != how.mark for word in rest):
            return None
        tried = tuple("./x" if word == how.mark else word for word in rest)
    else:
        tried = (*rest, "./x", "./x")
        if rules is not None and rules.arguments[0] in ("pattern", "filter"):
            own = read(rules, tuple(rest))
            if own is None or not (own.arguments or own.options):
                return None  # a name would be the pattern
            if rules.arguments[0] == "filter" and not own.arguments:
                return None  # a name would be the program
        if name == "sed" and _sed_paths(tuple(rest)) is None:
            return None
    words = _words(_Command(name, tried, command.directory, has_variable=False), around)
    path = first_program(name, around.environment.get("PATH", os.defpath))
    xargs = _program("xargs", around)
    searching = _without_credentials(name, tuple(rest))
    if words is None or searching is None or path is None or xargs is None or not is_outside(path, around.root):
        return None
    if not all(is_outside(file, around.root) for file in (sys.executable, xargs_guard.__file__)):
        return None
    guard = [sys.executable, "-I", "-S", xargs_guard.__file__, how.split, str(around.root), CREDENTIALS.pattern]
    return f"{shlex.join(guard)} | {shlex.join([xargs, '-0', *how.options, path, *searching])}"


class _Xargs(Struct, frozen=True):
    #: How the input is split: at NULs, line ends, or as words with quotes.
    split: Literal["nul", "lines", "words"]
    #: The text that a name replaces. Empty: names are added at the end.
    mark: str
    options: tuple[str, ...]
    command: tuple[str, ...]


_XARGS_OPTION = re.compile(r"(-[nPId]|--max-args=|--max-procs=)(.*)", re.DOTALL)


def _xargs_options(words: tuple[str, ...]) -> _Xargs | None:
    split: Literal["nul", "lines", "words"] = "words"
    mark = ""
    options: list[str] = []
    rest = list(words)[::-1]
    while rest and rest[-1].startswith("-"):
        word = rest.pop()
        match = _XARGS_OPTION.fullmatch(word)
        if word in ("-0", "--null"):
            split = "nul"
        elif word in ("-r", "-t", "--no-run-if-empty"):
            options.append(word)
        elif match is None:
            return None
        else:
            value = match[2] or (rest.pop() if rest and not match[1].endswith("=") else "")
            if match[1] == "-I" and value and not value.startswith("-"):
                mark = value
                split = split if split == "nul" else "lines"
                options += ["-I", value]
            elif match[1] == "-d" and value == "\\n":
                split = "lines"
            elif match[1] not in ("-I", "-d") and value.isascii() and value.isdigit():
                options.append(match[1] + value)
            else:
                return None
    return _Xargs(split, mark, tuple(options), tuple(reversed(rest))) if rest else None
