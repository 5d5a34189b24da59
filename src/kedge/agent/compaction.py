"""Compaction: when the history is about to fill the model's context, a summary replaces it, within the same Run."""

from __future__ import annotations

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.history import for_model_in_slices
from kedge.agent.model_call import ModelCall
from kedge.core.records import RunRecord, SessionRecord
from kedge.core.step import estimated_tokens
from kedge.core.transcript import AttachedFile, FinishPart, ImageUrl, Message, Text, ToolResult
from kedge.errors import ContextFull, ModelFailed
from kedge.llm.base import ModelEnd, ModelRequest

#: If the history is too long even to be summarised, it is sent without pictures, then only its latest part.
HISTORY_SHARES = (1.0, 0.5, 0.25)
#: The part of the current request that is repeated verbatim after the summary. Characters.
REPEATED_PROMPT_CHARS_MAX = 20_000


async def compact(active: ActiveRun, call: ModelCall, history: list[Message], instruction: str) -> None:
    """Turn the draft of the current Step into a summary; later requests start with it."""
    end = await _summarize(active, call, history, instruction)
    active.usage += end.usage
    active.end_stream()
    assert active.draft is not None
    now = active.door.clock.now_ms()
    written = active.draft.message(now)  # of the last attempt: failed attempts had other drafts
    if end.reason in ("content_filter", "error") or not written.text.strip():
        raise ModelFailed("The model returned no complete summary; try again, or start a new session.")
    text = written.text + _appendix(active.state.session, [active.run, *active.folded])
    message = replace(written, parts=(Text(text),)).closed(FinishPart("end_turn", now, "summary"))
    active.draft = None
    await active.put_message("updated", message, is_new_summary=True)
    active.is_compacted, active.context_is_full, active.summary = True, False, message
    active.count_context(estimated_tokens([message]))


async def _summarize(active: ActiveRun, call: ModelCall, history: list[Message], instruction: str) -> ModelEnd:
    session, model, now = active.state.session, active.model, active.door.clock.now_ms()
    sent = await for_model_in_slices(history, session.summary_message_id)
    order = Message("summary", session.id, "user", (Text(instruction),), now, now, active.id)
    shows_pictures = model.takes_images and any(map(_has_pictures, sent))
    attempts = [(share, False) for share in HISTORY_SHARES]
    if shows_pictures:
        attempts.insert(0, (1.0, True))
    for share, with_pictures in attempts:
        latest = sent[int(len(sent) * (1 - share)) :]
        request = ModelRequest(
            model.model.name,
            tuple(await for_model_in_slices([*latest, order])),
            output_tokens_max=model.output_tokens_max,
            accepts_images=with_pictures,
        )
        try:
            return await call.request(active, request)
        except ContextFull:
            continue
    raise ContextFull("The conversation is too long even for a summary; start a new session.")


def _has_pictures(message: Message) -> bool:
    in_results = any(result.images for result in message.all(ToolResult))
    return in_results or bool(message.all(AttachedFile) or message.all(ImageUrl))


def _appendix(session: SessionRecord, runs: list[RunRecord]) -> str:
    """Return what no summary may lose: the todo list and the current requests, including folded ones."""
    text = ""
    if session.todos:
        text += "\n\nTodos:\n" + "\n".join(f"- [{todo.status}] {todo.content}" for todo in session.todos)
    if runs[0].options.purpose == "answer":
        prompts = "\n\n".join(run.prompt.text[:REPEATED_PROMPT_CHARS_MAX] for run in runs)
        text += f"\n\nThe request you are working on:\n{prompts}"
        # The model must not believe that it saw a picture that was too large to send.
        if files := [file.file_path or file.file_name for run in runs for file in run.prompt.attachments]:
            text += f"\n\nFiles that came with it, and are not repeated here: {', '.join(files)}"
    return text
