"""Rewind to an earlier prompt: the conversation, the files, or both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kedge.core.events import SessionRewound
from kedge.core.reversal import Reversal
from kedge.core.transcript import Message
from kedge.engine.rewind import RewindScope
from kedge.errors import Invalid, LaneBusy, MessageNotFound, RunNotFound, StoreUnavailable
from kedge.store.base import CopiedMessages, Write
from kedge.testing.scripted import Hold, ScriptedModel
from tests.agent.test_compaction import NEARLY_FULL, small_window
from tests.engine.rig import ActingTool, OutageStore, Rig, do, rig
from tests.engine.test_undo import openai_text, writing


async def prompts(r: Rig, session_id: str = "") -> dict[str, Message]:
    """The prompts of the session by text."""
    messages = await r.engine.messages(r.workspace, session_id or r.session, None, 1_000)
    return {message.text: message for message in messages if message.role == "user" and message.text}


async def texts(r: Rig, session_id: str) -> list[str]:
    return [message.text for message in await r.engine.messages(r.workspace, session_id, None, 1_000)]


async def test_rewound_messages_are_in_the_fork_and_not_sent(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("answer 1", "answer 2", "answer 3", "answer 4")) as r:
        for number in (1, 2, 3):
            await r.end(await r.submit(f"prompt {number}"))
        before = await texts(r, r.session)
        message = (await prompts(r))["prompt 2"]
        rewound = await r.engine.rewind.rewind(r.workspace, r.session, message.id, "conversation")
        assert rewound.prompt.text == "prompt 2"
        assert rewound.fork is not None
        assert await texts(r, rewound.fork.id) == before
        assert await texts(r, r.session) == [*before[:2], ""]
        await r.end(await r.submit("prompt 2, edited"))
        await r.assert_sound()
        text = openai_text(r.model.requests[-1].request)
        assert "prompt 1" in text
        assert "removed what followed it" in text
        assert "prompt 2, edited" in text
        assert "prompt 3" not in text
        assert "prompt 2\n" not in text
        events = [entry.event for entry in await r.log() if isinstance(entry.event, SessionRewound)]
        assert events == [SessionRewound(r.session, message.id, rewound.fork.id)]
        # To the first prompt: nothing of the conversation is left, and the fork can be rewound as well.
        first = (await prompts(r))["prompt 1"]
        await r.engine.rewind.rewind(r.workspace, r.session, first.id, "both")
        assert await texts(r, r.session) == [""]
        last = (await prompts(r, rewound.fork.id))["prompt 3"]
        await r.engine.rewind.rewind(r.workspace, rewound.fork.id, last.id, "both")
        assert await texts(r, rewound.fork.id) == [*before[:4], ""]


async def test_rewind_before_a_summary_restores_the_history(tmp_path: Path) -> None:
    model = ScriptedModel("one", [*do("a"), NEARLY_FULL], "in short", "done", "again")
    async with rig(tmp_path, model, models=small_window(model), tools=(ActingTool(),)) as r:
        await r.end(await r.submit("first"))
        await r.end(await r.submit("second"))
        assert (await r.engine.session(r.workspace, r.session)).summary_message_id
        rewound = await r.engine.rewind.rewind(r.workspace, r.session, (await prompts(r))["second"].id, "conversation")
        assert rewound.fork is not None
        assert rewound.fork.summary_message_id
        assert not (await r.engine.session(r.workspace, r.session)).summary_message_id
        await r.end(await r.submit("second, edited"))
        assert "first" in openai_text(r.model.requests[-1].request)


@pytest.mark.parametrize("scope", ["files", "both"])
async def test_files_are_restored_across_runs_and_redone(tmp_path: Path, scope: RewindScope) -> None:
    a, b, mine, new = (tmp_path / name for name in ("a", "b", "mine", "new"))
    for path in (a, b, mine):
        path.write_text("0")
    tool = ActingTool(
        a1=writing(a, "1"), a2=writing(a, "2"), b1=writing(b, "1"), mine=writing(mine, "1"), new=writing(new, "1")
    )
    model = ScriptedModel(do("b1"), "ok", do("a1", "mine"), "ok", do("a2", "new"), "ok", "done")
    async with rig(tmp_path, model, tools=(tool,)) as r:
        for number in (1, 2, 3):
            await r.end(await r.submit(f"prompt {number}"))
        mine.write_text("by hand")
        message = (await prompts(r))["prompt 2"]
        rewound = await r.engine.rewind.rewind(r.workspace, r.session, message.id, scope)
        assert (a.read_text(), b.read_text(), mine.read_text(), new.exists()) == ("0", "1", "by hand", False)
        assert (rewound.restored, rewound.spared) == ([str(a), str(new)], [str(mine)])
        await r.end(await r.submit())
        text = openai_text(r.model.requests[-1].request)
        assert f"Later changes to them are gone:\n{a}\n{new}" in text
        assert f"keep their present content, with later changes:\n{mine}" in text
        assert (await r.engine.undo.redo(r.workspace, r.session)) == ("", [str(a), str(new)])
        assert (a.read_text(), new.read_text()) == ("2", "1")
        await r.assert_sound()
        with pytest.raises(RunNotFound):
            await r.engine.undo.redo(r.workspace, r.session)


async def test_changes_by_the_user_between_runs_are_spared(tmp_path: Path) -> None:
    a = tmp_path / "a"
    model = ScriptedModel(do("one"), "ok", do("two"), "ok")
    async with rig(tmp_path, model, tools=(ActingTool(one=writing(a, "1"), two=writing(a, "2")),)) as r:
        await r.end(await r.submit("prompt 1"))
        a.write_text("by hand")
        await r.end(await r.submit("prompt 2"))
        rewound = await r.engine.rewind.rewind(r.workspace, r.session, (await prompts(r))["prompt 1"].id, "files")
        assert (a.read_text(), rewound.spared) == ("2", [str(a)])


async def test_files_of_rewound_runs_are_restored_later(tmp_path: Path) -> None:
    """After a rewind of the conversation alone, the files of its Runs are still known."""
    a = tmp_path / "a"
    model = ScriptedModel("ok", do("one"), "ok", do("two"), "ok")
    async with rig(tmp_path, model, tools=(ActingTool(one=writing(a, "1"), two=writing(a, "2")),)) as r:
        for number in (1, 2):
            await r.end(await r.submit(f"prompt {number}"))
        kept = await r.engine.rewind.rewind(r.workspace, r.session, (await prompts(r))["prompt 2"].id, "conversation")
        assert (kept.restored, kept.spared, a.read_text()) == ([], [str(a)], "1")
        await r.end(await r.submit("prompt 3"))
        third = (await prompts(r))["prompt 3"].id
        assert (await r.engine.rewind.rewind(r.workspace, r.session, third, "files")).restored == [str(a)]
        assert a.read_text() == "1"
        await r.engine.rewind.rewind(r.workspace, r.session, (await prompts(r))["prompt 1"].id, "files")
        assert not a.exists()


async def test_rewind_is_refused_while_a_run_is_live(tmp_path: Path) -> None:
    model = ScriptedModel("answer 1", [Hold("k")], "answer 3")
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("prompt 1"))
        run = await r.submit("prompt 2")
        queued = await r.submit("prompt 3", when_busy="queue")
        first = (await prompts(r))["prompt 1"]
        for scope in ("conversation", "files", "both"):
            with pytest.raises(LaneBusy):
                await r.engine.rewind.rewind(r.workspace, r.session, first.id, scope)
        r.model.release("k")
        await r.end(run)
        await r.end(queued)
        answer = (await r.engine.messages(r.workspace, r.session, None, 9))[1]
        with pytest.raises(Invalid):
            await r.engine.rewind.rewind(r.workspace, r.session, answer.id, "both")
        with pytest.raises(MessageNotFound):
            await r.engine.rewind.rewind(r.workspace, r.session, "unknown", "both")
        assert len(await r.engine.sessions(r.workspace)) == 1


class HeldCopies(OutageStore):
    """Holds each slice of a copy until the gate opens."""

    async def copy_messages(self, *arguments: Any) -> CopiedMessages:
        copied = await super().copy_messages(*arguments)
        self.waiting.set()
        await self.gate.wait()
        return copied


async def test_prompt_accepted_during_a_rewind_wins(tmp_path: Path) -> None:
    store = HeldCopies()
    async with rig(tmp_path, ScriptedModel(*("answer",) * 4), store) as r:
        for number in (1, 2, 3):
            await r.end(await r.submit(f"prompt {number}"))
        first = (await prompts(r))["prompt 1"]
        rewinding = asyncio.create_task(r.engine.rewind.rewind(r.workspace, r.session, first.id, "conversation"))
        await store.waiting.wait()
        await r.end(await r.submit("prompt 4"))
        store.gate.set()
        with pytest.raises(LaneBusy):
            await rewinding
        await r.engine.reclaiming.idle()
        assert (len(await prompts(r)), r.store.data.copies) == (4, {})
        assert len(await r.engine.sessions(r.workspace)) == 1


#: The Writes of a rewind of conversation and files, in order, and the sessions after a failure before it happens.
STAGES: dict[str, tuple[Callable[[Write], bool], int]] = {
    "begin": (lambda write: bool(write.messages) and not write.files, 1),
    "content": (lambda write: bool(write.files) and not write.messages, 1),
    "fork": (lambda write: any(session.parent_session_id for session in write.sessions), 1),
    "end": (lambda write: bool(write.cuts), 2),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stage", list(STAGES))
async def test_interrupted_rewind_is_reported_and_loses_nothing(tmp_path: Path, stage: str, when: str) -> None:
    file, store = tmp_path / "a.txt", OutageStore()
    model = ScriptedModel("ok", do("write"), "ok", "done")
    async with rig(tmp_path, model, store, tools=(ActingTool(write=writing(file, "1")),)) as r:
        for number in (1, 2):
            await r.end(await r.submit(f"prompt {number}"))
        before = await texts(r, r.session)
        message = (await prompts(r))["prompt 2"]
        condition, sessions = STAGES[stage]
        setattr(store, when, condition)
        with pytest.raises(StoreUnavailable):
            await r.engine.rewind.rewind(r.workspace, r.session, message.id, "both")
        await r.end(await r.submit("prompt 3"))  # reloads the Lane
        is_cut = (stage, when) == ("end", "after")
        stored = await texts(r, r.session)
        assert stored[: len(before)] == before or is_cut
        messages = await r.engine.messages(r.workspace, r.session, None, 99)
        states = [part.state for one in messages for part in one.all(Reversal)]
        assert states == (["done"] if is_cut else [] if (stage, when) == ("begin", "before") else ["started"])
        assert file.exists() or states
        forks = [one for one in await r.engine.sessions(r.workspace) if one.id != r.session]
        if when == "before":
            assert len(forks) == sessions - 1
        for fork in forks:
            assert await texts(r, fork.id) == before
        await r.assert_sound()
