"""skill: the instructions of a skill, and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from kedge.config.library_files import Definition, read_skill_file
from kedge.core.approvals import Intent
from kedge.errors import Invalid
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.workspace_paths import real_path, subject_of

#: A list of skills or agents in the system prompt, which is a part of every request. Bytes.
LISTED_BYTES_MAX = 8 * 1024
#: One description in it. Characters.
LISTED_CHARS_MAX = 500
#: One file of a skill. Bytes.
SKILL_FILE_BYTES_MAX = 100_000

_DESCRIPTION = """\
Loads a skill: instructions for a certain kind of task, with the list of its files. Without a name it lists all skills.

- Load a skill before you begin a task that its description covers, and follow it.
- Read one of its files with `name` and `file`. Run its scripts with bash, by their full paths.
"""


class SkillInput(msgspec.Struct):
    name: Annotated[str, Meta(description="The name of the skill; empty: list all.")] = ""
    file: Annotated[str, Meta(description="A file of the skill to read; empty: its instructions.")] = ""


class SkillTool(Tool):
    name = "skill"
    description = _DESCRIPTION
    input: type[msgspec.Struct] = SkillInput
    read_only = True
    for_children = True

    def __init__(self, find: Callable[[str], Definition | None], every: Callable[[], list[Definition]]) -> None:
        self._find = find
        self._every = every

    def title(self, args: SkillInput) -> str:
        return " ".join(text for text in ("skill", args.name, args.file) if text)

    async def prepare(self, args: SkillInput, context: ToolContext) -> Prepared:
        skill = self._find(args.name)
        if args.name and skill is None:
            names = ", ".join(one.name for one in self._every()[:50])
            raise ToolFailed(f"Skill {args.name[:100]} not found. Skills: {names or 'none'}.")
        intent = Intent(
            names=("skill",),
            action="read",
            subject=args.name,
            description=self.title(args),
            path="",
            params=json.dumps({"name": args.name, "file": args.file}, ensure_ascii=False),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            if skill is None:
                return ToolOutput(listed(self._every(), "they do not fit here", OUTPUT_CHARS_MAX))
            if not args.file:
                return ToolOutput(skill_text(skill), summary=f"skill {skill.name}")
            return await context.threads.run(_file, skill, args.file, context)

        return Prepared(intent, run)


def _file(skill: Definition, name: str, context: ToolContext) -> ToolOutput:
    """Return the text of a file of the skill. Blocking."""
    path = skill.path / name
    real = real_path(path)
    subjects = {subject for one in (path, real) for subject in (subject_of(one, context.root), str(one))}
    if any(map(context.is_hidden, subjects)):
        raise ToolFailed(f"Not allowed: a rule denies viewing {name}. Do not try to get around it.")
    try:
        content, is_cut = read_skill_file(skill, name, SKILL_FILE_BYTES_MAX)
    except Invalid as error:
        raise ToolFailed(f"{name[:200]} cannot be read: {error}") from None
    if b"\0" in content:
        raise ToolFailed(f"{name} is not a text; use it by its path: {path}")
    text = content.decode("utf-8", "replace")
    is_cut |= len(text) > OUTPUT_CHARS_MAX
    return ToolOutput(text[:OUTPUT_CHARS_MAX] + ("\n[truncated: the file is longer]" if is_cut else ""))


def skill_text(skill: Definition) -> str:
    """Return the instructions of a skill, marked, with the list of its files."""
    inside = re.sub(r"<(?=/?skill\b)", "&lt;", skill.body, flags=re.IGNORECASE)
    text = f'<skill name="{skill.name}">\n{inside}\n</skill>'
    if skill.files:
        text += f"\n\nFiles of the skill, in {json.dumps(str(skill.path), ensure_ascii=False)}:\n"
        text += "\n".join(json.dumps(name, ensure_ascii=False)[1:-1] for name in skill.files)
    return text


def listed(definitions: list[Definition], more: str, bytes_max: int = LISTED_BYTES_MAX) -> str:
    """Return a line for each definition. `more`: how to see those that do not fit."""
    lines: list[str] = []
    left = bytes_max
    for index, one in enumerate(definitions):
        line = f"- {one.name}: {one.description[:LISTED_CHARS_MAX]}"
        left -= len(line.encode("utf-8", "replace")) + 1
        if left < 0:
            return "\n".join([*lines, f"- and {len(definitions) - index} more: {more}"])
        lines.append(line)
    return "\n".join(lines)
