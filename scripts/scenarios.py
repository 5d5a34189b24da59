"""Write docs/scenarios.md: the numbered scenarios, from the names of their tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
GROUPS = {
    "a": "Accept",
    "b": "Cancel",
    "c": "Queue and fold",
    "d": "Events",
    "e": "Workspaces, clients, servers",
    "f": "kedge run",
    "g": "Crash",
}
HEAD = """# Scenarios

The numbered scenarios that must hold. Each line is the name of a test. Most tests are black-box tests of a real server
process (`tests/conformance/`); some need the engine itself (`tests/engine/`). `scripts/docs` generates this page.
"""


def page() -> str:
    scenarios: dict[str, list[tuple[int, str]]] = {group: [] for group in GROUPS}
    for folder in ("conformance", "engine"):
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py")):
            for letter, number, name in re.findall(r"def test_([a-g])(\d+)_(\w+)\(", path.read_text()):
                scenarios[letter].append((int(number), name.replace("_", " ")))
    parts = [HEAD]
    for group, title in GROUPS.items():
        lines = [f"- **{group.upper()}{number}** {name}" for number, name in sorted(set(scenarios[group]))]
        parts.append("\n".join([f"## {group.upper()}. {title}", "", *lines, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "scenarios.md").write_text(page())
