"""Cancelled prompts stay in the transcript, also those dropped from the queue, and are not sent to models."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.core.events import CancelMarked
from kedge.core.records import Attachment, AttachmentContent, Prompt, RunOptions, attachment_digest
from kedge.core.transcript import AttachedFile, chars_of
from kedge.engine.append import DROPPED_CHARS_MAX
from kedge.store.base import Write
from kedge.testing.scripted import Hold, Say, ScriptedModel
from tests.engine.rig import CLIENT, OutageStore, Rig, no_asyncio_errors, rig, spin

CANCELED = ("assistant", "", "canceled")


class RecordingStore(OutageStore):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Write] = []

    async def append(self, write: Write) -> int:
        head = await super().append(write)
        self.writes.append(write)
        return head


async def started(r: Rig, *queued: str) -> None:
    """Start a Run that has streamed `half`, and queue others."""
    await r.submit("a", run_id="a")
    await r.model.wait_requests(1)
    await spin()
    for prompt in queued:
        await r.submit(prompt, run_id=prompt)


@pytest.mark.found(
    "issue 20",
    "a prompt that a cancel dropped from the queue left no messages, and a cancelled one was sent to the model with "
    "the next prompt; each leaves its message and an answer that ended canceled, and neither is sent",
)
@pytest.mark.parametrize("is_away", [False, True])
async def test_cancelled_prompts_stay_in_the_transcript(tmp_path: Path, is_away: bool) -> None:
    store = RecordingStore()
    model = ScriptedModel([Say("half"), Hold("never")], "next")
    async with no_asyncio_errors(), rig(tmp_path, model, store) as r:
        await started(r, "b", "by hand")
        content = AttachmentContent(attachment_digest(b"text"), b"text")
        file = Attachment("a.txt", "a.txt", "text/plain", 4, content.digest)
        await r.engine.submit(r.workspace, r.session, Prompt("c", (file,)), RunOptions(), "c", contents=(content,))
        await r.engine.cancel_run(r.workspace, "by hand")
        store.out = is_away
        cancelled = await r.engine.cancel(r.workspace, r.session)
        assert cancelled.is_recorded != is_away
        assert [run.run_id for run in cancelled.covered] == ["a", "b", "c"]
        store.out = False
        ended = [await r.end(run_id) for run_id in ("a", "b", "c", "by hand")]
        assert [run.reason for run in ended] == ["cancelled", "cancelled_in_queue", "cancelled_in_queue", "removed"]
        assert await r.transcript() == [
            ("user", "a", None),
            ("assistant", "half", "canceled"),
            ("user", "b", None),
            CANCELED,
            ("user", "c", None),
            CANCELED,
        ]
        messages = await r.engine.messages(r.workspace, r.session, None, 100)
        assert messages[4].all(AttachedFile)[0].digest == file.digest
        assert [run.message_id for run in ended] == [messages[1].id, messages[3].id, messages[5].id, ""]
        (write,) = [
            write for write in store.writes if any(isinstance(event, CancelMarked) for _, event in write.events)
        ]
        assert [one.run_id for one in write.messages if one.run_id != "a"] == ["b", "b", "c", "c"], "one append"
        await r.end(await r.submit("and now?"))
        assert [message.text for message in model.requests[-1].request.messages] == ["and now?"]
        await r.assert_sound()


async def test_cancel_of_long_queued_prompts_writes_little(tmp_path: Path) -> None:
    store, text = RecordingStore(), "x" * DROPPED_CHARS_MAX
    async with rig(tmp_path, ScriptedModel([Say("half"), Hold("never")]), store) as r:
        await started(r)
        for number in range(20):
            await r.submit(text, run_id=f"b{number}")
        await r.engine.cancel(r.workspace, r.session)
        await r.end("a")
        (write,) = [one for one in store.writes if any(isinstance(event, CancelMarked) for _, event in one.events)]
        assert sum(chars_of(message) for message in write.messages) < 2 * DROPPED_CHARS_MAX
        assert (await r.engine.run(r.workspace, "b19")).prompt.text == text
        assert len(await r.transcript()) == 42


async def test_cleared_queue_leaves_no_messages(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("half"), Hold("key")])) as r:
        await started(r, "b", "c")
        await r.engine.clear_queue(r.workspace, r.session)
        r.model.release("key")
        await r.end("a")
        assert await r.transcript() == [("user", "a", None), ("assistant", "half", "end_turn")]


async def test_abandoned_prompt_in_the_queue_leaves_its_messages(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("half"), Hold("key")])) as r:
        await started(r)
        await r.submit("b", run_id="b", on_disconnect="cancel")
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        assert (await r.end("b")).reason == "cancelled_in_queue"
        assert (await r.transcript())[2:] == [("user", "b", None), CANCELED]
        r.model.release("key")
        await r.end("a")
