"""A Run in execution: the state that its supervisor, Steps and tool calls share, and what it writes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from kedge.agent.history import History
from kedge.agent.model_choice import RunModel
from kedge.core.approvals import Ask, Intent, Permit
from kedge.core.events import Change, RetryReported
from kedge.core.hooks import HookAnswer, HookDecision
from kedge.core.modes import Mode, narrower
from kedge.core.records import Effort, RunOptions, RunRecord, Usage
from kedge.core.step import RECENT_CALLS, Limits, Progress, repeats
from kedge.core.transcript import FinishReason, Message, ToolCall
from kedge.engine.append import Append
from kedge.engine.door import RETRY_S, RETRY_S_MAX, Door, Plan
from kedge.engine.draft import Draft
from kedge.engine.lane_state import LaneState
from kedge.engine.workspace import Workspace
from kedge.errors import RunNotActive, StoreUnavailable
from kedge.tools.background import BackgroundCommands
from kedge.tools.base import ToolOutput
from kedge.tools.tool_threads import ToolThreads
from kedge.waiting import backoff_s

#: Attempts of a Run to use a store that is away: with the delays between them, a minute. A longer outage fails the Run,
#: so that the user knows. Items.
STORE_ATTEMPTS_MAX = 18

T = TypeVar("T")


@dataclass(slots=True)
class WaitingCall:
    """A tool call that waits for an approval."""

    intent: Intent
    #: See `permit_in_mode`.
    can_confine: bool
    hook: HookDecision = ""
    #: The last decision, by which the call runs if its Ask is settled by rule. None: not decided again yet.
    permission: Permit | None = None


@dataclass(slots=True)
class ActiveRun:
    door: Door
    state: LaneState
    run: RunRecord
    workspace: Workspace
    history: History
    #: Blocking work of tool calls.
    threads: ToolThreads
    #: The Run whose agent this is; None: a Run of the user.
    parent: ActiveRun | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    chosen: RunModel | None = None
    effort: Effort = ""
    limits: Limits = field(default_factory=lambda: Limits(1))
    #: The same for the whole Run, so that providers can cache it.
    system: str = ""
    #: The message that is streaming; None between Steps.
    draft: Draft | None = None
    #: Messages whose append is not confirmed: running, failed or abandoned. The end puts them again in any case.
    unconfirmed: dict[str, Message] = field(default_factory=dict)
    #: Tool calls of the last Step without a result.
    open_calls: dict[str, ToolCall] = field(default_factory=dict)
    #: The calls that have begun, and may have had an effect, with the times of their begin.
    begun: dict[str, int] = field(default_factory=dict)
    #: By call: its result so far, in case it is cut off.
    partial: dict[str, Callable[[], ToolOutput]] = field(default_factory=dict)
    #: Progress was restored from the transcript.
    is_restored: bool = False
    #: Asks of the last process for these calls, still unanswered, with futures for their answers.
    standing: dict[str, tuple[Ask, asyncio.Future[Ask]]] = field(default_factory=dict)
    #: By the id of the Ask.
    waiting: dict[str, WaitingCall] = field(default_factory=dict)
    #: Set if its waiting calls must be decided again: there is a new Ask, grant or mode.
    reconsider: asyncio.Event = field(default_factory=asyncio.Event)
    #: The task that decides them again; it ends with the Run.
    settling: asyncio.Task[None] | None = None
    #: Ids of all its calls so far.
    call_ids: set[str] = field(default_factory=set)
    #: The end is being written: a task that clean-up could not stop writes no more messages.
    is_ending: bool = False
    steps: int = 0
    last: FinishReason | None = None
    usage: Usage = Usage()
    #: The part of `usage` that its child Runs used.
    child_usage: Usage = Usage()
    first_token_at: int | None = None
    context_tokens: int = 0
    context_is_full: bool = False
    is_compacted: bool = False
    #: The summary it wrote: the answer of a Run that was asked for one.
    summary: Message | None = None
    #: Signatures of the recent calls, to detect loops.
    signatures: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_CALLS))
    unapproved: str = ""
    checkpoint_timer: asyncio.TimerHandle | None = None
    #: Commands that tool calls left running on purpose; they end with the Run.
    background: BackgroundCommands = field(default_factory=BackgroundCommands)
    #: Pictures in the results of the current Step. Characters.
    picture_chars: int = 0
    #: The task that creates the session's title; it ends with the Run.
    title: asyncio.Task[None] | None = None
    #: Hooks about its Asks, in the order of their starts; they end with the Run.
    hook_tasks: dict[asyncio.Task[HookAnswer], None] = field(default_factory=dict)
    #: How often hooks have made it continue.
    hook_stops: int = 0

    @property
    def id(self) -> str:
        return self.run.run_id

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
        """The Runs that have joined this one."""
        return [run for run in self.state.runs.values() if run.folded_into == self.id]

    @property
    def options(self) -> RunOptions:
        """The current options: a prompt that joins brings its own rules and does not inherit those of the host."""
        return self.run.options.merged_with([run.options for run in self.folded])

    @property
    def mode(self) -> Mode:
        """The current mode. An agent has that of the Run that it serves, or the narrower one of its definition."""
        mode = self.parent.mode if self.parent else self.state.session.mode
        agent = self.run.options.agent
        return narrower(mode, agent.mode) if agent is not None and agent.mode else mode

    @property
    def model(self) -> RunModel:
        assert self.chosen is not None, "the model is chosen before the first Step"
        return self.chosen

    def count_context(self, tokens: int) -> None:
        """Record the size of the context after a reply or a summary."""
        self.context_tokens = self.state.context_tokens = tokens

    def check_not_ending(self) -> None:
        if self.is_ending:
            raise RunNotActive(f"Run {self.id} is ending and accepts no further output.")

    # --- writes --------------------------------------------------------------------------------------------------

    async def write(self, plan: Plan) -> Append:
        """Write for this Run; RunNotActive once it has ended. If the store is away, wait for it.

        The plan is repeated after a failed append, which may have been stored: see `Append.is_repeated`."""
        attempts = 0

        async def checked(tx: Append) -> None:
            tx.require_active(self.id)
            tx.is_repeated = attempts > 1
            await plan(tx)

        async def attempt() -> Append:
            nonlocal attempts
            attempts += 1
            return await self.door.write(self.state, checked)

        return await self.with_store(attempt)

    async def with_store(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call that needs the store. Retry it for a while if the store is away."""
        delays_s = backoff_s(RETRY_S, RETRY_S_MAX)
        for attempt in range(2, STORE_ATTEMPTS_MAX + 1):
            try:
                return await call()
            except StoreUnavailable as error:
                wait_s = next(delays_s)
                retry = RetryReported(self.id, attempt, STORE_ATTEMPTS_MAX, wait_s, str(error))
                feed, session_id = self.state.feed, self.run.session_id
                feed.send_transient(session_id, feed.encoder.encode(None, session_id, retry, {}))
                await asyncio.sleep(wait_s)
                self.check_not_ending()
        return await call()

    async def put_message(self, change: Change, message: Message, *, is_new_summary: bool = False) -> None:
        """Write a message of the Run, together with its cost so far: a crash must not make a Run cheaper."""

        async def plan(tx: Append) -> None:
            is_stored = tx.is_repeated and await self.door.store.message(self.run.workspace_id, message.id) is not None
            tx.put_message("updated" if is_stored else change, message)
            self.put_usage(tx)
            if is_new_summary:
                tx.session = replace(tx.session, summary_message_id=message.id)

        self.check_not_ending()
        self.unconfirmed[message.id] = message
        try:
            await self.write(plan)
        except BaseException:
            self.history.invalidate()
            raise
        self.history.put(message)
        self.unconfirmed.pop(message.id, None)

    def put_usage(self, tx: Append) -> None:
        """Add the Run's usage so far to an append."""
        run = tx.runs.get(self.id) or tx.state.runs[self.id]
        tx.change_run(
            replace(
                run,
                usage=self.usage,
                child_usage=self.child_usage,
                context_tokens=self.state.context_tokens or run.context_tokens,
                model=f"{self.chosen.model.provider}/{self.chosen.model.name}" if self.chosen else run.model,
                first_token_at=self.first_token_at,
            )
        )

    def new_message(self) -> Message:
        """Return an empty assistant message."""
        now = self.door.clock.now_ms()
        provider, name = (self.chosen.model.provider, self.chosen.model.name) if self.chosen else ("", "")
        new_id = self.door.ids.new("m")
        return Message(new_id, self.run.session_id, "assistant", (), now, now, self.id, name, provider)

    def begin_stream(self) -> None:
        assert self.draft is not None
        self.state.feed.stream(self.draft)

    def end_stream(self) -> None:
        """Stop checkpoints and deltas: the complete message follows."""
        if self.checkpoint_timer is not None:
            self.checkpoint_timer.cancel()
            self.checkpoint_timer = None
        if self.draft is not None:
            self.draft.close()
            self.state.feed.stream_ended(self.draft)
