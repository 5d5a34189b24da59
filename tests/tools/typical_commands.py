"""Count the typical commands of coding agents that ask: `python -m tests.tools.typical_commands`."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from kedge.core.approvals import Rules
from kedge.core.modes import Mode, permit_in_mode
from kedge.tools.shell import BashTool
from tests.tools.contexts import PlainProcesses, make_context, prepare

_COMMANDS = Path(__file__).with_suffix(".txt")


async def asking(root: Path, programs: Path, mode: Mode) -> list[str]:
    """Return the commands that ask in a mode, without any rule, on a machine with a sandbox."""
    processes = PlainProcesses({"PATH": f"{os.environ['PATH']}:{programs}", "LC_ALL": "C.UTF-8"})
    commands = _COMMANDS.read_text().splitlines()
    asked = []
    for command in commands:
        context = make_context(root, processes=processes)
        intent = (await prepare(BashTool(), context, command=command)).intent
        if permit_in_mode(mode, intent, Rules(), (), can_confine=True).decision != "allow":
            asked.append(command)
    return asked


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        programs, root = Path(directory, "programs"), Path(directory, "workspace")
        for made in (programs, root / "src"):
            made.mkdir(parents=True)
        for name in ("rg", "tree", "jq", "node", "file"):  # found in PATH, never run
            (programs / name).write_text("#!/bin/sh\n")
            (programs / name).chmod(0o755)
        modes: tuple[Mode, ...] = ("ask", "auto")
        for mode in modes:
            asked = asyncio.run(asking(root, programs, mode))
            print(*asked, sep="\n")
            print(f"mode {mode}: {len(asked)} of {len(_COMMANDS.read_text().splitlines())} ask", file=sys.stderr)


if __name__ == "__main__":
    main()
