"""The programs of read-only commands: the options and arguments of each that only read.

An allow list: an option that is not listed here needs an approval. Options are listed by their exact names, so that an
abbreviation (`--outp`) is unknown, too. A word in this language is

    -abc           flags of one letter             --name          a flag
    -n=number      a letter with a value           --name=text     an option with a value, `--name v` or `--name=v`
    -NUM           `-20`                           --name[=text]   an option with or without `=v`
    -SINGLE        each option is a word of its own: the program does not read `-ab` and `-nVALUE` as others do

and the words before the dashes are the kinds of the arguments; `*` stands for any number of them, `?` for at most one.
"""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct

#: The values of these kinds. A path is checked on the file system.
_KINDS = {
    "number": re.compile(r"[+-]?[0-9]{1,12}(?:\.[0-9]{1,6})?[bkKmMgGB]?"),
    # A name that is searched in PATH, or in a list of the program.
    "name": re.compile(r"[A-Za-z0-9_.+@-]*"),
    "word": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*"),
    "form": re.compile(r"\+.*"),
    # A program of jq that reads no other files and no environment.
    "filter": re.compile(
        r"(?!.*\b(?:import|include|env|ENV|modulemeta|get_search_list|input_filename)\b).*", re.DOTALL
    ),
    # For `wildcard_programs`: a script of a package, a remote of git, a branch or tag, a setting of cmake.
    "script": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*"),
    "remote": re.compile(r"[a-z]+"),
    "ref": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@:-]*"),
    "define": re.compile(r"(?:CMAKE_BUILD_TYPE|BUILD_TESTING|CMAKE_EXPORT_COMPILE_COMMANDS)=\w+"),
    "noplugin": re.compile(r"no:\w+"),
    "false": re.compile(r"false"),
}
_CHECKSUM = "path* -bt --binary --text --tag"

