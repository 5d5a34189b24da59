"""Check the names that `xargs` is about to pass to a read-only command. A program of its own, without other modules.

Reads names from standard input, and prints them with a NUL after each, if all are paths inside the workspace. A name
that may be an option, leads outside or is a credential ends it, with a message and no further output.

Arguments: how the input is split (nul, lines, words), the workspace, and a pattern for the paths of credentials.
"""

import os
import re
import sys

#: Limit of the input: `find` in a large tree prints less. Bytes.
INPUT_BYTES_MAX = 50_000_000


def main() -> None:
    split, root, credentials = sys.argv[1:]
    data = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
    if len(data) > INPUT_BYTES_MAX:
        sys.exit(f"kedge: xargs: the input is longer than {INPUT_BYTES_MAX} bytes")
    names = _split(os.fsdecode(data), split)
    pattern = re.compile(credentials)
    for name in names:
        if not _is_open(name, root, pattern):
            sys.exit(
                f"kedge: xargs: {name!r} is not a plain path in the workspace; name the files in the command instead"
            )
    sys.stdout.buffer.write(b"".join(os.fsencode(name) + b"\0" for name in names))


def _split(text: str, split: str) -> list[str]:
    if split == "nul":
        return [name for name in text.split("\0") if name]
    if split == "lines":
        return [name for name in text.split("\n") if name]
    if re.search(r"['\"\\]", text):
        sys.exit("kedge: xargs: quotes or backslashes in the names; use -0, or -d '\\n'")
    return text.split()


def _is_open(name: str, root: str, credentials: re.Pattern[str]) -> bool:
    if name.startswith("-") or "\0" in name or len(name) > 4096:
        return False
    real = os.path.realpath(name)
    paths = (os.path.normpath(name).casefold(), real[len(root.rstrip("/")) :].casefold())
    return (real == root or real.startswith(root.rstrip("/") + "/")) and not any(map(credentials.fullmatch, paths))


if __name__ == "__main__":
    main()
