"""The library of a workspace: skills, prompt commands and agents, from files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from kedge.config.definition_rights import LibraryKind
from kedge.config.library_files import (
    Definition,
    LibrarySource,
    ReadLimit,
    read_definitions,
    repository_sources,
    stamp_of,
    user_sources,
)
from kedge.config.schema import Config
from kedge.core.approvals import Rules, is_hidden
from kedge.core.extensions import AgentDefinition, CommandEntry, Expansion, ExtensionCondition, ExtensionState
from kedge.errors import BadConfig
from kedge.extensions.expansion import expand_text, with_arguments
from kedge.extensions.part import ExtensionHost
from kedge.extensions.skill_tool import SkillTool, listed, skill_text
from kedge.tools import file_threads
from kedge.tools.base import Tool
from kedge.tools.workspace_paths import subject_of

NOT_TRUSTED = "run: kedge config trust"


class Library:
    """The ExtensionPart. `more`: sources of plugins; the user's own and those of the repository win."""

    has_processes = False

    def __init__(
        self, host: ExtensionHost, home: Path, more: Callable[[], list[LibrarySource]] = list[LibrarySource]
    ) -> None:
        self._host = host
        self._home = home
        self._more = more
        #: Source -> its state when it was read, and its definitions.
        self._read: dict[LibrarySource, tuple[object, list[Definition]]] = {}
        self._entries: list[tuple[Definition, ExtensionCondition, str]] = []
        #: The usable definitions by kind and name.
        self._usable: dict[tuple[LibraryKind, str], Definition] = {}
        self._tool = SkillTool(self._skill, self._skills)

    async def refresh(self, config: Config) -> None:
        await self._host.files.run(self._refresh, config.permissions.rules(), limit_s=file_threads.READ_S)

    def _refresh(self, rules: Rules) -> None:
        host = self._host
        own = user_sources(self._home, host.config_dir)
        sources = [*self._more(), *own, *repository_sources(host.root, self._home)]
        read: dict[LibrarySource, tuple[object, list[Definition]]] = {}
        limits = {True: ReadLimit(), False: ReadLimit()}
        for source in sources:
            limit = limits[source.origin == "repository"]
            stamp = stamp_of(source, limit)
            known = self._read.get(source)
            if known is not None and known[0] == stamp:
                read[source] = known
            elif stamp is not None:
                read[source] = stamp, read_definitions(source, limit)
        every = [definition for _, definitions in read.values() for definition in definitions]
        trusted = [self._condition(definition, rules) for definition in every]
        usable = {
            (definition.kind, definition.name): definition
            for definition, (condition, _) in zip(every, trusted, strict=True)
            if condition == "ready"
        }
        entries = []
        for definition, (condition, error) in zip(every, trusted, strict=True):
            winner = usable.get((definition.kind, definition.name))
            if condition == "ready" and winner is not definition and winner is not None:
                condition, error = "disabled", f"{winner.path} has the same name and is used instead"
            entries.append((definition, condition, error))
        # At once: the event loop reads them while this thread runs.
        self._read, self._entries, self._usable = read, entries, usable

    def _condition(self, definition: Definition, rules: Rules) -> tuple[ExtensionCondition, str]:
        if definition.error:
            return "failed", definition.error
        names = (subject_of(definition.path, self._host.root), str(definition.path))
        if any(is_hidden(rules, name) for name in names):
            return "disabled", "a deny rule hides its file"
        if definition.needs_trust:
            try:
                is_trusted = self._host.trust.contains(definition.path, definition.content)
            except BadConfig as error:
                return "untrusted", error.message
            if not is_trusted:
                return "untrusted", NOT_TRUSTED
        return "ready", definition.warning

    # --- what others see --------------------------------------------------------------------------------------------

    def states(self) -> tuple[ExtensionState, ...]:
        return tuple(
            ExtensionState(
                definition.kind,
                definition.name,
                condition,
                definition.origin,
                str(definition.path),
                definition.description,
                error,
                definition.files,
            )
            for definition, condition, error in self._entries
        )

    def _skill(self, name: str) -> Definition | None:
        """Return a skill that the model may load."""
        return next((one for one in self._skills() if one.name == name), None)

    def _skills(self) -> list[Definition]:
        return [one for one in self._all("skill") if one.rights.for_model]

    def _all(self, kind: LibraryKind) -> list[Definition]:
        return sorted((one for (of_kind, _), one in self._usable.items() if of_kind == kind), key=lambda one: one.name)

    def commands(self) -> tuple[CommandEntry, ...]:
        skills = [one for one in self._all("skill") if one.rights.for_user]
        commands = {one.name: _entry(one) for one in (*skills, *self._all("command"))}
        return tuple(commands[name] for name in sorted(commands))

    async def expand(self, name: str, arguments: str) -> Expansion | None:
        if command := self._usable.get(("command", name)):
            return Expansion(expand_text(command.body, arguments), command.rights.allow, command.rights.model)
        if (skill := self._usable.get(("skill", name))) and skill.rights.for_user:
            return Expansion(with_arguments(skill_text(skill), arguments), skill.rights.allow, skill.rights.model)
        return None

    def agent(self, name: str) -> AgentDefinition | None:
        if (one := self._usable.get(("agent", name))) is None:
            return None
        rights = one.rights
        return AgentDefinition(one.name, one.body, rights.tools, rights.mode, rights.model, rights.without)

    def agents(self) -> tuple[str, ...]:
        return tuple(one.name for one in self._all("agent"))

    def tools(self) -> tuple[Tool, ...]:
        return (self._tool,) if self._skills() else ()

    def system_text(self) -> str:
        texts = []
        if skills := self._skills():
            intro = "Instructions for certain tasks. Before you begin such a task, load its skill with the skill tool."
            more = "call the skill tool without a name to list them"
            texts.append(f"# Skills\n\n{intro}\n\n{listed(skills, more)}")
        if agents := self._all("agent"):
            intro = "Names for the parameter `agent` of the agent tool, if you have that tool."
            texts.append(f"# Agents\n\n{intro}\n\n{listed(agents, 'a wrong name lists all')}")
        return "\n\n".join(texts)

    async def close(self) -> None:
        pass


def _entry(definition: Definition) -> CommandEntry:
    kind: Literal["command", "skill"] = "skill" if definition.kind == "skill" else "command"
    return CommandEntry(definition.name, kind, definition.origin, definition.description, definition.argument_hint)