_TABLE = {
    "cat": "path* -AbeEnstTuv --number --number-nonblank --show-all --show-ends --show-tabs --squeeze-blank",
    "tac": "path*",
    "rev": "path*",
    "head": "path* -qvz -NUM -n=number -c=number --lines=number --bytes=number --quiet --verbose",
    "tail": "path* -qvz -NUM -n=number -c=number --lines=number --bytes=number --quiet --verbose",
    "wc": "path* -clmwL --lines --words --bytes --chars --max-line-length",
    "nl": "path* -b=text -n=text -s=text -w=number -v=number -i=number",
    "fold": "path* -s -w=number --width=number --spaces",
    "column": "path* -tx -s=text -o=text -c=number",
    "paste": "path* -s -d=text --serial --delimiters=text",
    "expand": "path* -t=number",
    "ls": """path* -aAbBcCdfFgGhiklmnNopqQrRsStuUvxX1 -w=number -I=text --all --almost-all --recursive --reverse
        --human-readable --directory --classify[=text] --size --inode --full-time --numeric-uid-gid --no-group
        --group-directories-first --color[=text] --sort=text --time=text --time-style=text --ignore=text --hide=text
        --format=text --indicator-style=text""",
    "tree": """path* -SINGLE -adfighpsuCnDrtJQ -L=number -I=text -P=text --dirsfirst --noreport --gitignore --prune --du
        --filelimit=number --sort=text --si --matchdirs""",
    "file": "path* -bikNh --brief --mime --mime-type --mime-encoding --no-pad --extension",
    "stat": "path* -ftxL -c=text --format=text --printf=text --terse --file-system --dereference",
    "du": """path* -abchkmsxS0 -d=number -t=text --all --apparent-size --bytes --total --human-readable --summarize
        --max-depth=number --exclude=text --one-file-system --time --si""",
    "df": "path* -ahiklPT --all --human-readable --inodes --local --portability --print-type --total --si",
    "grep": """pattern path* -abcEFGhHiIlLnoPqrsTUvVwxyzZ -NUM -A=number -B=number -C=number -m=number -e=pattern
        -f=patterns --recursive --line-number --ignore-case --no-ignore-case --invert-match --word-regexp --line-regexp
        --count --color[=text] --colour[=text] --files-with-matches --files-without-match --only-matching --quiet
        --silent --no-messages --byte-offset --with-filename --no-filename --null --null-data --extended-regexp
        --fixed-strings --basic-regexp --perl-regexp --text --include=text --exclude=text --exclude-dir=text
        --max-count=number --after-context=number --before-context=number --context=number --regexp=pattern
        --file=patterns --label=text --version""",
    "rg": """pattern path* -abcFhHiIlnNopPqsSuUvVwx0 -A=number -B=number -C=number -m=number -M=number -j=number
        -d=number -e=pattern -f=patterns -g=text -t=text -T=text -r=text --line-number --no-line-number --ignore-case
        --smart-case --case-sensitive --word-regexp --line-regexp --invert-match --count --count-matches
        --files-with-matches --files-without-match --files --hidden --no-hidden --no-ignore --no-ignore-vcs
        --no-ignore-parent --no-config --glob=text --iglob=text --glob-case-insensitive --type=text --type-not=text
        --type-list --max-depth=number --max-count=number --max-columns=number --max-columns-preview
        --max-filesize=number --fixed-strings --regexp=pattern --file=patterns --replace=text --only-matching
        --after-context=number --before-context=number --context=number --context-separator=text --multiline
        --multiline-dotall --pcre2 --json --stats --sort=text --sortr=text --heading --no-heading --column --vimgrep
        --color=text --colors=text --trim --passthru --text --no-messages --with-filename --no-filename --quiet
        --null --unrestricted --one-file-system --threads=number --pretty --byte-offset --version""",
    "sort": """path* -bcCdfghiMmnrRsuVz -k=text -t=text -S=text --numeric-sort --reverse --unique --key=text
        --field-separator=text --human-numeric-sort --version-sort --ignore-case --ignore-leading-blanks --stable
        --general-numeric-sort --month-sort --dictionary-order --check[=text] --zero-terminated --parallel=number""",
    "uniq": """path? -cdDuiz -f=number -s=number -w=number --count --repeated --unique --ignore-case
        --skip-fields=number --skip-chars=number --check-chars=number""",
    "cut": """path* -snz -d=text -f=text -c=text -b=text --delimiter=text --fields=text --characters=text --bytes=text
        --complement --only-delimited --output-delimiter=text""",
    "tr": "text* -cCdst --delete --squeeze-repeats --complement --truncate-set1",
    "comm": "path* -123iz --check-order --nocheck-order --output-delimiter=text --total",
    "cmp": "path* -bls -n=number --print-bytes --bytes=number --verbose --quiet --silent",
    "diff": """path* -abBcdeEiNnqrstTuwyZ -U=number -C=number -W=number -x=text -I=text -p --brief --unified[=number]
        --context[=number] --side-by-side --ignore-all-space --ignore-space-change --ignore-blank-lines
        --ignore-case --ignore-trailing-space --color[=text] --width=number --suppress-common-lines --text
        --recursive --report-identical-files --strip-trailing-cr --new-file --exclude=text --no-dereference --minimal
        --left-column --show-c-function --label=text --normal""",
    "jq": """filter path* -acCejMnrRsS --raw-output --compact-output --null-input --slurp --sort-keys --exit-status
        --color-output --monochrome-output --ascii-output --join-output --raw-input --tab --seq --stream
        --indent=number""",
    "xxd": "path? -SINGLE -abeipuE -l=number -s=number -c=number -g=number -len=number",
    "od": "path* -abcdfhilosvx -A=text -t=text -N=number -j=number --read-bytes=number --skip-bytes=number",
    "hexdump": "path* -bcCdovx -n=number -s=number",
    "strings": "path* -afow -n=number -t=text -e=text -NUM --all --bytes=number --radix=text --encoding=text",
    "md5sum": _CHECKSUM,
    "sha1sum": _CHECKSUM,
    "sha224sum": _CHECKSUM,
    "sha256sum": _CHECKSUM,
    "sha384sum": _CHECKSUM,
    "sha512sum": _CHECKSUM,
    "b2sum": _CHECKSUM,
    "cksum": "path*",
    "sum": "path*",
    "shasum": f"{_CHECKSUM} -a=number --algorithm=number",
    "date": "form? -uR -I -d=text --utc --universal --date=text --iso-8601[=text] --rfc-3339=text --rfc-email",
    "which": "name* -a",
    "type": "name* -aPpt",
    "basename": "text* -az -s=text --multiple --suffix=text --zero",
    "dirname": "text* -z --zero",
    "realpath": "path* -emszLPq --canonicalize-existing --canonicalize-missing --strip --relative-to=path",
    "readlink": "path* -efmnqsvz --canonicalize",
    "uname": "-asnrvmpio --all --kernel-name --kernel-release --machine --operating-system",
    "id": "name? -ugnGrz --user --group --groups --name --real",
    "whoami": "",
    "nproc": "--all",
    "arch": "",
    "groups": "",
    "tty": "-s",
    "seq": "number* -w -s=text -f=text",
    "sleep": "number?",
    "pwd": "-LP",
    "true": "text*",
    "false": "text*",
    # `git`, `find`, `sed`, `test`, `xargs`, `echo` and `printf` have rules of their own.
}
#: The programs with a table of options.
PROGRAMS = frozenset(_TABLE)
#: Programs with the options of another one.
_SAME = {"egrep": "grep", "fgrep": "grep"}
#: Programs whose only read-only use is the question for their version. Not those that a file of the repository may
#: replace or extend before they answer (yarn, pnpm, go, pytest, eslint), and not those
#: that write a log (npm).
_VERSIONED = {
    "python python2 python3 python3.8 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14": "--version -V",
    "pip pip3 uv ruff mypy": "--version -V",
    "node ruby perl php gcc g++ cc c++ clang clang++ make": "--version -v",
    "rustc cargo ssh psql": "--version -V",
    "java javac": "-version --version",
    "bash zsh sed awk gawk git jq rg cmake ninja black bun docker podman gh": "--version",
    "curl wget tar zip gzip xz rsync": "--version",
}


#: Options of grep and rg with which the first argument is not a pattern.
_PATTERN_OPTIONS = frozenset({"-e", "-f", "--regexp", "--file", "--files", "--type-list"})


