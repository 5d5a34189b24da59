"""An engine with the agent as the executor of its Runs."""

from __future__ import annotations

from collections.abc import Callable

from kedge.agent.model_choice import ModelChooser
from kedge.agent.runner import Runner
from kedge.agent.system_prompt import NoPrompts, Prompts
from kedge.agent.tool_calls import ToolCalls
from kedge.config.schema import Config
from kedge.engine.door import Door, no_users
from kedge.engine.engine import Engine
from kedge.engine.placement import Placement
from kedge.engine.ports import Agents, Clock, Encoder, Ids, Machine
from kedge.engine.tool_processes import NoMachine
from kedge.engine.workspace import MakeExtensions, MakeSource
from kedge.store.base import Store
from kedge.tools.base import Tool
from kedge.tools.registry import Toolset


def make_engine(
    store: Store,
    clock: Clock,
    ids: Ids,
    encoder: Encoder,
    models: ModelChooser,
    config: Config,
    tools: tuple[Tool, ...] = (),
    machine: Machine | None = None,
    prompts: Prompts | None = None,
    make_source: MakeSource | None = None,
    make_extensions: MakeExtensions | None = None,
    placement: Placement | None = None,
    has_users: Callable[[], bool] = no_users,
) -> Engine:
    machine = machine or NoMachine()

    def make_runner(door: Door, agents: Agents) -> Runner:
        return Runner(door, models, ToolCalls(Toolset(tools), machine, agents), prompts or NoPrompts())

    return Engine(
        store,
        clock,
        ids,
        encoder,
        config,
        machine,
        make_runner,
        make_source,
        make_extensions,
        placement,
        has_users,
    )
