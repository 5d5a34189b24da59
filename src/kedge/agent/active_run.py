"""A Run at work in this process: what its supervisor, its Steps and its tool calls share."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from kedge.agent.history import History
from kedge.agent.model_choice import RunModel
from kedge.core.approvals import Ask
from kedge.core.records import RunOptions, RunRecord, Usage
from kedge.core.step import RECENT_CALLS, Limits, Progress, repeats
from kedge.core.transcript import FinishReason, Message, ToolCall
from kedge.engine.draft import Draft
from kedge.engine.lane_state import OpenLane
from kedge.engine.workspaces import Workspace
from kedge.errors import RunNotActive
from kedge.tools.background import BackgroundCommands
from kedge.tools.tool_threads import ToolThreads


@dataclass(slots=True)
class ActiveRun:
    lane: OpenLane
    run: RunRecord
    workspace: Workspace
    history: History
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    chosen: RunModel | None = None
    limits: Limits = field(default_factory=lambda: Limits(1))
    #: The same for the whole Run, since providers keep what begins alike.
    system: str = ""
    #: The message being streamed; None between Steps.
    draft: Draft | None = None
    #: Messages given to the store whose arrival is not known yet: their append is under way, failed or was left alone.
    #: The end puts them again, whole: that is right in either case.
    unsure: dict[str, Message] = field(default_factory=dict)
    #: Tool calls of the last Step that have no result yet.
    open_calls: dict[str, ToolCall] = field(default_factory=dict)
    #: A resumed Run knows again where it stood.
    is_recalled: bool = False
    #: What people were asked for these calls by the last process, and have not answered yet.
    standing: dict[str, tuple[Ask, asyncio.Future[Ask]]] = field(default_factory=dict)
    #: Ids of all its calls so far.
    call_ids: set[str] = field(default_factory=set)
    #: Its end is being written: what was left behind by a failed clean-up puts no more messages.
    is_ending: bool = False
    steps: int = 0
    last: FinishReason | None = None
    usage: Usage = Usage()
    context_tokens: int = 0
    context_is_full: bool = False
    is_compacted: bool = False
    #: The summary it wrote: of a Run that was asked for one, its answer.
    summary: Message | None = None
    #: Of its latest calls with their results: what tells that it goes round in circles.
    signatures: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_CALLS))
    unapproved: str = ""
    checkpoint_timer: asyncio.TimerHandle | None = None
    #: Commands that its tool calls left running on purpose; they end with the Run.
    background: BackgroundCommands = field(default_factory=BackgroundCommands)
    #: Of the pictures that the calls of this Step have given so far. Characters.
    picture_chars: int = 0
    #: Blocking work of its tool calls.
    threads: ToolThreads = field(default_factory=ToolThreads)
    #: Makes the title of the session meanwhile; it ends with the Run.
    title: asyncio.Task[None] | None = None

    @property
    def progress(self) -> Progress:
        return Progress(
            purpose=self.run.options.purpose,
            steps=self.steps,
            cost_usd=self.usage.cost_usd,
            context_tokens=self.context_tokens,
            context_is_full=self.context_is_full,
            is_compacted=self.is_compacted,
            open_calls=tuple(self.open_calls.values()),
            last=self.last,
            repeats=repeats(self.signatures),
            unapproved=self.unapproved,
        )

    @property
    def folded(self) -> list[RunRecord]:
        """Runs that have joined this one."""
        return [run for run in self.lane.runs.values() if run.folded_into == self.run.run_id]

    @property
    def options(self) -> RunOptions:
        """What its tools may do now: a prompt that joins a Run brings its own rules, and has no leave of the host's."""
        return self.run.options.merged_with([run.options for run in self.folded])

    def spent(self, runs: dict[str, RunRecord]) -> RunRecord:
        """Its record with what it has used so far."""
        run = runs[self.run.run_id]
        tokens = self.lane.context_tokens or run.context_tokens
        return replace(run, usage=self.usage, context_tokens=tokens)

    def check_not_ending(self) -> None:
        if self.is_ending:
            raise RunNotActive(f"run {self.run.run_id} is ending and says no more")

    @property
    def model(self) -> RunModel:
        assert self.chosen is not None, "a Run chooses its model before anything else"
        return self.chosen
