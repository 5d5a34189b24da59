"""The exact bytes of every frame. `KEDGE_GOLDEN=write pytest tests/wire/test_golden_frames.py` records them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from msgspec.structs import replace

from kedge.core import events as e
from kedge.core.approvals import Ask
from kedge.core.records import Record, Records, RunRecord, SessionView
from kedge.core.run_trace import TraceEntry
from kedge.core.transcript import Reasoning, Text
from kedge.wire import frames
from tests.wire.samples import APPROVAL, ENDED, MESSAGE, NASTY, QUESTION, RUN, SAMPLES, SESSION

GOLDEN = Path(__file__).with_name("golden_frames.json")


def frame_of(
    event: e.Event,
    *,
    deleted: bool = False,
    run: RunRecord = RUN,
    ask: Ask = APPROVAL,
    position: int | None = 7,
) -> bytes:
    records: dict[str, Record] = {"run": run, "session": SessionView(SESSION, True, 3), "message": MESSAGE, "ask": ask}
    named = frames.record_of(event)
    known: Records = {named[0]: {named[1]: records[named[0]]}} if named and not deleted else {}
    return frames.encode(position, "s1", event, known)


def all_frames() -> dict[str, bytes]:
    result: dict[str, bytes] = {}
    for event in SAMPLES.values():
        result[type(event).__name__] = frame_of(event)
        result[f"{type(event).__name__}, record deleted"] = frame_of(event, deleted=True)
    settled, answered = SAMPLES[e.AskSettled], replace(APPROVAL, state="answered", answered_by="c1")
    return result | {
        "RunEnded, failed": frame_of(e.RunEnded("r1", "failed", "timeout", 1), run=ENDED),
        "RunReported, failed": frame_of(e.RunReported("r1", "failed", "timeout"), run=ENDED),
        "RunReported, cancelled": frame_of(e.RunReported("r1", "cancelled", "")),
        "ErrorReported, failed": frame_of(SAMPLES[e.ErrorReported], run=ENDED),
        "RunAccepted, folds": frame_of(e.RunAccepted("r1", 1, True, 1), run=replace(RUN, state="queued", folds=True)),
        "SessionChanged, created": frame_of(e.SessionChanged("s1", "created")),
        "SessionChanged, deleted": frame_of(e.SessionChanged("s1", "deleted"), deleted=True),
        "MessageChanged, updated": frame_of(e.MessageChanged("m1", "updated")),
        "Asked, pending": frame_of(SAMPLES[e.Asked], position=None),
        "Asked, question": frame_of(SAMPLES[e.Asked], ask=QUESTION),
        "AskSettled, allowed": frame_of(settled, ask=replace(answered, answer="allow_session")),
        "AskSettled, denied": frame_of(settled, ask=replace(answered, answer="deny")),
        "AskSettled, by a user": frame_of(settled, ask=replace(answered, answer="allow", author="ann")),
        "RunAccepted, of a user": frame_of(SAMPLES[e.RunAccepted], run=replace(RUN, author="ann")),
        "RunReported, cancelled by a user": frame_of(
            e.RunReported("r1", "cancelled", ""), run=replace(ENDED, author="ann", cancelled_by="bob")
        ),
        "CancelMarked, by a user": frame_of(
            SAMPLES[e.CancelMarked], run=replace(RUN, trace=(TraceEntry("cancel", 1, 1, author="bob"),))
        ),
        "AskSettled, withdrawn": frame_of(settled, ask=replace(APPROVAL, state="withdrawn")),
        "AskSettled, question": frame_of(settled, ask=replace(QUESTION, state="answered", answer="answered")),
        "delta, text": frames.delta("m1", 0, NASTY, "text"),
        "delta, reasoning": frames.delta("m1", 1, "why", "reasoning"),
        "snapshot": b"PARTS".join(frames.snapshot(replace(MESSAGE, parts=()))),
        "snapshot, text": frames.json_text(NASTY).join(frames.snapshot_part(Text(""))),
        "snapshot, reasoning": frames.json_text(NASTY).join(frames.snapshot_part(Reasoning("", "signed", 1, 2))),
        "gap": frames.gap("evicted", 9),
        "progress": frames.progress("s1", "r1", "c1", NASTY),
        "presence": frames.presence("s1", 2),
        "job output": frames.kept_output("s1", "k1", NASTY),
        "config_problem": frames.config_problem("/a/kedge.toml, line 2: wrong"),
    }


def test_frames_are_encoded_as_recorded() -> None:
    encoded = {name: data.decode() for name, data in all_frames().items()}
    if os.environ.get("KEDGE_GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(encoded, indent=1) + "\n")
    assert encoded == json.loads(GOLDEN.read_text())
