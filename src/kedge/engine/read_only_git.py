"""git for commands that only read: the environment in which it runs no program that a repository names.

A repository that was unpacked, or that an earlier command has changed, has a configuration of its own. Settings with a
fixed name are overridden for every command. The names of drivers (textconv, external diff, filters) are arbitrary, so
they are listed first, by `LIST`. The user's own programs, from `~/.gitconfig`, stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Prints the scope and the name of each setting. Runs no other program.
LIST = ("config", "--list", "--show-scope", "--name-only", "-z")
#: Limit of its output: about a thousand branches. Bytes.
LISTING_BYTES_MAX = 256 * 1024

_OFF = (
    # A clone may contain a bare repository as plain files: git must not use a directory as one without --git-dir.
    ("safe.bareRepository", "explicit"),
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("credential.helper", ""),
    # A format of the log may check signatures.
    ("log.showSignature", "false"),
    ("gpg.program", "false"),
    ("gpg.openpgp.program", "false"),
    ("gpg.x509.program", "false"),
    ("gpg.ssh.program", "false"),
    # These run git in the repositories of submodules, which have configurations of their own.
    ("status.submoduleSummary", "false"),
    ("diff.submodule", "short"),
    ("submodule.recurse", "false"),
)
_VARIABLES = {
    # `git status` otherwise refreshes the index, which runs a hook.
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_SSH_COMMAND": "false",
    "GIT_ASKPASS": "false",
    # A partial clone fetches missing objects while it reads. Older versions do not have the first variable.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}

#: git has no setting for "no external diff": it runs this instead, with seven arguments or more.
_PLAIN_DIFF = 'kedge_diff() { [ $# -lt 7 ] || diff -u -L "a/$1" -L "b/$1" -- "$2" "$5"; :; }; kedge_diff'
_DRIVER = re.compile(
    r"(diff)\.external|(diff)\..+\.(command|textconv)|(filter)\.(.+)\.(clean|smudge|process)", re.DOTALL
)


def git_environment(listing: bytes = b"") -> dict[str, str]:
    """Return the variables for git. `listing`: the output of `LIST` in its directory."""
    return {**_VARIABLES, **configuration((*_OFF, *_drivers_off(listing)))}


def configuration(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables that override the settings of every configuration file of git."""
    variables = {"GIT_CONFIG_COUNT": "0"}
    for index, (key, value) in enumerate(settings):
        variables |= {"GIT_CONFIG_COUNT": str(index + 1), f"GIT_CONFIG_KEY_{index}": key}
        variables[f"GIT_CONFIG_VALUE_{index}"] = value
    return variables


def _drivers_off(listing: bytes) -> list[tuple[str, str]]:
    words = listing.decode(errors="surrogateescape").split("\0")
    settings: dict[str, str] = {}
    for scope, name in zip(words[::2], words[1::2], strict=False):
        if scope not in ("local", "worktree") or not (match := _DRIVER.fullmatch(name)):
            continue
        if match[4]:
            # An empty process disables the other two as well.
            settings |= {f"filter.{match[5]}.process": "", f"filter.{match[5]}.required": "false"}
        else:
            settings[name] = "cat" if match[3] == "textconv" else _PLAIN_DIFF
    return list(settings.items())
