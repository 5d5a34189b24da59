"""Count the typical commands of coding agents that ask: `python -m tests.tools.typical_commands`."""

from __future__ import annotations

import asyncio
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
    processes = PlainProcesses({"PATH": f"/usr/bin:/bin:{programs}", "LC_ALL": "C.UTF-8"})
    commands = _COMMANDS.read_text().splitlines()
    asked = []
    for command in commands:
        context = make_context(root, processes=processes)
        intent = (await prepare(BashTool(), context, command=command)).intent
        if permit_in_mode(mode, intent, Rules(), (), can_confine=True).decision != "allow":
            asked.append(command)
    return asked


async def asking_by_mode(directory: Path) -> dict[Mode, list[str]]:
    """Return the commands that ask in the modes ask and auto, in a workspace below `directory`."""
    programs, root = directory / "programs", directory / "workspace"
    for made in (programs, root / "src"):
        made.mkdir(parents=True)
    for name in ("rg", "tree", "jq", "node", "file", "python3"):
        # Found in PATH, never run. Not a script, which would ask if a directory of PATH is missing.
        (programs / name).symlink_to("/bin/true")
    modes: tuple[Mode, ...] = ("ask", "auto")
    return {mode: await asking(root, programs, mode) for mode in modes}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for mode, asked in asyncio.run(asking_by_mode(Path(directory))).items():
            print(*asked, sep="\n")
            print(f"mode {mode}: {len(asked)} of {len(_COMMANDS.read_text().splitlines())} ask", file=sys.stderr)


if __name__ == "__main__":
    main()
