"""One request to the model, as a message that streams: written down as it grows, tried again when a provider fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.core.events import Change, RetryReported
from kedge.core.records import SessionRecord
from kedge.core.transcript import Message, chars_of
from kedge.engine.door import Door
from kedge.engine.draft import Draft
from kedge.engine.lane_state import Draught
from kedge.engine.ports import Clock, Ids
from kedge.errors import ContextFull, ModelFailed, RunNotActive, StoreUnavailable
from kedge.llm.base import ModelEnd, ModelRequest, ReasoningDelta, TextDelta

log = logging.getLogger("kedge.engine")

#: How often text already shown to readers is put where a killed process cannot lose it. Seconds.
CHECKPOINT_S = 0.2
#: A model that has written this much in one message is taken to be stuck: it is twice what 128,000 tokens are. The
#: message is encoded while it grows, and twice at its end, in one go. Characters.
MESSAGE_CHARS_MAX = 1_000_000
#: Of one message: texts and thoughts by turns. Models that think between calls have a dozen. Items.
PARTS_MAX = 1_000
#: Of one request, in characters of text and of pictures: no provider takes more, and each Step builds it again. What is
#: longer is summarised, as if the provider had refused it.
REQUEST_CHARS_MAX = 32_000_000
#: A provider that asks to wait longer than this is not waited for: people would rather know. Seconds.
WAIT_S_MAX = 120.0
#: The longest pause we choose ourselves between two attempts. Seconds.
PAUSE_S_MAX = 30.0


class Asking:
    def __init__(self, door: Door, clock: Clock, ids: Ids) -> None:
        self._door = door
        self._clock = clock
        self._ids = ids
        self._saves: set[asyncio.Task[None]] = set()

    async def ask(self, active: ActiveRun, request: ModelRequest) -> ModelEnd:
        """The model's reply in the draft, and how it ended. A failed attempt is made again, if that may help; what was
        said of it is taken back."""
        if sum(map(chars_of, request.messages)) > REQUEST_CHARS_MAX:
            raise ContextFull(f"The session has more than {REQUEST_CHARS_MAX} characters; start a new session.")
        runs = active.workspace.config.runs
        attempt = 1
        while True:
            try:
                end = await self._stream(active, request)
                active.check_not_ending()
                return replace(end, usage=active.model.priced(end.usage))
            except ContextFull:
                raise
            except ModelFailed as error:
                pause_s = min(runs.retry_s * 2 ** (attempt - 1), PAUSE_S_MAX) if error.wait_s is None else error.wait_s
                if not error.retryable or attempt >= runs.retries_max or pause_s > WAIT_S_MAX:
                    raise
                attempt += 1
                await self._take_back(active)
                await self._tell(
                    active, RetryReported(active.run.run_id, attempt, runs.retries_max, pause_s, str(error))
                )
                await asyncio.sleep(pause_s)

    async def _stream(self, active: ActiveRun, request: ModelRequest) -> ModelEnd:
        draft, feed = active.draft, active.lane.feed
        assert draft is not None
        async with active.model.model.stream(request) as parts:
            async for part in parts:
                match part:
                    case TextDelta(text=text):
                        draft.add("text", text)
                    case ReasoningDelta(text=text, signature=signature):
                        draft.add("reasoning", text, signature)
                    case ModelEnd():
                        return part
                if draft.closed:
                    raise RunNotActive(f"run {active.run.run_id} has ended and says no more")
                feed.grew(draft)
                if active.checkpoint_timer is None:
                    self._plan_checkpoint(active)
                if draft.chars > MESSAGE_CHARS_MAX:
                    raise ModelFailed(f"The model wrote more than {MESSAGE_CHARS_MAX} characters and was stopped.")
                if draft.parts_count > PARTS_MAX:
                    raise ModelFailed(f"The model began more than {PARTS_MAX} texts and thoughts and was stopped.")
        raise ModelFailed("The model's answer broke off before its end; try again.", retryable=True)

    async def _take_back(self, active: ActiveRun) -> None:
        """The same message, empty again: the next attempt stands for the one that failed."""
        draft = active.draft
        assert draft is not None
        if not draft.is_empty:
            self.end_stream(active)
            blank = draft.blank()
            await self.put(active, "updated", blank.message(self._clock.now_ms()))
            active.draft = blank
            active.lane.feed.stream(blank)

    async def _tell(self, active: ActiveRun, event: RetryReported) -> None:
        def told(draught: Draught, session: SessionRecord) -> SessionRecord:
            draught.log.append(event)
            return session

        await self._door.put(active.lane, told, of_run=active.run.run_id)

    # --- messages ------------------------------------------------------------------------------------------------

    def new_message(self, active: ActiveRun) -> Message:
        now, run = self._clock.now_ms(), active.run
        provider, name = (active.chosen.model.provider, active.chosen.model.name) if active.chosen else ("", "")
        return Message(self._ids.new("m"), run.session_id, "assistant", (), now, now, run.run_id, name, provider)

    def end_stream(self, active: ActiveRun) -> None:
        if active.checkpoint_timer is not None:
            active.checkpoint_timer.cancel()
            active.checkpoint_timer = None
        if active.draft is not None:
            active.draft.close()
            active.lane.feed.stream_ended(active.draft)

    async def put(
        self,
        active: ActiveRun,
        change: Change,
        message: Message,
        session: Callable[[SessionRecord], SessionRecord] = lambda session: session,
    ) -> None:
        """A message of the Run, and what changes of its session in the same append."""

        def putting(draught: Draught, before: SessionRecord) -> SessionRecord:
            draught.put(change, message)
            # What it cost so far goes with it: a crash must not make a Run cheaper.
            draught.runs[message.run_id] = active.spent(active.lane.runs)
            return session(before)

        active.check_not_ending()
        active.unsure[message.id] = message
        try:
            await self._door.put(active.lane, putting, of_run=message.run_id)
        except BaseException:
            active.history.forget()
            raise
        active.history.put(message)
        active.unsure.pop(message.id, None)

    def _plan_checkpoint(self, active: ActiveRun) -> None:
        def save() -> None:
            active.checkpoint_timer = None
            if active.draft is not None:
                task = asyncio.get_running_loop().create_task(self._save(active, active.draft))
                self._saves.add(task)
                task.add_done_callback(self._saves.discard)

        active.checkpoint_timer = asyncio.get_running_loop().call_later(CHECKPOINT_S, save)

    async def _save(self, active: ActiveRun, draft: Draft) -> None:
        try:
            await self._door.save_tails(active.lane, draft)
        except StoreUnavailable as error:
            # The text is still here and is put whole when the message ends; only a kill in between would lose it.
            log.warning("run %s: a checkpoint could not be written: %s", active.run.run_id, error)
