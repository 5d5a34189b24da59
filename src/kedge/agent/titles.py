"""Titles: the small model names a new session while the large one works. The Run never waits for it."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.model_choice import RunModel
from kedge.core.records import SessionRecord
from kedge.core.transcript import Message, Text
from kedge.core.untrusted_text import without_surrogates
from kedge.engine.door import Door, Plain
from kedge.engine.lane_state import Draught
from kedge.errors import KedgeError
from kedge.llm.base import ModelEnd, ModelRequest, TextDelta

log = logging.getLogger("kedge.engine")

#: Of the prompt, shown to the small model. Characters.
PROMPT_CHARS_MAX = 4_000
#: Of a title: one line in a list. Characters.
TITLE_CHARS_MAX = 80
#: Of the small model's reply, after which it is not listened to any more. Characters.
REPLY_CHARS_MAX = 2_000


async def make_title(active: ActiveRun, small: RunModel, instruction: str, door: Door) -> None:
    """Replace the makeshift title. Whatever goes wrong, the makeshift one stays."""
    run = active.run
    prompt = Message("prompt", run.session_id, "user", (Text(run.prompt.text[:PROMPT_CHARS_MAX]),), 0, 0)
    request = ModelRequest(small.model.name, (prompt,), instruction, output_tokens_max=200)
    said = ""
    try:
        async with small.model.stream(request) as parts:
            async for part in parts:
                match part:
                    case TextDelta(text=text):
                        said += text
                    case ModelEnd(usage=usage):
                        active.usage += small.priced(usage)
                        break
                    case _:
                        pass
                if len(said) > REPLY_CHARS_MAX:
                    break
        if title := _title_in(said[:REPLY_CHARS_MAX]):
            await door.put(active.lane, _renamed(title), of_run=run.run_id)
    except KedgeError as error:
        log.info("run %s: no title was made: %s", run.run_id, error)
    except Exception:
        log.exception("run %s: its title failed in a way nobody foresaw", run.run_id)


def _renamed(title: str) -> Plain:
    def put(draught: Draught, session: SessionRecord) -> SessionRecord:
        # A person may have named it meanwhile.
        return replace(session, title=title, title_is_makeshift=False) if session.title_is_makeshift else session

    return put


def _title_in(said: str) -> str:
    """The first line that says something, without the quotes and marks models like to put around it."""
    lines = (line.strip().strip("\"'`*# ").removeprefix("Title:").strip() for line in said.splitlines())
    line = next((line for line in lines if line), "")
    line = "".join(letter if letter.isprintable() else " " for letter in line)
    return without_surrogates(line[:TITLE_CHARS_MAX])
