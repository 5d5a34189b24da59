"""What models are told besides the conversation, as it stands in prompts/ and in the repository."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kedge.agent.system_prompt import Agent, Facts, prompt, system_name, system_prompt
from kedge.core.records import RunRecord
from kedge.engine.workspaces import Workspace


class WrittenPrompts:
    def __init__(self, today: Callable[[], str], config_dir: Path) -> None:
        self._today = today
        self._config_dir = config_dir
        self.title, self.summary = prompt("title"), prompt("summary")

    async def system(self, workspace: Workspace, run: RunRecord) -> str:
        facts = Facts(self._today(), system_name(), self._config_dir)
        agent: Agent = "look" if run.options.parent_run_id else "main"
        return await asyncio.to_thread(system_prompt, workspace.root, workspace.config, facts, agent, run.options.deny)
