"""What a third review has found: what could grow without a bound, and what had changed since it was looked at."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.agent import history
from kedge.agent.model_choice import new_client
from kedge.config.load import DOTS_WORK_MAX, load_user
from kedge.core.records import Attachment, Prompt, RunOptions, Usage
from kedge.core.transcript import Message, Text
from kedge.engine.draft import Draft
from kedge.errors import BadConfig, ContextFull
from kedge.llm.catalogue import Price
from kedge.store.base import Write
from kedge.testing.scripted import Call, EndReply, Hold, ScriptedModel
from kedge.tools.agent import AgentTool
from tests.engine.rig import CLIENT, OneModel, Trouble, TroubledModel, rig, until
from tests.engine.test_compaction import narrow, summary_of
from tests.engine.test_doubt import Outages


@pytest.mark.found(
    "a review of the engine: a line of a repository's kedge.toml with 20,000 dots",
    "the parser keeps a tuple for each beginning of such a key: gigabytes for 40 kilobytes, and with a live Run in "
    "that workspace no server could start again; the dots are counted before anything is parsed",
)
@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 20_000) + "=1",
        "\n".join(f"k{number}." + ".".join("a" * 900) + "=1" for number in range(13)),
        f"[{'.'.join('a' * 2_900)}]\n" + "\n".join(f"k{n}." + ".".join("a" * 19) + "=1" for n in range(2_600)),
        f"[{'.'.join('a' * 2_900)}]\n" + "\n".join(f"k{n}=1" for n in range(9_000)),
    ],
    ids=["one key", "many keys", "many keys of a deep table", "many lines of a deep table"],
)
def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(BadConfig, match="thousands of dots"):
        load_user(file)


def test_a_list_of_hundreds_of_hosts_is_a_configuration(tmp_path: Path) -> None:
    hosts = ", ".join(f'"fetch(www.host{number}.example.org)"' for number in range(700))
    file = tmp_path / "config.toml"
    file.write_text(f"[permissions]\nallow = [{hosts}]\n")
    assert hosts.count(".") ** 2 < DOTS_WORK_MAX
    assert len(load_user(file).permissions.allow) == 700


@pytest.mark.found(
    "a review of the engine: a submit under way while somebody shuts down an idle server",
    "a prompt whose append was under way did not count: the server left, and the Run that had just been accepted was "
    "interrupted or waited for the next start; the decision looks at what is under way, and is in force at once",
)
async def test_a_server_with_a_submit_under_way_is_not_idle(tmp_path: Path) -> None:
    store = Outages()
    async with rig(tmp_path, ScriptedModel("done"), store) as r:
        store.held = lambda write: bool(write.runs)
        submitting = asyncio.create_task(r.submit(run_id="a"))
        await store.waiting.wait()
        store.held = None
        was_idle = r.engine.refuse_new_if_idle()
        store.gate.set()
        await submitting
        assert not was_idle
        assert (await r.end("a")).text == "done"
        await until(r.engine.refuse_new_if_idle)
        assert r.engine.is_closing


@pytest.mark.found(
    "a review of the engine: a client that comes back while the cancel of its Run cannot be written",
    "the Run was cancelled when the disk had room again, though its client had long been there; whether it is "
    "abandoned is asked again before each attempt",
)
async def test_a_run_whose_client_came_back_is_not_cancelled_when_the_store_is_back(tmp_path: Path) -> None:
    store, refused = Outages(), asyncio.Event()

    def fails(write: Write) -> bool:
        refused.set()
        return True

    async with rig(tmp_path, ScriptedModel([Hold("k")]), store) as r:
        await r.submit(run_id="a", on_disconnect="cancel")
        await r.model.wait_requests(1)
        store.before = fails
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        await refused.wait()
        r.engine.workspaces.stream_opened(r.workspace, CLIENT, "again")
        await until(lambda: not r.engine._cancels)
        r.model.release("k")
        assert (await r.end("a")).outcome == "completed"


@pytest.mark.found(
    "a review of the engine: a Step that begins many agents",
    "each of them was given all that was left of the budget; they share it",
)
async def test_agents_side_by_side_share_what_is_left_of_the_budget(tmp_path: Path) -> None:
    agents = [Call("agent", {"prompt": f"child {number}", "description": "child"}) for number in range(4)]
    model = ScriptedModel([*agents, EndReply(usage=Usage(1_000_000, 0))], *["found"] * 4, "done")
    models = OneModel(model, price=Price(0.2, 1.0))
    async with rig(tmp_path, model, models=models, tools=(AgentTool(),)) as r:
        assert (await r.end(await r.submit(budget_usd=1.0))).text == "done"
        given = [run.options.budget_usd or 0.0 for run in r.store.data.runs.values() if run.options.parent_run_id]
        assert len(given) == 4
        assert sum(given) <= 0.8 + 1e-9


@pytest.mark.found(
    "a review of the engine: a request that has too many bytes of pictures",
    "the provider's 413 ended each later Run of the session, and its summary, too; it leads to a summary now, and that "
    "leaves pictures out where they are too much",
)
async def test_a_summary_that_is_too_large_is_asked_for_without_pictures(tmp_path: Path) -> None:
    full = Trouble(ContextFull("too large"))
    model = TroubledModel("first", "in short", "done", troubles=[None, full, full])
    picture = Attachment("/shots/a.png", "a.png", "image/png", "aGVsbG8=")
    async with rig(tmp_path, model, models=narrow(model)) as r:
        await r.end(await r.submit())
        seen = await r.engine.submit(r.workspace, r.session, Prompt("what is this?", (picture,)), RunOptions(), "x")
        assert (await r.end(seen)).text == "done"
        said = await summary_of(r)
        assert said.endswith("what is this?\n\nFiles that came with it, and are not repeated here: /shots/a.png")
        assert "hello" in [message.text for message in model.requests[1].request.messages]
        assert [asked.request.accepts_images for asked in model.requests] == [True, False, True]


def test_what_only_a_provider_can_read_counts_as_text_does() -> None:
    draft = Draft(Message("m", "s", "assistant", (), 0, 0))
    draft.add("reasoning", "", "x" * 1000)
    assert draft.chars == 1000


async def test_the_history_of_a_run_does_not_grow_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "HISTORY_MESSAGES_MAX", 3)
    async with rig(tmp_path, ScriptedModel("x")) as r:
        lane = await r.engine.workspaces.lane(r.workspace, r.session)
        kept = history.History(r.store, lane)
        await kept.read()
        for number in range(5):
            kept.put(Message(f"m{number}", r.session, "user", (Text("x"),), 0, 0))
        assert list(kept._messages) == ["m2", "m3", "m4"]


@pytest.mark.parametrize(
    "setting",
    [
        ("ALL_PROXY", "socks://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://user:p#ss@host:3128"),
        ("SSL_CERT_FILE", "/nowhere/certificates"),
    ],
)
def test_an_environment_that_allows_no_connection_is_told_in_one_line(
    setting: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*setting)
    with pytest.raises(BadConfig, match="check ALL_PROXY, HTTP_PROXY, HTTPS_PROXY and SSL_CERT_FILE") as caught:
        new_client(True)
    assert "ss@" not in caught.value.message


async def test_a_server_whose_submit_still_reads_its_files_is_not_idle(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    async with rig(tmp_path, ScriptedModel("done")) as r:
        prompt = Prompt("look", (Attachment(str(tmp_path / "a.txt"), "a.txt", "text/plain", ""),))
        submitting = asyncio.create_task(r.engine.submit(r.workspace, r.session, prompt, RunOptions(), "a"))
        await asyncio.sleep(0)  # it has begun, and a thread reads
        was_idle = r.engine.refuse_new_if_idle()
        await submitting
        assert not was_idle
        assert (await r.end("a")).text == "done"
