"""Definitions in a hostile repository: links out of it, foreign names, and more than is read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kedge.config import library_files
from kedge.config.definition_rights import DefinitionRights
from kedge.config.library_files import Definition, ReadLimit, read_definitions, repository_sources, stamp_of


def definitions(root: Path, home: Path) -> dict[str, Definition]:
    limit = ReadLimit()
    sources = repository_sources(root, home)
    return {one.name: one for source in sources for one in read_definitions(source, limit)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "repository" / ".claude" / "commands").mkdir(parents=True)
    return tmp_path / "repository"


def test_links_out_of_the_repository_are_not_read(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "commands").mkdir(parents=True)
    (outside / "commands" / "secret.md").write_text("secret")
    commands = root / ".claude" / "commands"
    (commands / "file.md").symlink_to(outside / "commands" / "secret.md")
    (commands / "directory").symlink_to(outside / "commands")
    (commands / "loop").symlink_to(commands)
    (root / ".kedge").symlink_to(outside)
    by_name = definitions(root, tmp_path)
    assert "link out" in by_name["file"].error
    assert not any("secret" in one.body or "secret" in name for name, one in by_name.items())


@pytest.mark.parametrize("name", ["Big", "a b", "-x", "a.b", "x" * 70, "é"])
def test_names_are_checked(root: Path, tmp_path: Path, name: str) -> None:
    (root / ".claude" / "commands" / f"{name}.md").write_text("text")
    (one,) = definitions(root, tmp_path).values()
    assert "is not valid" in one.error


def test_all_files_together_are_limited(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_files, "READ_BYTES_MAX", 100)
    monkeypatch.setattr(library_files, "ENTRIES_MAX", 20)
    for index in range(30):
        (root / ".claude" / "commands" / f"c{index:02}.md").write_text("x" * 30)
    by_name = definitions(root, tmp_path)
    assert len(by_name) == 20
    assert sum(not one.error for one in by_name.values()) == 4
    assert "more than 100 bytes" in next(one.error for one in by_name.values() if one.error)


def test_stamp_changes_with_content_and_mode(root: Path, tmp_path: Path) -> None:
    file = root / ".claude" / "commands" / "a.md"
    file.write_text("one")
    source = repository_sources(root, tmp_path)[0]
    stamps = [stamp_of(source, ReadLimit())]
    file.write_text("two")
    stamps.append(stamp_of(source, ReadLimit()))
    file.chmod(0o755)
    stamps.append(stamp_of(source, ReadLimit()))
    assert len(set(stamps)) == 3


def definition(root: Path, home: Path, path: str, settings: str) -> Definition:
    file = root / ".claude" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"---\ndescription: d\n{settings}\n---\ntext")
    name = file.parent.name if file.name == "SKILL.md" else file.stem
    return definitions(root, home)[name]


@pytest.mark.parametrize(
    ("settings", "expected", "warning"),
    [
        ("disallowedTools: Bash, Edit", DefinitionRights(without=("bash", "edit", "multiedit")), ""),
        ("disallowedTools: Bash(rm:*), mcp__x__*", DefinitionRights(without=("bash", "mcp__x")), ""),
        ("disallowedTools: WebSearch", DefinitionRights(), "disallowedTools: no equivalent of WebSearch"),
        ("permissionMode: plan", DefinitionRights(mode="plan"), ""),
        ("permissionMode: acceptEdits", DefinitionRights(mode="edits"), ""),
        ("permissionMode: default", DefinitionRights(mode="ask"), ""),
        ("permissionMode: bypassPermissions", DefinitionRights(), "bypassPermissions is not used"),
        ("permissionMode: plan\nmode: auto", DefinitionRights(mode="auto"), ""),
        ("tools: *", DefinitionRights(), "list its tools"),
        ('tools: ["*"]', DefinitionRights(), "list its tools"),
        ("tools: []", DefinitionRights(tools=()), ""),
        ("maxTurns: 3", DefinitionRights(), "maxTurns is not supported, and restricts nothing"),
        ("color: red", DefinitionRights(), ""),
    ],
)
def test_restricting_settings_of_agents(
    root: Path, tmp_path: Path, settings: str, expected: DefinitionRights, warning: str
) -> None:
    agent = definition(root, tmp_path, "agents/a.md", settings)
    assert agent.error == ""
    assert msgspec.structs.replace(agent.rights, warnings=()) == expected
    assert warning in agent.warning
    assert bool(warning) == bool(agent.warning)


def test_restricting_settings_of_skills(root: Path, tmp_path: Path) -> None:
    hidden = definition(root, tmp_path, "skills/a/SKILL.md", "disable-model-invocation: true\nuser-invocable: true")
    assert (hidden.rights.for_model, hidden.rights.for_user) == (False, True)
    unnamed = definition(root, tmp_path, "skills/b/SKILL.md", "user-invocable: false")
    assert (unnamed.rights.for_model, unnamed.rights.for_user) == (True, False)
    unclear = definition(root, tmp_path, "skills/c/SKILL.md", "disable-model-invocation: maybe")
    assert "line 3: disable-model-invocation is not true or false" in unclear.error
    other = definition(root, tmp_path, "skills/d/SKILL.md", "disallowed-tools: Bash\npermissions: none")
    assert "disallowed-tools, permissions are not supported, and restrict nothing" in other.warning
