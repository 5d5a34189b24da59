"""The question panel."""

from __future__ import annotations

import json
from typing import Any

from kedge.client.client import Client
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.tui.panels.question_panel import OwnAnswer, QuestionChoices, QuestionPanel
from kedge.wire import models as m
from tests.client.process import Server
from tests.tui.rig import Rig, rig

COLOUR = {
    "question": "Which colour?",
    "options": [{"label": "Red", "description": "like a rose"}, {"label": "Green"}, {"label": "Blue"}],
}
PARTS = {"question": "Which parts?", "multiple": True, "options": [{"label": "tests"}, {"label": "docs"}]}
NAME = {"question": "What is its name?"}


def script(*questions: dict[str, Any]) -> str:
    return f"script: tool question {json.dumps({'questions': questions})} | say last"


def panel(r: Rig) -> QuestionPanel:
    return r.app.query_one(QuestionPanel)


async def asked(r: Rig, question: str) -> m.QuestionBatch:
    """Wait until the question is shown and can be answered."""
    await r.shows(question)
    await r.until(panel(r).can_answer)
    batch = panel(r).asked
    assert batch is not None
    return batch


async def tool_result(r: Rig) -> str:
    """Wait until the Run has ended; return the result that the model received."""
    await r.until(lambda: r.app.view.active(r.app.session_id) is None)
    messages = [each async for each in r.app.connection.client.all_messages(r.app.connection.id, r.app.session_id)]
    results = [part.data["content"] for each in messages for part in each.parts if part.type == "tool_result"]
    return str(results[-1])


async def test_number_answers_a_question(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR))
        await asked(r, "Which colour?")
        assert "1  Red  like a rose" in r.text
        assert "tab or ctrl-a: answer" in r.text
        await r.press("ctrl+a")
        await r.shows("enter or number: answer")
        await r.press("2")
        assert await tool_result(r) == "Which colour?\nAnswer: Green"
        assert panel(r).asked is None
        assert r.app.screen.focused is r.app.query_one(PromptPanel)


async def test_arrows_and_enter_answer_a_question(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR))
        await asked(r, "Which colour?")
        await r.press("tab", "down", "down", "up", "down", "enter")
        assert await tool_result(r) == "Which colour?\nAnswer: Blue"


async def test_typed_text_does_not_answer_a_question(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR))
        batch = await asked(r, "Which colour?")
        await r.press("1", "2", "y", "space", "down", "enter")
        await r.shows("1 queued")
        assert panel(r).asked == batch
        assert r.app.screen.focused is r.app.query_one(PromptPanel)
        assert [each.id for each in await r.app.connection.client.questions(r.app.connection.id)] == [batch.id]


async def test_questions_of_a_batch_are_answered_together(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR, PARTS, NAME))
        await asked(r, "Question 1 of 3")
        await r.press("ctrl+a", "enter")
        await asked(r, "Question 2 of 3")
        await r.press("space", "down", "space")
        await r.shows("1  [x] tests", "2  [x] docs")
        await r.press("1")
        await r.shows("1  [ ] tests")
        await r.press("1", "enter")
        await asked(r, "Question 3 of 3")
        assert isinstance(r.app.screen.focused, OwnAnswer)
        await r.press(*"Ada", "enter")
        answers = "Which colour?\nAnswer: Red\n\nWhich parts?\nAnswer: tests, docs\n\nWhat is its name?\nAnswer: Ada"
        assert await tool_result(r) == answers


async def test_previous_question_can_be_answered_again(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR, PARTS))
        await asked(r, "Question 1 of 2")
        await r.press("ctrl+a", "1")
        await asked(r, "Question 2 of 2")
        await r.press("left")
        await asked(r, "Question 1 of 2")
        await r.press("3")
        await asked(r, "Question 2 of 2")
        await r.press("down", "enter")
        assert await tool_result(r) == "Which colour?\nAnswer: Blue\n\nWhich parts?\nAnswer: docs"


async def test_question_accepts_free_text(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR))
        await asked(r, "Which colour?")
        await r.press("ctrl+a", "4")
        await r.until(lambda: isinstance(r.app.screen.focused, OwnAnswer))
        await r.press("m", "1", "space", "?", "enter")
        assert await tool_result(r) == "Which colour?\nAnswer: m1 ?"


async def test_user_can_decline_to_answer(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR))
        await asked(r, "Which colour?")
        await r.press("ctrl+a", "up")
        assert r.app.query_one(QuestionChoices).highlighted == 4
        await r.press("enter")
        assert (await tool_result(r)).startswith("The user declined to answer.")


async def test_click_answers_a_question(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR))
        await asked(r, "Which colour?")
        await r.pilot.click(QuestionChoices, offset=(5, 1))
        assert await tool_result(r) == "Which colour?\nAnswer: Green"


async def test_answer_of_another_client_closes_the_question(server: Server, client: Client) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR))
        batch = await asked(r, "Which colour?")
        await r.press("ctrl+a")
        workspace = await client.create_workspace(str(server.home.workspace))
        (question,) = batch.questions
        answer = m.QuestionResponse(request_id=question.request_id, selected_ids=[question.options[0].id])
        await client.answer_questions(workspace.id, batch.id, [answer])
        await r.shows(f"question: answered by another client ({client.client_id[:4]})")
        assert await tool_result(r) == "Which colour?\nAnswer: Red"
        assert panel(r).asked is None
        await r.until(lambda: r.app.screen.focused is r.app.query_one(PromptPanel))


async def test_esc_stops_the_run_and_closes_the_question(server: Server) -> None:
    async with rig(server) as r:
        await r.send(script(COLOUR))
        await asked(r, "Which colour?")
        await r.press("ctrl+a", "escape")
        await r.shows("question: withdrawn, because the run was stopped")
        await r.until(lambda: r.app.screen.focused is r.app.query_one(PromptPanel))


async def test_question_text_is_harmless(server: Server) -> None:
    async with rig(server) as r:
        odd = {"question": "Is it \x1b[31mred\u202e?", "options": [{"label": "[red]yes\x07", "description": "\x9b2J"}]}
        await r.send(script(odd))
        await asked(r, "Is it \\u{1b}[31mred\\u{202e}?")
        assert "1  [red]yes\\u{7}  \\u{9b}2J" in r.text
        assert not {"\x1b", "\x07", "\x9b"} & set(r.text)
