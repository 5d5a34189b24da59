"""Read-only commands of git: their options, and the repositories in which they run nothing else.

The configuration of a repository names programs: file system monitors, hooks, filters, diff drivers. `HARMLESS` turns
off what an option can turn off. A repository whose own configuration has any other key that is not listed here needs an
approval. The configuration of the user is the user's own.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

from kedge.tools.credentials import GIT_PATHS
from kedge.tools.program_rules import listed
from kedge.tools.read_only_programs import Program, Reading, parsed, read

#: Limit of a configuration of a repository. Bytes.
GIT_CONFIG_BYTES_MAX = 100_000

#: Options that every command gets.
_SETTINGS_OFF = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "diff.autoRefreshIndex=false",
    "log.showSignature=false",
    "protocol.allow=never",
    "gpg.program=/dev/null",
    "gpg.openpgp.program=/dev/null",
    "gpg.x509.program=/dev/null",
    "gpg.ssh.program=/dev/null",
)
HARMLESS = ("--no-pager", "--no-optional-locks", *(word for setting in _SETTINGS_OFF for word in ("-c", setting)))
_DIFF = """
    -pusRabwBzWMC -U=number --patch --no-patch --raw --stat[=text] --numstat --shortstat --dirstat[=text] --summary
    --name-only --name-status --color[=text] --no-color --word-diff[=text] --color-words[=text] --color-moved[=text]
    --no-renames --find-renames[=text] --find-copies[=text] --diff-filter=text -S=text -G=text --pickaxe-regex
    --pickaxe-all --text --ignore-space-change --ignore-all-space --ignore-blank-lines --ignore-space-at-eol
    --exit-code --quiet --no-ext-diff --no-textconv --minimal --patience --histogram --diff-algorithm=text
    --abbrev[=number] --full-index --binary --check --relative --src-prefix=text --dst-prefix=text --no-prefix
    --function-context --compact-summary --unified=number --inter-hunk-context=number"""
_LOG = f"""path* {_DIFF} -NUM -n=number -iEFPgcmt --max-count=number --oneline --graph --decorate[=text] --no-decorate
    --all --branches[=text] --tags[=text] --remotes[=text] --since=text --until=text --after=text --before=text
    --author=text --committer=text --grep=text --regexp-ignore-case --all-match --invert-grep --format=text
    --pretty[=text] --abbrev-commit --no-abbrev-commit --date=text --relative-date --merges --no-merges
    --first-parent --reverse --topo-order --date-order --author-date-order --follow --skip=number --left-right
    --cherry-pick --cherry-mark --cherry --parents --children --boundary --simplify-by-decoration --full-history
    --ancestry-path --no-walk --walk-reflogs --source --no-notes --cc --root --left-only --right-only --count"""
_LISTING = """path* --list --merged --no-merged --contains --no-contains
    --points-at --sort=text --format=text --column[=text] --no-column --color[=text] --no-color --ignore-case"""
_TABLE = {
    "status": """path* -sbuz --short --branch --porcelain[=text] --long --untracked-files[=text] --ignored[=text]
        --column[=text] --no-renames --show-stash""",
    "diff": f"path* {_DIFF} --cached --staged --merge-base",
    "log": _LOG,
    "show": _LOG,
    "rev-list": _LOG,
    "diff-tree": f"path* {_DIFF} -rt --root --no-commit-id",
    "stash list": _LOG,
    "stash show": f"path* {_DIFF} --include-untracked --only-untracked",
    "reflog": _LOG,
    "shortlog": f"{_LOG} -sne --summary --numbered --email",
    "blame": """path* -wCMelstnpfc -L=text --porcelain --line-porcelain --show-name --show-email --show-number
        --date=text --abbrev=number --root --first-parent --color-lines --color-by-age --incremental""",
    "branch": f"{_LISTING} -arv --all --remotes --verbose --show-current",
    "tag": f"{_LISTING} -ln",
    "ls-files": """path* -cdmoisuztv -x=text --others --cached --modified --deleted --ignored --stage --unmerged
        --exclude-standard --full-name --error-unmatch --directory --exclude=text --eol --abbrev[=number]""",
    "ls-tree": "path* -rdtlz --name-only --name-status --full-name --full-tree --long --abbrev[=number]",
    "cat-file": "path* -ptse",
    "rev-parse": """path* -q --show-toplevel --abbrev-ref[=text] --short[=number] --verify --quiet --git-dir
        --is-inside-work-tree --is-inside-git-dir --symbolic-full-name --symbolic --show-prefix --show-cdup --branches
        --absolute-git-dir --git-common-dir --is-bare-repository --is-shallow-repository --tags --remotes --all""",
    "describe": """path* --tags --always --abbrev=number --all --long --match=text --exact-match --contains
        --first-parent --candidates=number""",
    "merge-base": "path* -a --all --is-ancestor --fork-point --octopus --independent",
    "grep": """pattern path* -niwlcvEFPGhHopWqILrz -NUM -e=pattern -A=number -B=number -C=number -m=number --cached
        --untracked --name-only --files-with-matches --files-without-match --count --line-number --column --ignore-case
        --word-regexp --invert-match --extended-regexp --fixed-strings --perl-regexp --basic-regexp --heading --break
        --color[=text] --no-color --and --or --not --all-match --max-depth=number --show-function --function-context
        --context=number --after-context=number --before-context=number --only-matching --quiet --full-name""",
    "show-ref": "path* -sdq --heads --tags --hash[=number] --verify --head --dereference --quiet",
    "for-each-ref": "path* --format=text --sort=text --count=number --contains[=text] --merged[=text] --points-at=text",
    "symbolic-ref": "path? -q --short --quiet",
    "name-rev": "path* --name-only --tags --all --always --refs=text",
    "worktree list": "-vz --verbose --porcelain",
    "remote": "-v --verbose",
    "remote show": "",
    "remote get-url": "name --all --push",
    "check-ignore": "path* -vnq --verbose --non-matching --quiet --no-index",
    "count-objects": "-vH --verbose --human-readable",
    "cherry": "path* -v --abbrev[=number]",
    "config": "setting --get --get-all",
    "version": "",
}
#: The subcommands, some with their first argument.
SUBCOMMANDS = frozenset(_TABLE)
#: Commands that show the contents of files, also of files that they do not name.
SHOWING = frozenset({"diff", "log", "show", "diff-tree", "stash show", "stash list", "reflog", "grep", "cat-file"})
#: Commands that show no contents with these options alone.
_NAMING = frozenset({"log", "reflog", "stash list"})
_NAMING_OPTIONS = listed(
    "-n --max-count --oneline --graph --decorate --no-decorate --all --branches --tags --remotes --since --until"
    " --after --before --author --committer --grep -i --format --pretty --abbrev-commit --date --relative-date"
    " --merges --no-merges --first-parent --reverse --topo-order --date-order --follow --skip --stat --shortstat"
    " --numstat --name-only --name-status --summary --no-color --color --no-patch"
)
#: Commands that compare with the working tree: git would run itself in each submodule.
_IN_SUBMODULES = frozenset({"status", "diff"})
_DIFFING = frozenset({"diff", "log", "show", "diff-tree", "stash show"})
#: A listing with one of these options may have arguments. Without, an argument is a new branch or tag.
_PATTERN_OPTIONS = frozenset({"-l", "--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at"})
#: Names of variables that kedge itself sets, or that have no meaning for reading.
_VARIABLES = listed(
    "GIT_PAGER GIT_TERMINAL_PROMPT GIT_EDITOR GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0 GIT_OPTIONAL_LOCKS"
    " GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL GIT_SEQUENCE_EDITOR GIT_MERGE_AUTOEDIT"
)

#: Sections of a repository's configuration without programs, and keys of the other sections.
_SECTIONS = listed("branch user pull push fetch init color advice gc rerere rebase commit tag maintenance")
_KEYS = listed(
    "core.repositoryformatversion core.filemode core.bare core.logallrefupdates core.ignorecase core.precomposeunicode"
    " core.symlinks core.autocrlf core.eol core.safecrlf core.quotepath core.abbrev core.longpaths core.protecthfs"
    " core.protectntfs core.untrackedcache core.preloadindex core.compression core.bigfilethreshold"
    # HARMLESS turns these off; the others are not used by commands that read.
    " core.fsmonitor core.hookspath core.editor core.pager diff.autorefreshindex log.showsignature core.sshcommand"
    " extensions.objectformat remote.url remote.fetch remote.pushurl remote.push remote.tagopt remote.prune"
    " remote.gh-resolved submodule.url submodule.active submodule.branch merge.conflictstyle merge.ff diff.algorithm"
    " diff.renames diff.colormoved diff.mnemonicprefix gpg.format"
    " lfs.repositoryformatversion lfs.access lfs.locksverify"
)
_HEAD = re.compile(r"ref: refs/[^ \n]+|[0-9a-f]{40}|[0-9a-f]{64}")
_HEADER = re.compile(r'\[([A-Za-z0-9-]+)(?:[ \t]+"[^"\\\n]*")?\][ \t]*')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=.*)?")
#: A hash of an object, or a beginning of one, and such a hash with the kind of the object.
_HASH = re.compile(r"\^?[0-9a-fA-F]{4,64}")
_OTHER_OBJECT = re.compile(r"\^?[0-9a-fA-F]{4,64}\^\{(?!commit\}).*", re.DOTALL)
_GLOB = frozenset("*?[")
#: Placeholders of formats that run gpg: `%G?`, `%+GK`, `%(*signature)`.
_SIGNATURE = re.compile(r"%[-+ ]*G|%\(\*?sig")
_SETTING = re.compile(r"(?:user|core|branch|remote|init|pull|push|merge|rebase|commit|color)\.[A-Za-z0-9_./-]+")


class GitReading(Struct, frozen=True):
    #: The words to run, without the name of the program.
    words: tuple[str, ...]
    #: The directory of `-C`, relative. Empty: none.
    directory: str
    #: Arguments that may be paths.
    paths: tuple[str, ...]
    shows_files: bool
    #: The subcommand, its own words, which are the last of `words`, and how they were read.
    name: str = ""
    own: tuple[str, ...] = ()
    read: Reading = Reading((), (), ())


def git_reading(words: tuple[str, ...]) -> GitReading | None:
    """Read the words after `git`, or return None for a command that may do more than read."""
    rest = list(words)
    directory = ""
    while rest[:1] in (["--no-pager"], ["-P"], ["-C"], ["--no-optional-locks"]):
        if rest.pop(0) == "-C":
            if not rest or not rest[0]:
                return None
            directory = os.path.join(directory, rest.pop(0))
    if rest == ["--version"]:
        return GitReading(("--version",), directory, (), False)
    name = " ".join(rest[:2]) if " ".join(rest[:2]) in _TABLE else rest[0] if rest else ""
    rules = git_rules(name)
    if rules is None:
        return None
    start = len(name.split())
    arguments = tuple("-u" if word in ("-uno", "-uall", "-unormal") else word for word in rest[start:])
    reading = read(rules, arguments) if name != "config" else _setting(rest[1:])
    if reading is None or not _is_listing(name, reading) or any(map(_SIGNATURE.search, rest)):
        return None
    options: tuple[str, ...] = ("--no-ext-diff", "--no-textconv") if name in _DIFFING else ()
    options += ("--ignore-submodules=dirty",) if name in _IN_SUBMODULES else ()
    run = (*HARMLESS, *rest[:start], *options, *rest[start:])
    paths = [part for path in reading.paths for part in {path, path.rpartition(":")[2], *path.split("..")} if part]
    return GitReading(run, directory, tuple(paths), _shows_files(name, reading), name, tuple(rest[start:]), reading)


def without_credentials(reading: GitReading, directory: Path) -> tuple[str, ...] | None:
    """Return the words with which a command shows no files that may hold credentials, or None if it may show some.

    Paths are excluded. A hash may only name a commit: as a tree or blob it has no path."""
    name, options = reading.name, frozenset(reading.read.options)
    if not reading.shows_files or (name == "cat-file" and not options.isdisjoint(("-t", "-s", "-e"))):
        return reading.words
    if name == "stash list" or "--follow" in options:
        return None  # they take no such paths
    own = list(reading.own)
    has_paths = "--" in own
    for position in reading.read.positions[name == "grep" and "-e" not in options :]:
        word = own[position]
        if os.path.lexists(directory / word) or word[:1] == ":" or not _GLOB.isdisjoint(word):
            has_paths = True
            continue
        commit = _as_commit(word)
        if commit is None or (name == "cat-file" and commit != word):
            return None
        own[position] = commit
    words = reading.words[: len(reading.words) - len(own)]
    if name == "cat-file":
        return (*words, *own)
    if name == "stash show":
        return _stash_diff(own, reading.read)
    # Otherwise git would leave out commits that change only excluded files, and merges.
    all_commits = ("--full-history", "--sparse") if name in ("log", "show") and not has_paths else ()
    return (*words, *all_commits, *own, *GIT_PATHS)


def _as_commit(word: str) -> str | None:
    """Return a revision or path in which each hash means a commit, or None if it names another kind of object."""
    revision, colon, path = word.partition(":")
    pieces = re.split(r"(\.\.\.?)", revision)
    if any(map(_OTHER_OBJECT.fullmatch, pieces)):
        return None
    return "".join(f"{piece}^{{commit}}" if _HASH.fullmatch(piece) else piece for piece in pieces) + colon + path


def _stash_diff(own: list[str], read: Reading) -> tuple[str, ...] | None:
    """`git stash show` takes no paths, but is a diff of two commits."""
    if not {"--include-untracked", "--only-untracked"}.isdisjoint(read.options) or len(read.positions) > 1:
        return None
    stash = own.pop(read.positions[0]).removesuffix("^{commit}") if read.positions else "stash"
    if ":" in stash or "--" in own:
        return None
    stash = f"stash@{{{stash}}}" if stash.isdigit() else stash
    options = ("--no-ext-diff", "--no-textconv", *own, *([] if read.options else ["--stat"]))
    return (*HARMLESS, "diff", *options, f"{stash}^1", stash, *GIT_PATHS)


@cache
def git_rules(name: str) -> Program | None:
    """Return the rules of a subcommand, or None if it may do more than read."""
    return parsed(_TABLE[name]) if name in _TABLE else None


def _setting(words: list[str]) -> Reading | None:
    """`git config --get NAME`: one name, no secret."""
    names = words[1:] if words[:1] in (["--get"], ["--get-all"]) else words
    return Reading((), (), ()) if len(names) == 1 and _SETTING.fullmatch(names[0]) else None


def _is_listing(name: str, reading: Reading) -> bool:
    if name in ("branch", "tag"):
        return not reading.arguments or not _PATTERN_OPTIONS.isdisjoint(reading.options)
    if name == "reflog":
        return reading.arguments[:1] not in (("expire",), ("delete",), ("drop",), ("write",))
    return True


def _shows_files(name: str, reading: Reading) -> bool:
    return name in SHOWING and not (name in _NAMING and _NAMING_OPTIONS.issuperset(reading.options))


def is_git_environment_plain(environment: Mapping[str, str]) -> bool:
    """Return whether no variable directs git to other files or programs."""
    return all(not name.startswith("GIT_") or name in _VARIABLES for name in environment)


def is_plain_repository(directory: Path, root: Path, *, shows_files: bool) -> bool:
    """Return whether git, in this directory, uses a repository whose configuration runs no program, or none at all. A
    command that shows the contents of files needs one of the workspace. Blocking."""
    try:
        for parent in (directory, *directory.parents):
            dot_git = parent / ".git"
            if (parent / "HEAD").is_file() and (parent / "objects").is_dir():
                return False  # a git directory under another name
            if not os.path.lexists(dot_git):
                continue
            is_inside = parent.is_relative_to(root)
            if (shows_files and not is_inside) or not _is_plain(dot_git, root if is_inside else parent):
                return False
            if dot_git.is_file():
                return True
            if all((dot_git / name).exists() for name in ("HEAD", "objects", "refs")):
                return _is_valid(dot_git)
            # git ignores an incomplete one, and searches on
        return True
    except (OSError, ValueError):
        return False


def _is_plain(dot_git: Path, root: Path) -> bool:
    if dot_git.is_symlink():
        return False
    own = dot_git
    if dot_git.is_file():
        own = dot_git.parent / _line_of(dot_git).removeprefix("gitdir: ")
    common = own / _line_of(own / "commondir") if (own / "commondir").exists() else own
    if Path(os.path.realpath(own)).is_relative_to(root):
        if not Path(os.path.realpath(common)).is_relative_to(root):
            return False
    # A directory outside is that of a worktree only if it refers to this one.
    elif not (own / "gitdir").is_file() or not os.path.samefile(_line_of(own / "gitdir"), dot_git):
        return False
    # Links would lead to the objects of another repository.
    if any(map(_has_links, (own, common, common / "objects", common / "objects/pack"))):
        return False
    if (common / "objects/info/alternates").exists() or (own / "config.worktree").exists():
        return False
    return not (common / "config").exists() or _is_plain_config(_text_of(common / "config"))


def _is_valid(dot_git: Path) -> bool:
    """Return whether git uses this directory: it would search on in the parents of another one."""
    are_directories = all(
        os.path.isdir(path) and os.access(path, os.X_OK) for path in (dot_git / "objects", dot_git / "refs")
    )
    return are_directories and _HEAD.fullmatch(_line_of(dot_git / "HEAD")) is not None


def _has_links(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(entry.is_symlink() for entry in entries)
    except FileNotFoundError:
        return False


def _line_of(path: Path) -> str:
    return _text_of(path).strip("\n")


def _text_of(path: Path) -> str:
    # A pipe would block.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError
        data = file.read(GIT_CONFIG_BYTES_MAX + 1)
    if len(data) > GIT_CONFIG_BYTES_MAX:
        raise ValueError
    return data.decode()


def _is_plain_config(text: str) -> bool:
    """Return whether every line is understood, and every key is in the list."""
    section = ""
    for line in text.split("\n"):
        line = line.strip(" \t\r")
        if header := _HEADER.match(line):
            section, line = header[1].lower(), line[header.end() :]
        if not line or line[0] in "#;":
            continue
        key = _KEY.fullmatch(line)
        if key is None or line.endswith("\\"):
            return False
        if section not in _SECTIONS and f"{section}.{key[1].lower()}" not in _KEYS:
            return False
    return True
