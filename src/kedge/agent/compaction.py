"""Compaction: a history that is about to fill the model's context is replaced by a summary, inside the same Run."""

from __future__ import annotations

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.model_call import Asking
from kedge.core.records import RunRecord, SessionRecord
from kedge.core.step import estimated_tokens
from kedge.core.transcript import Binary, Finish, ImageUrl, Message, Text, ToolResult, for_model
from kedge.engine.ports import Clock
from kedge.errors import ContextFull, ModelFailed
from kedge.llm.base import ModelRequest

#: When the history does not even fit for being summarised, it is sent without its pictures, if it has any; then so much
#: of its beginning is left out, and then more.
SHARES_KEPT = (1.0, 0.5, 0.25)
#: Of the request under way, repeated behind the summary word for word. Characters.
PROMPT_CHARS_MAX = 20_000


async def compact(
    active: ActiveRun,
    asking: Asking,
    clock: Clock,
    history: list[Message],
    instruction: str,
) -> None:
    """The draft of a begun Step becomes the summary, and everything before it stays out of later requests. What Runs
    that have joined this one ask for must not get lost in it either."""
    session, chosen = active.lane.session, active.model
    sent = for_model(history, session.summary_message_id)
    now = clock.now_ms()
    wish = Message("summary", session.id, "user", (Text(instruction),), now, now, active.run.run_id)
    shows_pictures = chosen.takes_images and any(map(_has_pictures, sent))
    attempts = [*([(1.0, True)] if shows_pictures else []), *((share, False) for share in SHARES_KEPT)]
    for share, with_pictures in attempts:
        kept = sent[int(len(sent) * (1 - share)) :]
        request = ModelRequest(
            chosen.model.name,
            tuple(for_model([*kept, wish])),
            output_tokens_max=chosen.output_tokens_max,
            accepts_images=with_pictures,
        )
        try:
            end = await asking.ask(active, request)
            break
        except ContextFull:
            continue
    else:
        raise ContextFull("The conversation is too long even for a summary of it; start a new session.")
    active.usage += end.usage
    asking.end_stream(active)
    assert active.draft is not None
    written = active.draft.message(clock.now_ms())  # of the last attempt: one that failed has left its draft
    if not written.text.strip():
        raise ModelFailed("The model summarised the conversation with nothing; try again, or start a new session.")
    text = written.text + _kept_beside(session, [active.run, *active.folded])
    message = replace(written, parts=(Text(text),)).closed(Finish("end_turn", clock.now_ms(), "summary"))
    active.draft = None
    await asking.put(active, "updated", message, lambda before: replace(before, summary_message_id=message.id))
    active.is_compacted, active.context_is_full, active.summary = True, False, message
    active.context_tokens = active.lane.context_tokens = estimated_tokens([message])


def _has_pictures(message: Message) -> bool:
    in_results = any(result.images for result in message.all(ToolResult))
    return in_results or bool(message.all(Binary) or message.all(ImageUrl))


def _kept_beside(session: SessionRecord, runs: list[RunRecord]) -> str:
    """What no summary may lose: the list of todos, and the request that is being worked on."""
    kept = ""
    if session.todos:
        kept += "\n\nTodos:\n" + "\n".join(f"- [{todo.status}] {todo.content}" for todo in session.todos)
    if runs[0].options.purpose == "answer":
        asked = "\n\n".join(run.prompt.text[:PROMPT_CHARS_MAX] for run in runs)
        kept += f"\n\nThe request you are working on:\n{asked}"
        # Nobody shall take a picture for seen that was too large to be sent.
        if files := [file.file_path or file.file_name for run in runs for file in run.prompt.attachments]:
            kept += f"\n\nFiles that came with it, and are not repeated here: {', '.join(files)}"
    return kept
