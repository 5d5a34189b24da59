"""Files with credentials, by their names, and how the programs that search many files leave them out.

They ask before they are read or changed, also inside the workspace. A search of a directory skips them: that is what
the user meant, and a question for each search would be answered without reading it.
"""

from __future__ import annotations

import re

#: Directories whose whole content counts, and names of files, in small letters. `*` stands for any characters.
_DIRECTORIES = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".env")
_FILES = (
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".git-credentials",
    ".htpasswd",
    ".env.*",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "credentials.json",
    "credentials.toml",
)
_SUFFIXES = ("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx")
#: Examples without a secret. Searches skip them, too: their programs have no exceptions of exceptions.
_EXAMPLES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults")


def _choice(*globs: str) -> str:
    return "|".join(re.escape(glob).replace(r"\*", "[^/]*") for glob in globs)


#: Matches a path in small letters, relative to the workspace or absolute.
CREDENTIALS = re.compile(
    rf"(?:.*/)?(?:(?:{_choice(*_DIRECTORIES)})(?:/.*)?"
    rf"|(?!(?:{_choice(*_EXAMPLES)})\Z)(?:{_choice(*_FILES, *_SUFFIXES)}))",
    re.DOTALL,
)
_SUFFIXED = re.compile(rf"(?:.*/)?(?:{_choice(*_SUFFIXES)})", re.DOTALL)


def is_credential(path: str) -> bool:
    """Return whether a file may hold credentials. `path` is normalised; inside the workspace relative to it."""
    return CREDENTIALS.fullmatch(path.casefold()) is not None


def is_named_credential(path: str) -> bool:
    """The same without names that count for their suffix only: in code, `config.key` need not be a file."""
    return is_credential(path) and _SUFFIXED.fullmatch(path.casefold()) is None


def _any_case(glob: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in glob)


_NAMES = (*_DIRECTORIES, *_FILES, *_SUFFIXES)
#: Options of grep and diff, after those of the command: the last that matches counts.
GREP_OPTIONS = tuple(f"--exclude={_any_case(name)}" for name in _NAMES)
GREP_DIRECTORIES = tuple(f"--exclude-dir={_any_case(name)}" for name in _DIRECTORIES)
#: Options of rg, after those of the command, for the same reason.
RG_OPTIONS = (f"--iglob=!{{{','.join(_NAMES)}}}",)
#: Paths for git, after those of the command.
GIT_PATHS = tuple(
    f":(top,exclude,icase,glob)**/{name}" for name in (*_NAMES, *(f"{directory}/**" for directory in _DIRECTORIES))
)
