"""The share of the typical commands of coding agents that asks."""

from __future__ import annotations

from pathlib import Path

from tests.tools.typical_commands import asking_by_mode

#: As in the table of docs/approvals.md. The rest builds, tests, installs or changes the repository. Items.
ASKING_MAX = 50


async def test_typical_commands_rarely_ask(tmp_path: Path) -> None:
    asked = await asking_by_mode(tmp_path)
    assert len(asked["ask"]) <= ASKING_MAX, asked["ask"]
    assert asked["auto"] == []
    stated = f"| {ASKING_MAX} | {len(asked['auto'])} |"
    assert stated in (Path(__file__).parents[2] / "docs/approvals.md").read_text()
