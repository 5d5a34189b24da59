"""The workspace's path rules: what a path given by a model means, and what it takes to touch it.

A path is relative to the workspace or absolute, and stands for the file its links lead to. Rules and approvals speak
of that real path (deny rules of the given one, too), and `kedge.tools.disk` opens it without following another link:
what is opened is what was judged.

    inside the workspace    looked at freely; written with leave
    outside                 looked at with leave; written with leave for that very file
    what guards the machine written with leave for that very file, wherever it lies: git's own files and hooks, shell
                            start-up files, keys, the settings of editors and of kedge that make them run things
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Mapping
from difflib import SequenceMatcher, get_close_matches
from heapq import nlargest
from itertools import islice, pairwise
from pathlib import Path

from msgspec import Struct

from kedge.core.approvals import RULE_CHARS_MAX, Intent
from kedge.core.untrusted_text import is_invisible
from kedge.tools.known_files import bind
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.tool_threads import checkpoint

#: Of a path, in bytes: what the kernel takes (PATH_MAX).
PATH_BYTES_MAX = 4096
#: Links that a path may go through, as for the kernel. Each may stand for two thousand parts of its own. Items.
LINKS_MAX = 40
#: Of a path: each directory on the way is looked at, and that takes the square of their number. Directories that people
#: work in lie some twenty deep.
GUARD_PARTS_MAX = 100
#: Names looked at to find similar ones: enough for any directory a person made.
SIMILAR_SCAN_MAX = 2000
#: Similar names told: more are a listing.
SIMILAR_MAX = 3
#: Of these names, compared by the letters in them, so many are compared in earnest, and only if they are no longer:
#: that takes the third power of the length at worst, here some 0.2 s altogether. Items and characters.
COMPARED_NAMES_MAX = 10
COMPARED_NAME_CHARS_MAX = 64

#: Directories: everything in them is guarded.
GUARDED_DIRECTORIES = frozenset(
    {".git", ".hg", ".husky", ".githooks", ".kedge", ".ssh", ".gnupg", ".aws", ".kube", ".docker"}
    | {".vscode", ".idea", ".devcontainer", ".cursor", ".claude", ".codex", ".gemini"}
)
#: Files by their name, wherever they are: many of them are read from any directory, not only from a home.
GUARDED_NAMES = frozenset(
    {"kedge.toml", ".envrc", ".mcp.json", ".netrc", ".npmrc", ".pypirc", ".pgpass", ".git-credentials", ".gitmodules"}
    | {".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".inputrc", ".xprofile"}
    | {".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".cshrc", ".tcshrc", ".login", ".kshrc", ".mkshrc"}
    | {".gitconfig", ".hgrc", ".vimrc", ".exrc", ".nvimrc", ".gdbinit", ".lldbinit", ".pythonrc", ".tmux.conf"}
    | {".xinitrc", ".xsession", "authorized_keys"}
)
#: Pairs of a directory and what is in it, anywhere in a path: what a user's own session starts, and kedge's own files.
GUARDED_PAIRS = frozenset(
    {(".config", "git"), (".config", "fish"), (".config", "systemd"), (".config", "autostart"), (".config", "nvim")}
    | {("kedge", "config.toml"), (".config", "kedge"), ("share", "kedge"), ("application support", "kedge")}
    | {("library", "launchagents"), (".local", "bin"), (".config", "environment.d")}
)


class Target(Struct, frozen=True):
    """A path that was understood."""

    #: Absolute, links resolved.
    path: Path
    #: For rules and for people: relative to the workspace with "/", "." for itself; absolute if it is outside.
    subject: str
    is_inside: bool
    #: It guards this machine.
    is_guarded: bool
    #: It is kedge's own: keys and the token, which a model has no business with even where it works around them.
    is_secret: bool = False
    #: As `subject`, with its links left as they are. Empty: it is the same.
    given: str = ""

    @property
    def shown(self) -> str:
        return printable(self.subject)


def resolve(given: str, root: Path, guarded: tuple[Path, ...] = ()) -> Target:
    """`root` is the workspace's real path; `guarded` are further files and directories that guard the machine (kedge's
    own). ToolFailed for what is no path. Blocking."""
    if "\0" in given:
        raise ToolFailed("a path cannot contain a NUL character")
    try:
        size = len(os.fsencode(given))
    except UnicodeEncodeError:
        raise ToolFailed("the path is not valid text") from None
    if size + len(os.fsencode(root)) > PATH_BYTES_MAX:
        raise ToolFailed(f"the path is too long: {size} bytes")
    lexical = Path(os.path.normpath(root / given))
    real = real_path(root / given)
    if real.parts[:2] == ("/", "proc"):
        # Among it the environment of this very server, with its keys.
        raise ToolFailed(f"{printable(given)} is no file on a disk but a view of running processes; use bash for that")
    is_inside = real.is_relative_to(root)
    subject, given_as = subject_of(real, root), subject_of(lexical, root)
    # Both: .git/hooks may be a link to a directory with a harmless name, and a harmless name may be a link into .git.
    is_guarded = any(guards(path, guarded) for path in {lexical, real})
    return Target(
        real, subject, is_inside, is_guarded, is_below(real, guarded), given_as if given_as != subject else ""
    )


def real_path(path: Path) -> Path:
    """The path with its links resolved; what does not exist is kept as it is. Blocking.

    `os.path.realpath` follows any number of links, for minutes where a repository has hundreds made for it. ToolFailed
    for more than the kernel would follow, and so for a link that leads in a circle."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise ToolFailed(f"the path is too long: {len(os.fsencode(path))} bytes")
    here, links = "", 0
    rest = str(path).split("/")[::-1]
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = here.rpartition("/")[0]
            continue
        here = f"{here}/{part}"
        try:
            link = os.readlink(here)
        except OSError:  # no link, or not there
            continue
        checkpoint()
        links += 1
        if links > LINKS_MAX:
            raise ToolFailed(f"{printable(str(path))} goes through too many links, or one that leads in a circle")
        here = "" if link.startswith("/") else here.rpartition("/")[0]
        rest += link.split("/")[::-1]
    return Path(here or "/")


