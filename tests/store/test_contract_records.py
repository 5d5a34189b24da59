"""The contract of `kedge.store.base`, for every store: records, messages and search."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kedge.core.records import Attachment, LaneRecord, Prompt, RunOptions, RunRecord, Todo, Usage
from kedge.core.transcript import (
    AttachedFile,
    FinishPart,
    ImageUrl,
    Message,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)
from kedge.errors import MessageNotFound, StoreDamaged, VersionConflict
from kedge.store import search_tokens
from kedge.store.base import Store, Write
from tests.store.samples import (
    BASE,
    S,
    W,
    accepted,
    attachment,
    content,
    ended,
    events,
    lane,
    message,
    run,
    session,
    started,
    tail,
    with_workspace,
)

ODD_TEXTS = [
    "",
    "\0",
    "a\0b",
    "\x00\x1f\x7f",
    "𝒳 🧑‍🚀 \U0010ffff",
    "\u2028\u2029\ufeff",
    "e\u0301 é",
    '"\\\n\r\t',
    "ß İ ŉ",
]


# --- Sessions, Lanes, Runs -------------------------------------------------------------------------------------------


async def test_sessions_are_listed_last_updated_first(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    await store.append(Write(W, sessions=(session("a", updated_at=5), session("b", updated_at=9))))
    await store.append(Write(W, sessions=(session("c", updated_at=7),)))
    await store.append(Write("w2", sessions=(session("d", "w2", updated_at=8),)))
    assert [row.id for row in await store.sessions(W)] == ["b", "c", "a"]
    changed = session("a", title="New 🏷", updated_at=10, message_count=3, usage=Usage(1, 2, 0.1), parent_session_id="b")
    todos = (Todo("Look 👀", "completed", "Looking"), Todo("Leap"))
    changed = replace(changed, todos=todos, summary_message_id="m9", title_is_makeshift=True)
    await store.append(Write(W, sessions=(changed,)))
    assert [row.id for row in await store.sessions(W)] == ["a", "b", "c"]
    assert await store.session(W, "a") == changed
    assert await store.session("w2", "a") is None
    assert await store.session(W, "z") is None
    assert await store.sessions("w9") == []


async def test_unwritten_lane_is_empty(store: Store) -> None:
    assert await store.lane("unwritten") == (LaneRecord("unwritten"), [])


async def test_lane_includes_its_live_runs(store: Store) -> None:
    await with_workspace(store)
    runs = (run("a", seq=1, state="ended"), run("c", seq=3), run("b", seq=2, state="active"), run("d", "s2", seq=4))
    await store.append(Write(W, runs=runs, lane=lane(4, 0)))
    assert await store.lane(S) == (LaneRecord(S, 4, 5, 0), [runs[2], runs[1]])
    await store.append(Write(W, runs=(run("b", seq=2, state="ended", outcome="failed", reason="it broke"),)))
    assert [row.run_id for row in (await store.lane(S))[1]] == ["c"]


async def test_run_round_trips(store: Store) -> None:
    await with_workspace(store)
    odd: dict[str, Any] = {
        "position": 77,
        "state": "ended",
        "accepted_state": "active",
        "queue_order": 9,
        "folds": True,
        "folded_into": "r0",
        "steps": 4,
        "resumes": 1,
        "cancelled": True,
        "stopping": True,
        "outcome": "cancelled",
        "reason": "timeout",
        "error": "none",
        "started_at": 3,
        "ended_at": 2**53,
        "message_id": "m",
        "text": "t",
        "usage": Usage(2**40, 3, 0.1, 2**39, 4),
        "cleanup": "failed",
        "options": RunOptions(
            "m", 5, 1.5, 0.25, "cancel", "fail", ("view", "bash(ls)"), ("fetch",), "auto", "summary", "r0", None, "low"
        ),
        "prompt": Prompt("Do it \0 🛠", (attachment(b"hi", "/a/b"), Attachment("", "", ""))),
    }
    full = run("r~1", **odd)
    await store.append(Write(W, runs=(full,), attachments=(content(b"hi"),)))
    assert await store.run(W, "r~1") == full
    plain = run("r~1", seq=2)
    await store.append(Write(W, runs=(plain,)))
    assert await store.run(W, "r~1") == plain
    assert await store.run("w2", "r~1") is None
    assert await store.run(W, "r") is None


async def test_accepted_run_gets_the_position_of_its_event(store: Store) -> None:
    await with_workspace(store)
    await store.append(
        events(started("r0"), accepted("r1"), started("r1"), accepted("r2"), runs=(run("r1"), run("r2")))
    )
    assert await store.run(W, "r1") == run("r1", position=BASE + 2)
    assert await store.run(W, "r2") == run("r2", position=BASE + 4)
    # Without an acceptance in the Write, the record is stored unchanged.
    await store.append(events(ended("r1"), runs=(run("r1", position=BASE + 2, state="ended"), run("r2", position=5))))
    assert await store.run(W, "r1") == run("r1", position=BASE + 2, state="ended")
    assert await store.run(W, "r2") == run("r2", position=5)


async def test_same_run_id_in_two_workspaces_is_two_runs(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    await store.append(events(accepted(), ended(), runs=(run(state="ended"),)))
    other = run("r1", "s2", "w2")
    await store.append(events(accepted(), workspace_id="w2", session_id="s2", runs=(other,)))
    await store.append(events(ended(), workspace_id="w2", session_id="s2"))
    assert await store.run("w2", "r1") == run("r1", "s2", "w2", position=BASE + 1)
    assert await store.run("w1", "r1") == run(state="ended", position=BASE + 1)


async def test_runs_returns_the_last_runs_by_seq(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, runs=tuple(run(f"r{seq}", seq=seq) for seq in (3, 1, 5, 2, 4))))
    assert [row.seq for row in await store.runs(S, 3)] == [3, 4, 5]
    assert [row.seq for row in await store.runs(S, 100)] == [1, 2, 3, 4, 5]
    assert await store.runs(S, 0) == []
    assert await store.runs("s2", 5) == []


async def test_live_runs_are_per_workspace(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    await store.append(Write("w2", runs=(run("x", "s3", "w2", seq=1),)))
    await store.append(Write("w1", runs=(run("c", "s2", seq=1), run("b", "s1", seq=2), run("a", "s1", seq=1))))
    await store.append(Write("w1", runs=(run("e", "s1", seq=3, state="ended"),)))
    live = [(r.session_id, r.run_id) for r in await store.live_runs("w1")]
    assert live == [("s1", "a"), ("s1", "b"), ("s2", "c")]
    assert [(r.session_id, r.run_id) for r in await store.live_runs("w2")] == [("s3", "x")]
    assert await store.live_runs("w9") == []


# --- Attachments -----------------------------------------------------------------------------------------------------


def with_file(run_id: str, session_id: str, data: bytes) -> RunRecord:
    return run(run_id, session_id, prompt=Prompt("look", (attachment(data),)))


def showing_file(message_id: str, session_id: str, data: bytes) -> Message:
    return message(message_id, session_id=session_id, parts=(AttachedFile("a.txt", "", 1, content(data).digest),))


async def test_attachment_is_kept_by_each_session_that_names_it(store: Store) -> None:
    await with_workspace(store, W, "w2")
    sessions = tuple(session(session_id) for session_id in ("s1", "s2", "s3"))
    one, two = content(b"one"), content(b"two" * 100_000)
    await store.append(Write(W, sessions=sessions, runs=(with_file("r1", "s1", b"one"),), attachments=(one, two)))
    await store.append(Write(W, messages=(showing_file("m1", "s1", b"one"), showing_file("m2", "s2", two.data))))
    # A fork names the file in a message alone; a second prompt sends the same content again.
    await store.append(Write(W, messages=(showing_file("m3", "s3", b"one"),)))
    await store.append(Write(W, runs=(with_file("r2", "s2", b"one"),), attachments=(one,)))
    assert await store.attachment(W, one.digest) == b"one"
    assert await store.attachment(W, two.digest) == two.data
    await store.append(Write(W, deleted_sessions=("s1", "s2")))
    assert await store.attachment(W, one.digest) == b"one"
    for digest in (two.digest, "unknown"):
        with pytest.raises(StoreDamaged, match=f"{digest} of workspace w1 is missing"):
            await store.attachment(W, digest)
    with pytest.raises(StoreDamaged, match="missing"):
        await store.attachment("w2", one.digest)
    await store.append(Write(W, deleted_sessions=("s3",)))
    with pytest.raises(StoreDamaged, match="missing"):
        await store.attachment(W, one.digest)


async def test_record_of_an_unknown_attachment_is_refused(store: Store) -> None:
    await with_workspace(store)
    for write in (Write(W, runs=(with_file("r1", S, b"x"),)), Write(W, messages=(showing_file("m1", S, b"x"),))):
        with pytest.raises(VersionConflict, match="not stored"):
            await store.append(write)
    assert await store.run(W, "r1") is None
    assert await store.message(W, "m1") is None


async def test_unchanged_prompt_stays_with_its_run(store: Store) -> None:
    await with_workspace(store)
    queued = with_file("r1", S, b"x")
    await store.append(Write(W, runs=(queued,), attachments=(content(b"x"),)))
    moved = replace(queued, queue_order=7)
    await store.append(Write(W, runs=(moved,), unchanged_prompts=frozenset({"r1"})))
    assert await store.run(W, "r1") == moved
    edited = replace(moved, prompt=Prompt("other"))
    await store.append(Write(W, runs=(edited,)))
    assert await store.run(W, "r1") == edited


# --- Messages --------------------------------------------------------------------------------------------------------


async def test_every_message_part_round_trips(store: Store) -> None:
    await with_workspace(store)
    parts = (
        Text("a"),
        Reasoning("b", "sig", 1, 2),
        ToolCall("c", "n", '{"malformed', False),
        ToolResult("c", "n", "out", "meta", True, ("data:image/png;base64,aGk=",)),
        FinishPart("tool_use", 5, "m", "d"),
        AttachedFile("/p", "t/t", 2, content(b"hi").digest),
        ImageUrl("https://x", "high"),
        ShellCommand("ls", "out", -1),
    )
    full = Message("m1", S, "tool", parts, 1, 2**53, "r1", "model", "provider")
    await store.append(Write(W, messages=(full,), attachments=(content(b"hi"),)))
    assert await store.message(W, "m1") == full
    assert await store.message("w2", "m1") is None
    assert await store.message(W, "m2") is None


@pytest.mark.parametrize("text", ODD_TEXTS)
async def test_any_text_round_trips(store: Store, text: str) -> None:
    await with_workspace(store)
    stored = message(text=text, model=text)
    await store.append(Write(W, messages=(stored,), runs=(run(prompt=Prompt(text), error=text),), tails=(tail(text),)))
    assert await store.message(W, "m1") == message(text=text + text, model=text)
    assert await store.run(W, "r1") == run(prompt=Prompt(text), error=text)


async def test_large_message_round_trips(store: Store) -> None:
    await with_workspace(store)
    large = "Grüße 🌍 " * 550_000
    assert len(large.encode()) > 5_000_000
    await store.append(Write(W, messages=(message(text=large),), tails=(tail("end"),)))
    stored = await store.message(W, "m1")
    assert stored is not None
    assert stored.text == large + "end"


async def test_messages_keep_the_order_of_their_first_write(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=(message("b"), message("a"), message("x", session_id="s2"))))
    await store.append(Write(W, messages=(message("c"), message("b", "changed"))))
    assert [row.id for row in await store.messages(S, None, 10)] == ["b", "a", "c"]
    assert [row.id for row in await store.messages(S, None, 2)] == ["b", "a"]
    assert [row.id for row in await store.messages(S, "b", 1)] == ["a"]
    assert [row.id for row in await store.messages(S, "a", 10)] == ["c"]
    assert await store.messages(S, "c", 10) == []
    assert await store.messages(S, None, 0) == []
    assert await store.messages("s9", None, 10) == []
    for unknown in ("z", "x"):
        with pytest.raises(MessageNotFound, match=unknown):
            await store.messages(S, unknown, 10)


async def test_last_messages_have_the_same_order(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=(message("b"), message("a"), message("x", session_id="s2"), message("c"))))
    await store.append(Write(W, tails=(tail(" more", message_id="c"),)))
    assert [row.id for row in await store.last_messages(S, 2)] == ["a", "c"]
    assert (await store.last_messages(S, 1))[0].text == "Hello more"
    assert [row.id for row in await store.last_messages(S, 10)] == ["b", "a", "c"]
    assert await store.last_messages(S, 0) == []
    assert await store.last_messages("s9", 10) == []


async def test_sessions_are_listed_in_pages(store: Store) -> None:
    await with_workspace(store)
    rows = (session("a", updated_at=5), session("b", updated_at=9), session("c", updated_at=5), session("d"))
    await store.append(Write(W, sessions=rows))
    assert [row.id for row in await store.sessions(W, None, 2)] == ["b", "a"]
    assert [row.id for row in await store.sessions(W, (5, "a"), 2)] == ["c", "d"]
    assert [row.id for row in await store.sessions(W, (5, "b"))] == ["c", "d"]
    assert await store.sessions(W, (1, "d")) == []
    assert [row.id for row in await store.sessions(W, None, None, 1)] == ["b"]


async def test_list_of_runs_is_bounded_in_bytes(store: Store) -> None:
    await with_workspace(store)
    runs = tuple(run(f"r{number}", seq=number, prompt=Prompt("x" * 10_000)) for number in (1, 2, 3))
    await store.append(Write(W, runs=runs))
    assert [row.run_id for row in await store.runs(S, 10, 15_000)] == ["r2", "r3"]
    assert [row.run_id for row in await store.runs(S, 10, 1)] == ["r3"]
    assert [row.run_id for row in await store.runs(S, 10, 100_000)] == ["r1", "r2", "r3"]


async def test_page_of_messages_ends_at_its_size(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=tuple(message(name, "x" * 1000) for name in "abcd")))
    assert [row.id for row in await store.messages(S, None, 10, 2500)] == ["a", "b", "c"]
    assert [row.id for row in await store.messages(S, "a", 10, 1)] == ["b"]
    assert [row.id for row in await store.messages(S, "c", 10, 2500)] == ["d"]
    assert await store.messages(S, "d", 10, 1) == []


@pytest.mark.found(
    "fault 20",
    "each Run of a summarised session read its last 10,000 messages to use ten; the store returns messages from the "
    "summary on",
)
async def test_last_messages_begin_at_a_message(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=tuple(message(name) for name in "abcd")))
    assert [row.id for row in await store.last_messages(S, 10, "c")] == ["c", "d"]
    assert [row.id for row in await store.last_messages(S, 1, "c")] == ["d"]
    assert [row.id for row in await store.last_messages(S, 10, "of another session")] == ["a", "b", "c", "d"]


async def test_pages_of_messages_before_one(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=tuple(message(name, name * 100) for name in "abcd")))

    async def ids(before: str, limit: int, bytes_max: int | None = None) -> list[str]:
        return [row.id for row in await store.messages(S, None, limit, bytes_max, before)]

    assert await ids("", 3) == ["b", "c", "d"]
    assert await ids("c", 10) == ["a", "b"]
    assert await ids("c", 1) == ["b"]
    assert await ids("", 10, bytes_max=150) == ["c", "d"]
    assert await ids("a", 10) == []
    with pytest.raises(MessageNotFound):
        await ids("of another session", 10)


async def test_tails_extend_a_message_until_it_is_replaced(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=(message(text=""), message("m2", "two"))))
    await store.append(Write(W, tails=(tail("a"), tail("think", part=1, kind="reasoning"), tail("b"))))
    await store.append(Write(W, tails=(tail("ing", part=1, kind="reasoning"), tail("next", part=2), tail("c"))))
    merged = message(parts=(Text("abc"), Reasoning("thinking"), Text("next")))
    assert await store.message(W, "m1") == merged
    assert await store.messages(S, None, 10) == [merged, message("m2", "two")]
    await store.append(Write(W, messages=(message(text="abc"),)))
    assert await store.message(W, "m1") == message(text="abc")
    await store.append(Write(W, tails=(tail("d"),)))
    assert await store.message(W, "m1") == message(text="abcd")


async def test_many_tails_are_read_in_order(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=(message(text=""),)))
    for start in range(0, 3_000, 500):
        await store.append(Write(W, tails=tuple(tail(f"{i} ") for i in range(start, start + 500)), durable=False))
    stored = await store.message(W, "m1")
    assert stored is not None
    assert stored.text == "".join(f"{i} " for i in range(3_000))


async def test_deleting_a_session_deletes_everything_but_the_log(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    for session_id in ("s1", "s2"):
        await store.append(
            events(
                accepted(f"r-{session_id}"),
                session_id=session_id,
                lane=lane(1, 0, session_id),
                sessions=(session(session_id),),
                runs=(run(f"r-{session_id}", session_id),),
                messages=(message(f"m-{session_id}", "hello", session_id),),
                tails=(tail("!", f"m-{session_id}", session_id=session_id),),
            )
        )
    await store.append(Write("w2", deleted_sessions=("s1",)))
    assert await store.session(W, "s1") is not None, "a session is not deleted through another workspace"
    assert await store.messages("s1", None, 10) != []
    # Other records of the session in the same Write are deleted too.
    await store.append(events(ended("r-s1"), deleted_sessions=("s1",), runs=(run("r-s1", state="ended"),)))
    assert [row.id for row in await store.sessions(W)] == ["s2"]
    assert await store.lane("s1") == (LaneRecord("s1"), [])
    assert await store.runs("s1", 10) == []
    assert await store.run(W, "r-s1") is None
    assert await store.messages("s1", None, 10) == []
    assert await store.message(W, "m-s1") is None
    assert [hit.session_id for hit in await store.search(W, "hello", 10)] == ["s2"]
    assert [row.run_id for row in await store.live_runs(W)] == ["r-s2"]
    assert (await store.messages("s2", None, 10))[0].text == "hello!"
    assert len(await store.read(W, 0, 10)) == 3
    # The ids can be reused, and no old data returns.
    await store.append(Write(W, messages=(message("m-s1", "new", "s3"),), runs=(run("r-s1", "s3"),)))
    assert await store.message(W, "m-s1") == message("m-s1", "new", "s3")


# --- Search ----------------------------------------------------------------------------------------------------------


async def found_by(store: Store, query: str, limit: int = 100) -> list[str]:
    return [hit.message_id for hit in await store.search(W, query, limit)]


async def test_search_matches_word_prefixes_newest_first(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    texts = {"a": "The quick brown fox", "b": "a QUICKSAND pit", "c": "slow_quick", "d": "Straße über Ödland, 東京都"}
    for message_id, text in texts.items():
        await store.append(Write(W, messages=(message(message_id, text),)))
    await store.append(Write("w2", messages=(message("x", "quick"),)))
    assert await found_by(store, "quick") == ["b", "a"]
    assert await found_by(store, "QUICK bro") == ["a"]
    assert await found_by(store, "quick missing") == []
    assert await found_by(store, "slow") == ["c"]
    assert await found_by(store, "slow_") == ["c"]
    assert await found_by(store, "ÜBER strasse") == ["d"]
    assert await found_by(store, "odland") == [], "an umlaut is another letter"
    assert await found_by(store, "東京") == ["d"]
    assert await found_by(store, "quick", limit=1) == ["b"]
    assert await found_by(store, "quick", limit=0) == []


@pytest.mark.parametrize("query", ["", " ", '"', "***", "()", "\0", "-", "🦊", "'; --", "\ud83d"])
async def test_query_without_a_word_finds_nothing(store: Store, query: str) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=(message(text='" * ( ) - 🦊 fox'),)))
    assert await store.search(W, query, 10) == []


@pytest.mark.parametrize(
    "query",
    ['"fox', 'fox"', "fox*", "fox AND hound", "fox OR hound", "fox NOT hound", "NEAR(fox hound)", "words:fox", "^fox"],
)
async def test_query_operators_are_plain_words(store: Store, query: str) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=(message("plain", "fox"), message("all", f"hound {query} hound"))))
    assert await found_by(store, query) == (["all"] if len(search_tokens.query_tokens(query)) > 1 else ["all", "plain"])


async def test_search_ignores_tails(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, messages=(message(text="before"), message("m2", "other"))))
    await store.append(Write(W, tails=(tail(" streamed"),)))
    assert await found_by(store, "streamed") == []
    await store.append(Write(W, messages=(message(text="after streamed"),)))
    assert await found_by(store, "before") == []
    assert await found_by(store, "streamed") == ["m1"]
    await store.append(Write(W, messages=(message(text=""),)))
    assert await found_by(store, "streamed") == []


async def test_hit_has_a_snippet_around_the_first_match(store: Store) -> None:
    await with_workspace(store)
    text = "x " * 200 + "here\nis the  Needle,\u2028found " + "y " * 200
    await store.append(Write(W, messages=(message(text=text), message("m2", "needle"), message("m3", "\0 a\nneedle"))))
    hits = {hit.message_id: hit for hit in await store.search(W, "need", 10)}
    assert hits["m2"].snippet == "needle"
    assert hits["m3"].snippet == "\0 a needle"
    assert "here is the Needle, found y" in hits["m1"].snippet
    assert hits["m1"].snippet.startswith("…x")
    assert hits["m1"].snippet.endswith("y…")
    assert hits["m1"].session_id == S


async def test_search_accepts_long_words_and_long_messages(store: Store) -> None:
    await with_workspace(store)
    endless = "k" * 100_000
    far = search_tokens.SEARCHED_CHARS_MAX
    await store.append(Write(W, messages=(message("a", endless), message("b", "near " + "z " * far + "beyond"))))
    assert await found_by(store, endless) == ["a"]
    assert await found_by(store, "kkk") == ["a"]
    assert await found_by(store, "near") == ["b"]
    assert await found_by(store, "beyond") == []
    assert await found_by(store, " ".join(f"w{i}" for i in range(10_000))) == []
