"""Path rules of the workspace: the meaning of a path from a model, and the approvals it needs.

A path is relative to the workspace or absolute, and means the file that its symlinks lead to. Rules and approvals apply
to that real path (deny rules also to the path as given), and `kedge.tools.disk` opens it without following symlinks:
the file that was checked is the file that is opened.

    inside the workspace    read without approval; written with approval
    credentials             read and written with approval for that file, anywhere (`tools.credentials`)
    outside                 read with approval; written with approval for that file
    guarded files           written with approval for that file, anywhere: git's own files and hooks, shell start-up
                            files, keys, settings of editors and of kedge that make them run programs
    steering files          as guarded files, but read as others: instructions and settings of agents, CI, `.venv`
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from heapq import nlargest
from itertools import islice, pairwise
from pathlib import Path

from msgspec import Struct

from kedge.core.approvals import RULE_CHARS_MAX, Intent
from kedge.core.untrusted_text import is_invisible
from kedge.tools.credentials import is_credential
from kedge.tools.file_threads import checkpoint
from kedge.tools.known_files import bind
from kedge.tools.tool_failed import ToolFailed

#: Limit of a path, that of the kernel (PATH_MAX). Bytes.
PATH_BYTES_MAX = 4096
#: Limit of the symlinks in a path, that of the kernel. Each may have two thousand components. Items.
LINKS_MAX = 40
#: Limit of the components of a path that is checked: the cost is quadratic. Real directories are about twenty deep.
#: Items.
GUARD_PARTS_MAX = 100
#: Names that are compared to find similar ones: enough for a directory made by hand. Items.
SIMILAR_SCAN_MAX = 2000
#: Similar names in a message. Items.
SIMILAR_MAX = 3
#: After a comparison by letters, so many names up to this length are compared exactly. That is cubic in the length at
#: worst, here some 0.2 s altogether. Items and characters.
COMPARED_NAMES_MAX = 10
COMPARED_NAME_CHARS_MAX = 64

#: Directories whose whole content is guarded.
GUARDED_DIRECTORIES = frozenset(
    {".git", ".hg", ".husky", ".githooks", ".kedge", ".ssh", ".gnupg", ".aws", ".kube", ".docker"}
    | {".vscode", ".idea", ".devcontainer", ".cursor", ".claude", ".agents", ".codex", ".gemini"}
)
#: Guarded file names, in any directory: many are read from any directory, not only from a home.
GUARDED_NAMES = frozenset(
    {"kedge.toml", ".envrc", ".mcp.json", ".netrc", ".npmrc", ".pypirc", ".pgpass", ".git-credentials", ".gitmodules"}
    | {".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".inputrc", ".xprofile"}
    | {".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".cshrc", ".tcshrc", ".login", ".kshrc", ".mkshrc"}
    | {".gitconfig", ".hgrc", ".vimrc", ".exrc", ".nvimrc", ".gdbinit", ".lldbinit", ".pythonrc", ".tmux.conf"}
    | {".xinitrc", ".xsession", "authorized_keys"}
)
#: Pairs of a directory and an entry, anywhere in a path: files that the user's session starts, and kedge's own files.
GUARDED_PAIRS = frozenset(
    {(".config", "git"), (".config", "fish"), (".config", "systemd"), (".config", "autostart"), (".config", "nvim")}
    | {("kedge", "config.toml"), (".config", "kedge"), ("share", "kedge"), ("application support", "kedge")}
    | {("library", "launchagents"), (".local", "bin"), (".config", "environment.d")}
)


#: Files that agents, CI and tools obey later, outside of the sandbox and without an approval. They are not secret.
STEERING_DIRECTORIES = frozenset({".venv", ".zed", ".kiro", ".crush", ".opencode", ".circleci", ".buildkite"})
STEERING_NAMES = frozenset(
    {"agents.md", "kedge.md", "claude.md", "claude.local.md", "crush.md", "gemini.md", ".cursorrules", ".windsurfrules"}
    | {"crush.json", ".crush.json", "opencode.json", "opencode.jsonc", ".aider.conf.yml"}
    | {".gitlab-ci.yml", ".travis.yml", "jenkinsfile", "azure-pipelines.yml", "bitbucket-pipelines.yml"}
    | {".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml", "mise.toml", ".mise.toml", ".tool-versions"}
    | {
        ".yarnrc.yml",
        ".pnpmfile.cjs",
        ".nvim.lua",
        ".dir-locals.el",
        ".rprofile",
        ".ghci",
        ".pdbrc",
        ".irbrc",
        ".rspec",
    }
)
STEERING_PAIRS = frozenset(
    {
        (".github", "workflows"),
        (".github", "actions"),
        (".github", "copilot-instructions.md"),
        (".cargo", "config.toml"),
    }
    | {(".github", "instructions"), (".config", "gh"), (".config", "mise")}
)

_GUARDED_ENTRIES = GUARDED_NAMES | GUARDED_DIRECTORIES | STEERING_NAMES | STEERING_DIRECTORIES
_GUARDED_ENTRY_PAIRS = GUARDED_PAIRS | STEERING_PAIRS
#: Directories of pairs: a link with such a name makes the entries of any directory obeyed.
_GUARDED_LINKS = frozenset(directory for directory, _ in _GUARDED_ENTRY_PAIRS if directory.startswith("."))


class Target(Struct, frozen=True):
    """A resolved path."""

    #: Absolute, symlinks resolved.
    path: Path
    #: For rules and users: relative to the workspace with "/", "." for the workspace; absolute if it is outside.
    subject: str
    is_inside: bool
    #: A change could run code or grant access on this machine.
    is_guarded: bool
    #: Agents, CI or tools obey it later.
    is_steering: bool = False
    #: One of kedge's own files: keys and the token, which a model must not read even inside its workspace.
    is_secret: bool = False
    #: As `subject`, with symlinks unresolved. Empty if it is equal.
    unresolved: str = ""
    #: Its name says that it holds credentials.
    is_credential: bool = False

    @property
    def shown(self) -> str:
        return printable(self.subject)


def resolve(path: str, root: Path, guarded: tuple[Path, ...] = ()) -> Target:
    """Resolve a path. `root` is the workspace's real path; `guarded` are further guarded files and directories (kedge's
    own). ToolFailed for an invalid path. Blocking."""
    if "\0" in path:
        raise ToolFailed("a path cannot contain a NUL character")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise ToolFailed("the path is not valid text") from None
    if size + len(os.fsencode(root)) > PATH_BYTES_MAX:
        raise ToolFailed(f"the path is too long: {size} bytes")
    lexical = Path(os.path.normpath(root / path))
    real = real_path(root / path)
    if real.parts[:2] == ("/", "proc"):
        # It has the environment of this server, with its keys.
        raise ToolFailed(f"{printable(path)} is not a file on disk but a view of running processes; use bash")
    is_inside = real.is_relative_to(root)
    if is_inside:
        check_root(root)
    subject, unresolved = subject_of(real, root), subject_of(lexical, root)
    # Both: .git/hooks may be a symlink to a harmless directory, and a harmless name may be a symlink into .git.
    is_guarded = any(guards(path, guarded) for path in {lexical, real})
    is_steering = any(map(steers, {lexical, real}))
    holds_credentials = is_credential(subject) or is_credential(unresolved)
    return Target(
        real,
        subject,
        is_inside,
        is_guarded or holds_credentials,
        is_steering,
        is_below(real, guarded),
        unresolved if unresolved != subject else "",
        holds_credentials,
    )


def check_root(root: Path) -> None:
    """ToolFailed if the directory of the workspace is gone. Blocking."""
    if not os.path.isdir(root):
        raise missing_root(root)


def missing_root(root: Path) -> ToolFailed:
    return ToolFailed(f"the directory of the workspace, {printable(str(root))}, does not exist any more; restore it")


def real_path(path: Path) -> Path:
    """Resolve the symlinks of a path; components that do not exist are kept. Blocking.

    `os.path.realpath` follows any number of symlinks, for minutes in a hostile repository. ToolFailed for more than the
    kernel would follow, and thus for a loop."""
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
        except OSError:  # not a symlink, or does not exist
            continue
        checkpoint()
        links += 1
        if links > LINKS_MAX:
            raise ToolFailed(f"{printable(str(path))} has too many symlinks, or a symlink loop")
        here = "" if link.startswith("/") else here.rpartition("/")[0]
        rest += link.split("/")[::-1]
    return Path(here or "/")


def subject_of(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def is_below(path: Path, guarded: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(one) or path.is_relative_to(os.path.realpath(one)) for one in guarded)


def guards(path: Path, guarded: tuple[Path, ...] = ()) -> bool:
    """Return whether a file is guarded: it makes programs run, grants access, or is secret."""
    if is_below(path, guarded) or len(path.parts) > GUARD_PARTS_MAX:
        return True
    parts = _folded(path.parts)
    if parts[-1] in GUARDED_NAMES or not GUARDED_DIRECTORIES.isdisjoint(parts):
        return True
    if any(pair in GUARDED_PAIRS for pair in pairwise(parts)):
        return True
    return any(_is_git_directory(parent) for parent in path.parents)


def steers(path: Path) -> bool:
    """Return whether agents, CI or tools obey a file later: instructions, workflows, virtual environments."""
    parts = _folded(path.parts)
    is_named = parts[-1] in STEERING_NAMES or not STEERING_DIRECTORIES.isdisjoint(parts)
    return is_named or any(pair in STEERING_PAIRS for pair in pairwise(parts))


def guards_entry(directory: str, name: str) -> bool:
    """Return whether the entry of a directory, both given by name, is guarded or steers."""
    parent, entry = _folded((directory, name))
    return entry in _GUARDED_ENTRIES or (parent, entry) in _GUARDED_ENTRY_PAIRS


def guards_link(name: str) -> bool:
    """Return whether a symlink with this name could stand for a directory with guarded entries."""
    return _folded((name,))[0] in _GUARDED_LINKS


def _folded(names: Iterable[str]) -> list[str]:
    """On some file systems .GIT is .git."""
    return [(name if name.isascii() else unicodedata.normalize("NFC", name)).casefold() for name in names]


def _is_git_directory(path: Path) -> bool:
    """Return whether this is a git directory under another name: a bare repository, or the target of a `.git` file."""
    checkpoint()
    has_refs = os.path.isdir(path / "objects") and os.path.isdir(path / "refs")
    return os.path.isfile(path / "HEAD") and (has_refs or os.path.isfile(path / "commondir"))


def read_intent(names: tuple[str, ...], target: Target, description: str, params: Mapping[str, object]) -> Intent:
    """The Intent of a read-only tool. `params`: all its other arguments, for the user and for the binding."""
    text = json.dumps({**params, "path": target.subject}, ensure_ascii=False)
    is_open = target.is_inside and not target.is_secret and not target.is_credential
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
        unresolved=target.unresolved,
    )


def _grant(tool: str, path: Path) -> str:
    """Return a grant. For view it covers the files of one directory, for a search the directory itself."""
    rule = f"{tool}({path.parent}/*)" if tool == "view" else f"{tool}({path}/**)"
    is_plain = not any(c in str(path) for c in "*?()") and str(path).isprintable() and path.parent != Path("/")
    return rule if is_plain and len(rule) <= RULE_CHARS_MAX else ""


def printable(text: str) -> str:
    """Return a name on one line, with invisible characters and invalid bytes escaped."""
    unseen = {ord(c): c.encode("unicode_escape").decode("ascii") for c in set(text) if is_invisible(c)}
    return text.translate(unseen)


def missing(target: Target) -> ToolFailed:
    """Return the error for a file that does not exist, with similar names. Blocking.

    Names are compared by bytes: "é" as one character and as two are different names."""
    return ToolFailed(f"{target.shown} does not exist{_hint(target.path)}")


def _hint(path: Path) -> str:
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, SIMILAR_SCAN_MAX)]
    except OSError:
        return f"; its directory {printable(path.parent.name)} does not exist either"
    folded: dict[str, list[str]] = {}
    for other in sorted(names):
        folded.setdefault(unicodedata.normalize("NFKC", other).casefold(), []).append(other)
    name = unicodedata.normalize("NFKC", path.name).casefold()
    if len(name) > COMPARED_NAME_CHARS_MAX:
        return ""
    matcher = SequenceMatcher(b=name)

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.quick_ratio()

    short = (other for other in folded if len(other) <= COMPARED_NAME_CHARS_MAX)
    close = get_close_matches(name, nlargest(COMPARED_NAMES_MAX, short, key=likeness), n=SIMILAR_MAX)
    similar = [printable(other) for key in close for other in folded[key]][:SIMILAR_MAX]
    return f"; similar names there: {', '.join(similar)}" if similar else ""