def subject_of(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def is_below(path: Path, guarded: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(one) or path.is_relative_to(os.path.realpath(one)) for one in guarded)


def guards(path: Path, guarded: tuple[Path, ...] = ()) -> bool:
    """Whether this file guards the machine: what runs or lets in on somebody's behalf, and secrets."""
    if is_below(path, guarded) or len(path.parts) > GUARD_PARTS_MAX:
        return True
    # Folded: on some file systems .GIT is .git.
    parts = [unicodedata.normalize("NFC", part).casefold() for part in path.parts]
    if parts[-1] in GUARDED_NAMES or not GUARDED_DIRECTORIES.isdisjoint(parts):
        return True
    if any(pair in GUARDED_PAIRS for pair in pairwise(parts)):
        return True
    return any(_is_git_directory(parent) for parent in path.parents)


def _is_git_directory(path: Path) -> bool:
    """A repository's own directory under another name: a bare one, or one that a `.git` file points to."""
    checkpoint()
    has_refs = os.path.isdir(path / "objects") and os.path.isdir(path / "refs")
    return os.path.isfile(path / "HEAD") and (has_refs or os.path.isfile(path / "commondir"))


def read_intent(names: tuple[str, ...], target: Target, description: str, params: Mapping[str, object]) -> Intent:
    """The Intent of a read-only tool. `params`: all its other arguments, for the user and for the binding."""
    text = json.dumps({**params, "path": target.subject}, ensure_ascii=False)
    is_open = target.is_inside and not target.is_secret
    return Intent(
        names=names,
        action="read",
        subject=target.subject,
        description=description,
        path=str(target.path),
        params=text,
        binding=bind("read", *names, str(target.path), text),
        needs_approval=not is_open,
        exact_only=target.is_guarded and not is_open,
        grant="" if target.is_inside or target.is_guarded else _grant(names[0], target.path),
        given=target.given,
    )


def _grant(tool: str, path: Path) -> str:
    """Grants are compared as they are written: of view it covers the files of one directory, of a search that one."""
    rule = f"{tool}({path.parent}/*)" if tool == "view" else f"{tool}({path}/**)"
    is_plain = not any(c in str(path) for c in "*?()") and str(path).isprintable() and path.parent != Path("/")
    return rule if is_plain and len(rule) <= RULE_CHARS_MAX else ""


def printable(text: str) -> str:
    """A name on one line: what people would not see, and bytes that are no text, are written out."""
    unseen = {ord(c): c.encode("unicode_escape").decode("ascii") for c in set(text) if is_invisible(c)}
    return text.translate(unseen)


def missing(target: Target) -> ToolFailed:
    """What to say of a file that is not there, with names that are. Blocking.

    A name is what its bytes are: "é" as one character and as two are two names, and neither stands for the other."""
    return ToolFailed(f"{target.shown} does not exist{_hint(target.path)}")


def _hint(path: Path) -> str:
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, SIMILAR_SCAN_MAX)]
    except OSError:
        return f"; there is no directory {printable(path.parent.name)} either"
    folded: dict[str, list[str]] = {}
    for name in sorted(names):
        folded.setdefault(unicodedata.normalize("NFKC", name).casefold(), []).append(name)
    wanted = unicodedata.normalize("NFKC", path.name).casefold()
    if len(wanted) > COMPARED_NAME_CHARS_MAX:
        return ""
    matcher = SequenceMatcher(b=wanted)

    def likeness(name: str) -> float:
        matcher.set_seq1(name)
        return matcher.quick_ratio()

    short = (name for name in folded if len(name) <= COMPARED_NAME_CHARS_MAX)
    close = get_close_matches(wanted, nlargest(COMPARED_NAMES_MAX, short, key=likeness), n=SIMILAR_MAX)
    similar = [printable(name) for key in close for name in folded[key]][:SIMILAR_MAX]
    return f"; similar names there: {', '.join(similar)}" if similar else ""
