"""Session titles: the small model names a new session while the Run works. The Run never waits for it."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.model_choice import RunModel
from kedge.core.transcript import Message, Text
from kedge.core.untrusted_text import without_surrogates
from kedge.engine.append import Append
from kedge.errors import KedgeError
from kedge.llm.base import ModelEnd, ModelRequest, TextDelta

log = logging.getLogger("kedge.agent")

#: The part of the prompt that the small model sees. Characters.
TITLED_PROMPT_CHARS_MAX = 4_000
#: One line in a list of sessions. Characters.
SESSION_TITLE_CHARS_MAX = 80
#: The small model is stopped after this much. Characters.
TITLE_REPLY_CHARS_MAX = 2_000


async def make_title(active: ActiveRun, small: RunModel, instruction: str) -> None:
    """Replace the makeshift title; keep it if anything fails."""
    try:
        if title := _title_in(await _ask(active, small, instruction)):

            async def plan(tx: Append) -> None:
                if tx.session.title_is_makeshift:  # the user may have renamed the session meanwhile
                    tx.session = replace(tx.session, title=title, title_is_makeshift=False)

            await active.write(plan)
    except KedgeError as error:
        log.info("run %s: no title: %s", active.id, error)
    except Exception:
        log.exception("run %s: unexpected error while making a title", active.id)


async def _ask(active: ActiveRun, small: RunModel, instruction: str) -> str:
    run = active.run
    text = "\n\n".join(text for text in (run.prompt.command, run.prompt.text) if text)
    prompt = Message("prompt", run.session_id, "user", (Text(text[:TITLED_PROMPT_CHARS_MAX]),), 0, 0)
    request = ModelRequest(small.model.name, (prompt,), instruction, output_tokens_max=200)
    reply = ""
    async with small.model.stream(request) as parts:
        async for part in parts:
            match part:
                case TextDelta(text=text):
                    reply += text
                case ModelEnd(usage=usage):
                    active.usage += small.priced(usage)
                    break
                case _:
                    pass
            if len(reply) > TITLE_REPLY_CHARS_MAX:
                break
    return reply[:TITLE_REPLY_CHARS_MAX]


def _title_in(reply: str) -> str:
    """Return the first non-empty line, without the quotes and markup that models add."""
    lines = (line.strip().strip("\"'`*# ").removeprefix("Title:").strip() for line in reply.splitlines())
    line = next((line for line in lines if line), "")
    line = "".join(letter if letter.isprintable() else " " for letter in line)
    return without_surrogates(line[:SESSION_TITLE_CHARS_MAX])
