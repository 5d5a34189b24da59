"""Hooks on behalf of a Run: they end with it."""

from __future__ import annotations

import asyncio
from typing import Any

from kedge.agent.active_run import ActiveRun
from kedge.core.approvals import Ask
from kedge.core.hooks import PERMISSION_MODES, HookAnswer, HookEvent
from kedge.waiting import retrieve_exception

#: Events of one Run about its Asks whose hooks still run: the hooks of further ones are skipped. Items.
ASKED_MAX = 4


async def run_hooks(active: ActiveRun, event: HookEvent, fields: dict[str, Any], tool: str = "") -> HookAnswer:
    """Run the hooks of an event for a Run."""
    workspace, run = active.workspace, active.run
    mode = PERMISSION_MODES[active.mode]
    common = {"session_id": run.session_id, "run_id": run.run_id, "permission_mode": mode}
    return await workspace.extensions.run_hooks(
        workspace.config, event, common | fields, tool, active.background.add_survivors
    )


def on_asked(active: ActiveRun, ask: Ask) -> None:
    """Start the hooks that notify the user of an Ask. Neither the Ask nor its answer waits for them."""
    if not active.workspace.config.hooks.asked or len(active.hook_tasks) >= ASKED_MAX:
        return
    what = f"{ask.tool} needs your approval" if ask.kind == "approval" else f"{ask.tool} has a question"
    fields = {"message": f"{what}: {ask.description}", "notification_type": "permission_prompt", "title": "kedge"}
    task = asyncio.get_running_loop().create_task(run_hooks(active, "Notification", fields))
    active.hook_tasks[task] = None
    task.add_done_callback(lambda task: active.hook_tasks.pop(task, None))
    task.add_done_callback(retrieve_exception)
