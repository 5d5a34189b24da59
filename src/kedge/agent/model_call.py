"""Requests to the model: the reply streams into the draft, is saved as it grows, and is retried on failures."""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.core.events import RetryReported
from kedge.core.transcript import chars_of
from kedge.engine.append import Append
from kedge.engine.draft import Draft
from kedge.errors import ContextFull, ModelFailed, RunNotActive, StoreUnavailable
from kedge.llm.base import ModelEnd, ModelRequest, ReasoningDelta, TextDelta
from kedge.slices import in_slices

log = logging.getLogger("kedge.agent")

#: How often streamed text is saved, so that a killed process does not lose it. Seconds.
CHECKPOINT_S = 0.2
#: A model that wrote this much in one message is stuck: it is twice the size of 128,000 tokens. The message is encoded
#: while it grows, and twice at its end, in one go. Characters.
REPLY_CHARS_MAX = 1_000_000
#: Text and thinking parts of one message. Models that think between calls have about a dozen. Items.
PARTS_MAX = 1_000
#: Text and pictures of one request: no provider takes more, and each Step builds it again. A longer history is
#: summarised as if the provider had refused it. Characters.
REQUEST_CHARS_MAX = 32_000_000
#: The longest pause that a provider may ask for; beyond it the Run fails, so that the user knows. Seconds.
PROVIDER_WAIT_S_MAX = 120.0
#: The longest pause of our own between two attempts. Seconds.
RETRY_PAUSE_S_MAX = 30.0


class ModelCall:
    def __init__(self) -> None:
        self._saves: set[asyncio.Task[None]] = set()

    async def request(self, active: ActiveRun, request: ModelRequest) -> ModelEnd:
        """Stream the reply into the draft and return its end. A retry starts with an empty draft."""
        if sum([chars_of(message) async for message in in_slices(request.messages)]) > REQUEST_CHARS_MAX:
            raise ContextFull(f"The session has more than {REQUEST_CHARS_MAX} characters; start a new session.")
        request = replace(request, messages=await active.history.with_contents(request.messages))
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
                pause_s = error.wait_s
                if pause_s is None:
                    pause_s = min(runs.retry_s * 2 ** (attempt - 1), RETRY_PAUSE_S_MAX)
                if not error.retryable or attempt >= runs.retries_max or pause_s > PROVIDER_WAIT_S_MAX:
                    raise
                attempt += 1
                await self._reset_draft(active)
                await _report(active, RetryReported(active.id, attempt, runs.retries_max, pause_s, str(error)))
                await asyncio.sleep(pause_s)

    async def _stream(self, active: ActiveRun, request: ModelRequest) -> ModelEnd:
        draft, feed = active.draft, active.state.feed
        assert draft is not None
        async with active.model.model.stream(request) as parts:
            async for part in parts:
                if active.first_token_at is None:  # a reply may consist of tool calls only
                    active.first_token_at = active.door.clock.now_ms()
                match part:
                    case TextDelta(text=text):
                        draft.add("text", text)
                    case ReasoningDelta(text=text, signature=signature):
                        draft.add("reasoning", text, signature)
                    case ModelEnd():
                        return part
                if draft.closed:
                    raise RunNotActive(f"Run {active.id} has ended and accepts no further output.")
                feed.text_added(draft)
                if active.checkpoint_timer is None:
                    self._schedule_checkpoint(active)
                if draft.chars > REPLY_CHARS_MAX:
                    raise ModelFailed(f"The model wrote more than {REPLY_CHARS_MAX} characters and was stopped.")
                if draft.parts_count > PARTS_MAX:
                    raise ModelFailed(f"The model began more than {PARTS_MAX} parts and was stopped.")
        raise ModelFailed("The model's reply ended early; try again.", retryable=True)

    async def _reset_draft(self, active: ActiveRun) -> None:
        """Empty the message: the next attempt replaces the failed one."""
        draft = active.draft
        assert draft is not None
        if not draft.is_empty:
            active.end_stream()
            blank = draft.blank()
            await active.put_message("updated", blank.message(active.door.clock.now_ms()))
            active.draft = blank
            active.begin_stream()

    def _schedule_checkpoint(self, active: ActiveRun) -> None:
        def save() -> None:
            active.checkpoint_timer = None
            if active.draft is not None:
                task = asyncio.get_running_loop().create_task(_save(active, active.draft))
                self._saves.add(task)
                task.add_done_callback(self._saves.discard)

        active.checkpoint_timer = asyncio.get_running_loop().call_later(CHECKPOINT_S, save)


async def _save(active: ActiveRun, draft: Draft) -> None:
    try:
        await active.door.save_tails(active.state, draft)
    except StoreUnavailable as error:
        # The text is still in memory and is written with the complete message; only a kill in between loses it.
        log.warning("run %s: a checkpoint could not be written: %s", active.id, error)


async def _report(active: ActiveRun, event: RetryReported) -> None:
    async def plan(tx: Append) -> None:
        tx.report(event)

    await active.write(plan)