class Program(Struct, frozen=True):
    #: The kinds of the arguments, in order.
    arguments: tuple[str, ...]
    #: Options by name, with the kind of the value, or None.
    options: dict[str, str | None]
    #: Options whose value may only be given with `=`.
    optional: frozenset[str]
    takes_numbers: bool
    is_single: bool


@cache
def program(name: str) -> Program | None:
    """Return the rules of a program with a table of options, or None."""
    rules = _TABLE.get(_SAME.get(name, name))
    return parsed(rules) if rules is not None else None


@cache
def version_options(name: str) -> frozenset[str]:
    """Return the options that ask a program for its version. Empty: none."""
    return next(
        (frozenset(options.split()) for names, options in _VERSIONED.items() if name in names.split()), frozenset()
    )


def parsed(text: str) -> Program:
    arguments: list[str] = []
    options: dict[str, str | None] = {}
    optional: set[str] = set()
    takes_numbers = is_single = False
    for word in text.split():
        if word == "-NUM":
            takes_numbers = True
        elif word == "-SINGLE":
            is_single = True
        elif not word.startswith("-"):
            arguments.append(word)
        elif "=" in word or word.startswith("--"):
            name, sign, kind = word.rstrip("]").partition("=")
            if name.endswith("["):
                name = name[:-1]
                optional.add(name)
            options[name] = kind if sign else None
        else:
            options.update({f"-{letter}": None for letter in word[1:]})
    return Program(tuple(arguments), options, frozenset(optional), takes_numbers, is_single)


class Reading(Struct, frozen=True):
    """The words of a command, sorted by the table."""

    #: Paths that it reads, from arguments and options.
    paths: tuple[str, ...]
    options: tuple[str, ...]
    #: Arguments that are not options.
    arguments: tuple[str, ...]
    #: The indexes of `arguments` in the words.
    positions: tuple[int, ...] = ()


def read(rules: Program, words: tuple[str, ...], *, may_have_dash: bool = True) -> Reading | None:
    """Sort the words after the name of a program, or return None if one of them is not in the table.

    `may_have_dash`: the value of an option may be a word with a dash. Some programs take such a word for an option."""
    paths: list[str] = []
    options: list[str] = []
    positions: list[int] = []
    rest = list(words)[::-1]
    while rest:
        word = rest.pop()
        if word == "--":
            positions += range(len(words) - len(rest), len(words))
            break
        if len(word) < 2 or word[0] != "-":
            positions.append(len(words) - len(rest) - 1)
            continue
        if positions and rules.arguments[-1:] == ("path?",):
            return None  # a second argument is written, and after the first some programs read no options
        if rules.takes_numbers and word[1:].isascii() and word[1:].isdigit():
            continue
        next_word = rest[-1] if rest else ""
        size = len(rest)
        values = _option(rules, word, rest)
        if values is None or (not may_have_dash and len(rest) < size and next_word.startswith("-")):
            return None
        for name, value in values:
            options.append(name)
            kind = rules.options[name]
            if value is not None and kind is not None and not _is_valid(kind, value, paths):
                return None
    arguments = [words[index] for index in positions]
    kinds = list(rules.arguments)
    if kinds[:1] == ["pattern"] and not _PATTERN_OPTIONS.isdisjoint(options):
        kinds.pop(0)  # the pattern is the value of an option
    is_valid = _are_valid(kinds, arguments, paths)
    return Reading(tuple(paths), tuple(options), tuple(arguments), tuple(positions)) if is_valid else None


def _option(rules: Program, word: str, rest: list[str]) -> list[tuple[str, str | None]] | None:
    """Return the options of a word with their values, which may be the next word of `rest`. None for an unknown one."""
    if word in rules.options and (word.startswith("--") or len(word) > 2):
        if rules.options[word] is None or word in rules.optional:
            return [(word, None)]
        return [(word, rest.pop())] if rest else None
    name, sign, value = word.partition("=")
    if word.startswith("--") or (sign and len(name) > 2 and name in rules.options):
        return [(name, value)] if sign and rules.options.get(name) is not None else None
    if rules.is_single and len(word) > 2:
        return None
    options: list[tuple[str, str | None]] = []
    for index, letter in enumerate(word[1:], 2):
        name = f"-{letter}"
        if name not in rules.options:
            return None
        if rules.options[name] is None:
            options.append((name, None))
            continue
        if not word[index:] and not rest:
            return None
        return [*options, (name, word[index:] or rest.pop())]
    return options


def _are_valid(kinds: list[str], arguments: list[str], paths: list[str]) -> bool:
    for index, argument in enumerate(arguments):
        kind = kinds[min(index, len(kinds) - 1)] if kinds else ""
        if not kind or (index >= len(kinds) and not kind.endswith("*")):
            return False
        if not _is_valid(kind.rstrip("*?"), argument, paths):
            return False
    return True


def _is_valid(kind: str, value: str, paths: list[str]) -> bool:
    if kind in ("path", "patterns"):
        paths.append(value)
        return True
    if kind in ("text", "pattern"):
        return True
    return _KINDS[kind].fullmatch(value) is not None
