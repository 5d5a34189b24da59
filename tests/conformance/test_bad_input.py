"""Malformed, impossible and oversized requests: a 4xx with a reason, no trace, and a server that still works.

Token, Host and Origin are tested in test_bad_access.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.conformance import raw
from tests.conformance.harness import Endpoint, Json, Peer, Stream, unique
from tests.conformance.rounds import fence, no_trace

DEEP = b"[" * 100_000


def check_refused(reply: httpx2.Response, *statuses: int) -> Json:
    assert reply.status_code in statuses, f"{reply.status_code} {reply.text[:300]}"
    error: Json = reply.json()
    assert set(error) == {"message", "code"}
    assert error["message"]
    assert len(error["message"]) < 10_000, "an error does not repeat the whole request"
    assert error["code"]
    return error


@pytest.fixture
async def session(kedge: Peer) -> AsyncIterator[str]:
    """A session of a workspace in which the test must leave no trace. Afterwards the server must still work."""
    session = await kedge.session()
    async with no_trace(kedge, session):
        yield session
    assert (await kedge.http.get("/v1/health")).json() == {"ok": True, "state": "ready"}


async def post(peer: Peer, path: str, data: bytes, media_type: str | None = "application/json") -> httpx2.Response:
    headers = {} if media_type is None else {"content-type": media_type}
    return await peer.http.post(f"/v1{path}", content=data, headers=headers)


# --- the prompt ------------------------------------------------------------------------------------------------------

HUGE = b"1" + b"0" * 4999
WRONG_FIELDS: dict[str, tuple[int, bytes]] = {
    "prompt number": (422, b'"prompt": 1'),
    "prompt null": (422, b'"prompt": null'),
    "prompt list": (422, b'"prompt": ["a"]'),
    "prompt object": (422, b'"prompt": {"a": 1}'),
    "prompt with NUL": (422, b'"prompt": "a\\u0000b"'),
    "prompt with a raw NUL": (400, b'"prompt": "a\0b"'),
    "prompt lone surrogate": (400, b'"prompt": "\\ud800"'),
    "prompt other lone surrogate": (400, b'"prompt": "a\\udfffb"'),
    "prompt surrogates reversed": (400, b'"prompt": "\\udc00\\ud800"'),
    "prompt bad UTF-8": (400, b'"prompt": "\xff\xfe"'),
    "prompt overlong UTF-8": (400, b'"prompt": "\xc0\x80"'),
    "prompt surrogate in UTF-8": (400, b'"prompt": "\xed\xa0\x80"'),
    "prompt of 10 MB": (413, b'"prompt": "' + b"x" * 10_000_000 + b'"'),
    "body of 20 MB": (413, b'"prompt": "' + b"x" * 20_000_000 + b'"'),
    "session_id number": (422, b'"session_id": 5'),
    "session_id null": (422, b'"session_id": null'),
    "session_id with NUL": (404, b'"session_id": "\\u0000"'),
    "session_id of 100,000 characters": (404, b'"session_id": "' + b"s" * 100_000 + b'"'),
    "run_id of 10,000 characters": (422, b'"run_id": "' + b"r" * 10_000 + b'"'),
    "run_id number": (422, b'"run_id": 1'),
    "run_id null": (422, b'"run_id": null'),
    "run_id with a slash": (422, b'"run_id": "a/b"'),
    "run_id blank": (422, b'"run_id": " "'),
    "run_id dots": (422, b'"run_id": ".."'),
    "run_id not ASCII": (422, '"run_id": "ünïque"'.encode()),
    "run_id with NUL": (422, b'"run_id": "a\\u0000"'),
    "run_id with a line break": (422, b'"run_id": "a\\n"'),
    "when_busy unknown": (422, b'"when_busy": "panic"'),
    "when_busy number": (422, b'"when_busy": 1'),
    "on_disconnect unknown": (422, b'"on_disconnect": "explode"'),
    "model number": (422, b'"model": 7'),
    "model with NUL": (422, b'"model": "a\\u0000"'),
    "model of 100,000 characters": (422, b'"model": "' + b"m" * 100_000 + b'"'),
    "effort unknown": (422, b'"effort": "most"'),
    "effort number": (422, b'"effort": 3'),
    "max_steps zero": (422, b'"max_steps": 0'),
    "max_steps negative": (422, b'"max_steps": -1'),
    "max_steps fraction": (422, b'"max_steps": 1.5'),
    "max_steps text": (422, b'"max_steps": "3"'),
    "max_steps bool": (422, b'"max_steps": true'),
    "max_steps of 30 digits": (422, b'"max_steps": 1' + b"0" * 29),
    "max_steps of 400 digits": (422, b'"max_steps": 1' + b"0" * 399),
    "max_steps of 5,000 digits": (422, b'"max_steps": ' + HUGE),
    "timeout_s zero": (422, b'"timeout_s": 0'),
    "timeout_s negative": (422, b'"timeout_s": -0.5'),
    "timeout_s NaN": (400, b'"timeout_s": NaN'),
    "timeout_s Infinity": (400, b'"timeout_s": Infinity'),
    "timeout_s 1e999": (422, b'"timeout_s": 1e999'),
    "timeout_s 1e300": (422, b'"timeout_s": 1e300'),
    "timeout_s of 5,000 digits": (422, b'"timeout_s": ' + HUGE),
    "budget_usd text": (422, b'"budget_usd": "much"'),
    "budget_usd negative": (422, b'"budget_usd": -1'),
    "attachments object": (422, b'"attachments": {}'),
    "attachments of numbers": (422, b'"attachments": [1, 2]'),
    "attachment not base64": (422, b'"attachments": [{"content": "@@@"}]'),
    "attachment with NUL": (422, b'"attachments": [{"content": "YQ==", "file_name": "\\u0000"}]'),
    "21 attachments": (413, b'"attachments": [' + b",".join([b'{"content": "YQ=="}'] * 21) + b"]"),
    "deep": (400, b'"more": ' + DEEP + b"]" * 100_000),
    "deep and never closed": (400, b'"more": ' + DEEP),
    "deep objects": (400, b'"more": ' + b'{"a":' * 100_000),
    "the same key again, empty": (400, b'"prompt": ""'),
    "the same key again, of another type": (422, b'"prompt": 1'),
    "nothing behind the colon": (400, b'"prompt": '),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
async def test_a_prompt_with_a_wrong_field_is_refused(kedge: Peer, session: str, case: str) -> None:
    status, field = WRONG_FIELDS[case]
    good = json.dumps({"session_id": session, "prompt": "hello"}).encode()
    check_refused(await post(kedge, f"{kedge.at}/agent", good[:-1] + b", " + field + b"}"), status)


async def test_of_duplicate_keys_the_last_counts(kedge: Peer) -> None:
    """JSON leaves it open, but all parsers of the server must agree."""
    session, run_id = await kedge.session(), unique("run")
    body = b'{"prompt": "script: say first", "prompt": "script: say last", "run_id": "x", "run_id": "%s", '
    reply = await post(kedge, f"{kedge.at}/agent", body % run_id.encode() + b'"session_id": "%s"}' % session.encode())
    assert (reply.status_code, reply.json()["run_id"]) == (202, run_id)
    run = await kedge.wait(run_id)
    assert (run["prompt"], run["text"]) == ("script: say last", "last")


async def test_unusual_but_valid_text_is_accepted(kedge: Peer) -> None:
    odd = "a\u2028b\u0085\ufeff\U0001f600\r\n\x1b[31m\x7f\u202e e\u0301 \uffff \ud7ff"
    receipt = await kedge.submit(await kedge.session(), odd)
    run = await kedge.wait(receipt["run_id"])
    assert (run["outcome"], run["prompt"], run["text"]) == ("completed", odd, f"You said: {odd}")


# --- any body --------------------------------------------------------------------------------------------------------

NO_OBJECTS: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n",
    "array": b"[]",
    "array of arrays": b"[[{}]]",
    "text": b'"text"',
    "number": b"5",
    "5,000 digits": HUGE,
    "null": b"null",
    "true": b"true",
    "NaN": b"NaN",
    "cut off": b'{"prompt": "a',
    "two of them": b"{} {}",
    "comma at the end": b'{"title": "a",}',
    "single quotes": b"{'title': 'a'}",
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"title": "a"}'.encode("utf-16"),
    "bad UTF-8": b'{"title": "\xff"}',
    "deep": DEEP,
    "form": b"title=a&prompt=b",
    "too large": b'{"title": "' + b"x" * 17_000_000 + b'"}',
}


async def body_routes(peer: Peer) -> list[tuple[str, str]]:
    """Return (method, path) of every route with a body, with unknown ids: the body is checked first."""
    reference = await peer.call("GET", "/openapi.json")
    found = [
        (method.upper(), path.removeprefix("/v1").replace("{id}", peer.workspace))
        for path, operations in reference["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    ]
    assert len(found) >= 9
    return found


@pytest.mark.parametrize("case", NO_OBJECTS)
async def test_a_body_that_is_not_an_object_is_refused(kedge: Peer, session: str, case: str) -> None:
    for method, path in await body_routes(kedge):
        reply = await kedge.reply(method, path, NO_OBJECTS[case])
        check_refused(reply, 400, 404, 413, 422)  # 404: the wrong value may be in a field that the route does not use


@pytest.mark.parametrize(
    "media_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
async def test_a_body_with_another_content_type_is_refused(kedge: Peer, session: str, media_type: str | None) -> None:
    for method, path in await body_routes(kedge):
        headers = {} if media_type is None else {"content-type": media_type}
        reply = await kedge.http.request(method, f"/v1{path}", content=b'{"title": "a"}', headers=headers)
        check_refused(reply, 415)


@pytest.mark.found(
    "issue 20",
    "a POST without a body was refused with 415 if it had another Content-Type, as `curl -d ''` sends; the type counts "
    "only for a body",
)
async def test_a_post_without_body_may_have_any_content_type(kedge: Peer, session: str) -> None:
    path = f"{kedge.at}/agent/sessions/{session}/cancel"
    for media_type in ("application/x-www-form-urlencoded", "text/plain", "", "application/json"):
        assert (await post(kedge, path, b"", media_type)).json() == {
            "mark": None,
            "covered": [],
            "recorded": True,
            "jobs": [],
        }
    check_refused(await post(kedge, path, b"a=b", "application/x-www-form-urlencoded"), 415)
    headers = {"content-type": "text/plain", "origin": "https://example.org"}
    check_refused(await kedge.http.post(f"/v1{path}", content=b"", headers=headers), 403)


async def test_an_incomplete_body_leaves_no_trace(kedge: Peer, session: str, shared: tuple[str, str]) -> None:
    url, token = shared
    whole = raw.submit(token, kedge.workspace, {"session_id": session, "prompt": "hello"})
    for missing in (1, 10, len(whole.partition(b"\r\n\r\n")[2])):
        async with raw.connect(url) as line:
            await line.send(whole[:-missing])
            line.abort()


FIELDS: list[tuple[str, str, Any, int]] = [
    ("POST", "/workspaces", {}, 400),
    ("POST", "/workspaces", {"path": "/"}, 400),
    ("POST", "/workspaces", {"path": "/", "client_id": "me"}, 400),
    ("POST", "/workspaces", {"path": "/", "client_id": 7}, 422),
    ("POST", "/workspaces", {"path": "", "client_id": "ME"}, 400),
    ("POST", "/workspaces", {"path": "relative/path", "client_id": "ME"}, 400),
    ("POST", "/workspaces", {"path": "~", "client_id": "ME"}, 400),
    ("POST", "/workspaces", {"path": "/nowhere/at/all", "client_id": "ME"}, 400),
    ("POST", "/workspaces", {"path": "/etc/passwd", "client_id": "ME"}, 400),
    ("POST", "/workspaces", {"path": "/a\0b", "client_id": "ME"}, 422),
    ("POST", "/workspaces", {"path": "/" + "x" * 5000, "client_id": "ME"}, 400),
    ("POST", "/workspaces", {"path": ["/"], "client_id": "ME"}, 422),
    ("POST", "AT/sessions", {"title": 5}, 422),
    ("POST", "AT/sessions", {"title": "x" * 10_000}, 413),
    ("POST", "AT/sessions", {"title": "a\0"}, 422),
    ("PUT", "AT/sessions/SID", {}, 422),
    ("PUT", "AT/sessions/SID", {"title": None}, 422),
    ("PUT", "AT/sessions/SID", {"title": "x" * 201}, 413),
    ("POST", "AT/sessions/SID/fork", {}, 400),
    ("POST", "AT/sessions/SID/fork", {"message_id": 1}, 422),
    ("POST", "AT/sessions/SID/fork", {"message_id": "nobody"}, 404),
    ("POST", "AT/current-session", {"session_id": "SID"}, 400),
    ("POST", "AT/current-session?client_id=ME", {"session_id": "nobody"}, 404),
    ("POST", "AT/current-session?client_id=ME", {"session_id": 1}, 422),
    ("POST", "AT/current-session?client_id=00000000-0000-0000-0000-000000000000", {"session_id": "SID"}, 409),
    ("PATCH", "AT/agent/runs/nobody", {"prompt": "hello"}, 404),
    ("PATCH", "AT/agent/runs/nobody", {"prompt": 1}, 422),
    ("PATCH", "AT/agent/runs/nobody", {}, 400),
    ("POST", "AT/agent/runs/nobody/move", {"before": None}, 404),
    ("POST", "AT/agent/runs/nobody/move", {"before": 5}, 422),
    ("POST", "AT/agent/runs/nobody/cancel", None, 404),
    ("POST", "AT/agent/sessions/nobody/cancel", None, 404),
    ("POST", "AT/agent/sessions/nobody/queue/clear", None, 404),
    ("POST", "/control", {}, 422),
    ("POST", "/control", {"command": "dance"}, 422),
    ("POST", "/control", {"command": "shutdown", "force": "yes"}, 422),
    ("DELETE", "/clients/not-a-uuid", None, 400),
    ("DELETE", "AT", None, 400),
    ("DELETE", "AT?client_id=me", None, 400),
    ("DELETE", "AT/sessions/nobody", None, 404),
    ("GET", "AT/sessions/nobody/messages", None, 404),
    ("GET", "AT/sessions/SID/messages?limit=0", None, 422),
    ("GET", "AT/sessions/SID/messages?limit=-1", None, 422),
    ("GET", "AT/sessions/SID/messages?limit=1001", None, 422),
    ("GET", "AT/sessions/SID/messages?limit=ten", None, 422),
    ("GET", "AT/sessions/SID/messages?limit=" + "9" * 5000, None, 422),
    ("GET", "AT/sessions/SID/messages?after=nobody", None, 404),
    ("GET", "AT/sessions/SID/messages?after=%00", None, 404),
    ("GET", "AT/sessions/SID/export?format=exe", None, 422),
    ("GET", "AT/agent/sessions/SID/runs?limit=1e9", None, 422),
    ("GET", "AT/agent/runs/nobody/wait?timeout_s=nan", None, 422),
    ("GET", "AT/agent/runs/nobody/wait?timeout_s=inf", None, 422),
    ("GET", "AT/agent/runs/nobody/wait?timeout_s=-1", None, 422),
    ("GET", "AT/agent/runs/nobody/wait?timeout_s=soon", None, 422),
    ("GET", "AT/agent/runs/nobody/wait", None, 404),
    ("GET", "AT/agent/runs/%00", None, 404),
    ("GET", "AT/agent/runs/%ff", None, 404),
    ("GET", "AT/search?q=%00", None, 422),
    ("GET", "AT/search?q=a&limit=0", None, 422),
    ("GET", "AT/search?" + "&".join(f"f{number}=1" for number in range(60)), None, 400),
    ("GET", "/runs?state=sleeping", None, 422),
    ("GET", "AT/events", None, 400),
    ("GET", "AT/events?client_id=me", None, 400),
    ("GET", "AT/events?client_id=ME&session_id=nobody", None, 404),
    ("GET", "AT/events?client_id=ME&deltas=perhaps", None, 422),
    ("GET", "/workspaces/%00", None, 404),
    ("GET", "/workspaces/%ed%a0%80/sessions", None, 404),
    ("GET", "/workspaces//sessions", None, 404),
    ("GET", "/workspaces/{}/sessions", None, 404),
    ("GET", "/workspaces/{id}", None, 404),
    ("GET", "AT/agent/runs/{}", None, 404),
    ("GET", "/nothing", None, 404),
    ("GET", "/", None, 404),
    ("GET", "/health/", None, 404),
    ("GET", "/" + "x/" * 2000, None, 404),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"), FIELDS, ids=[f"{f[0]} {f[1][:60]} {str(f[2])[:40]}" for f in FIELDS]
)
async def test_a_wrong_value_in_any_request_is_refused(
    kedge: Peer, session: str, method: str, path: str, body: Any, status: int
) -> None:
    def filled(text: str) -> str:
        return text.replace("AT", kedge.at).replace("SID", session).replace("ME", kedge.client_id)

    content = None if body is None else filled(json.dumps(body)).encode()
    headers = {"content-type": "application/json"} if content is not None else {}
    reply = await kedge.http.request(method, f"/v1{filled(path)}", content=content, headers=headers)
    check_refused(reply, status)


@pytest.mark.parametrize(
    "query", ['"', "AND", "*", "NEAR(", "a OR", '"open', "(", "title:a", "-", "^a", "%", "", "a " * 500]
)
async def test_any_search_text_is_accepted(kedge: Peer, session: str, query: str) -> None:
    assert await kedge.call("GET", f"{kedge.at}/search", q=query) == []


# --- the stream ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "position",
    [
        "text",
        "-1",
        "1.5",
        "1e3",
        "0x10",
        "9" * 16,
        "9" * 17,
        "9" * 5000,
        "1,2",
        "1 2",
        "\u0663",
        "null",
        "NaN",
        "+1",
        "_",
    ],
)
async def test_an_invalid_position_is_refused(kedge: Peer, session: str, position: str) -> None:
    path = f"/v1{kedge.at}/events"
    who = {"client_id": kedge.client_id}
    headers = {b"last-event-id": position.encode()}
    replies = [
        await kedge.http.get(path, params=who, headers=headers),
        await kedge.http.get(path, params={**who, "after": position}),
    ]
    for reply in replies:
        assert check_refused(reply, 400)["code"] == "bad_position"


async def test_a_position_of_another_workspace_gets_a_gap(
    kedge: Peer, tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint
) -> None:
    other = await Peer(kedge.http, tmp_path_factory.mktemp("other")).open()
    receipt = await other.submit(await other.session(), "script: say over there")
    await other.wait(receipt["run_id"])

    def gaps(stream: Stream) -> list[Json]:
        return [frame.payload for frame in stream.of("gap")]

    for position in (receipt["position"], 1, 2**53 - 1):
        async with kedge.stream(last_event_id=position) as stream:
            await stream.until(gaps)
            (gap,) = gaps(stream)
            assert gap["reason"] == "epoch"
            assert stream.frames[0].type == "gap"
            await fence(kedge, stream)
            assert all(frame.payload.get("session_id") != receipt["session_id"] for frame in stream.frames)
            assert min(stream.positions) > gap["position"]


async def test_an_empty_position_starts_at_the_present(kedge: Peer) -> None:
    await kedge.session("before")
    async with kedge.stream(last_event_id="") as stream:
        marker = await fence(kedge, stream)
        assert [frame.payload["id"] for frame in stream.frames] == [marker], "it starts at the present"
