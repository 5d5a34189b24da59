from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from kedge import errors, paths
from kedge.client import http_transport
from kedge.client.client import Client
from kedge.client.http_transport import NotConnected, decode_error, parse_host
from tests.client.process import Server
from tests.client.standin import StandIn, always, answer, json


@pytest.mark.parametrize(
    ("host", "base_url", "path", "is_local"),
    [
        ("unix:///run/k.sock", "http://localhost", "/run/k.sock", True),
        ("unix:///c#/what?/%41 k.sock", "http://localhost", "/c#/what?/%41 k.sock", True),
        ("tcp://127.0.0.1:8787", "http://127.0.0.1:8787", None, True),
        ("tcp://[::1]:8787", "http://[::1]:8787", None, True),
        ("tcp://10.0.0.7:8787", "http://10.0.0.7:8787", None, False),
        ("http://localhost:1/", "http://localhost:1", None, True),
        ("https://kedge.example/base", "https://kedge.example/base", None, False),
    ],
)
def test_host_is_parsed_as_an_address(host: str, base_url: str, path: str | None, is_local: bool) -> None:
    address = parse_host(host)
    assert (address.base_url, address.socket, address.is_local) == (base_url, path, is_local)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "unix://relative",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:x",
        "tcp://127.0.0.1:99999999",
        "tcp://127.0.0.1:1/path",
        "tcp://user:secret@127.0.0.1:1",
        "http://h?token=x",
        "ftp://x:1",
        "\x1b[2J://x",
    ],
)
def test_invalid_host_is_refused_with_examples(host: str) -> None:
    with pytest.raises(errors.Invalid, match=r"unix:///path\.sock, tcp://127") as refused:
        parse_host(host)
    assert "\x1b" not in refused.value.message


def test_every_error_type_round_trips() -> None:
    for code, kind in errors.BY_CODE.items():
        error = decode_error(kind.status, b'{"message": "why", "code": "%s"}' % code.encode())
        assert type(error) is kind
        assert error.message == "why"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b"<html><h1>Not here</h1></html>", errors.NotFound),
        (502, b"Bad Gateway", errors.Unreachable),
        (504, b"", errors.Unreachable),
        (500, b'{"message": "half a bo', errors.KedgeError),
        (503, b"", errors.Unavailable),
        (429, b"[]", errors.Busy),
        (401, b'{"code": 7}', errors.Unauthorized),
        (418, b"\xff\xfe\x00", errors.KedgeError),
        (409, b'{"message": "taken", "code": "made_up_later"}', errors.Conflict),
    ],
)
def test_foreign_error_body_is_mapped_by_status(status: int, body: bytes, kind: type[Exception]) -> None:
    error = decode_error(status, body)
    assert type(error) is kind
    assert str(status) in error.message or error.message == "taken"


def test_foreign_body_is_quoted_without_control_characters() -> None:
    error = decode_error(500, b"oh\x1b[2Jno\r\nsecond line " + b"x" * 100_000)
    assert "oh" in error.message
    assert "second line" in error.message
    assert error.message.isprintable()
    assert len(error.message) < 300


async def test_malformed_answers_of_a_live_server_become_typed_errors() -> None:
    async with (
        StandIn(always(answer(502, b"<h1>no\x07pe</h1>", "text/html"))) as standin,
        Client(standin.host) as client,
    ):
        with pytest.raises(errors.KedgeError, match="502: <h1>no.pe</h1>"):
            await client.version()
    async with StandIn(always(answer(200, b"{not json"))) as standin, Client(standin.host) as client:
        with pytest.raises(errors.KedgeError, match="Cannot decode"):
            await client.version()
    async with StandIn(always(json(200, {"version": 7}))) as standin, Client(standin.host) as client:
        with pytest.raises(errors.KedgeError, match="Cannot decode"):
            await client.version()
    async with StandIn(always(json(404, {"message": "gone", "code": "run_not_found"}))) as standin:
        async with Client(standin.host) as client:
            with pytest.raises(errors.RunNotFound, match="gone"):
                await client.run("w", "r")


async def test_server_that_closes_is_unreachable() -> None:
    for reply in (b"", b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhalf", b"nonsense\r\n\r\n"):
        async with StandIn(always(reply)) as standin, Client(standin.host) as client:
            with pytest.raises(errors.Unreachable, match=r"closed the connection .* kedge doctor") as lost:
                await client.version()
            assert standin.host in lost.value.message
            assert not isinstance(lost.value, NotConnected)


async def test_missing_server_is_named_with_a_remedy() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        async with Client(host) as client:
            with pytest.raises(NotConnected, match=f"{host}. Start one with: kedge serve"):
                await client.health()
    async with Client("unix:///nowhere/k.sock") as client:
        with pytest.raises(NotConnected, match="unix:///nowhere/k.sock"):
            await client.health()


async def test_endless_reply_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "REPLY_BYTES_MAX", 1000)
    async with StandIn(always(answer(200, b" " * 5000))) as standin, Client(standin.host) as client:
        with pytest.raises(errors.TooLarge):
            await client.version()


async def test_lone_surrogates_are_refused_before_sending() -> None:
    async with StandIn(always(json(200, {}))) as standin, Client(standin.host) as client:
        with pytest.raises(errors.Invalid, match="surrogate"):
            await client.create_session("w", "\ud800")
        assert standin.asked == []


async def test_id_is_escaped_as_one_path_segment() -> None:
    async with StandIn(always(json(404, {"message": "no", "code": "run_not_found"}))) as standin:
        async with Client(standin.host) as client:
            with pytest.raises(errors.RunNotFound):
                await client.run("w", "a/../b?c#d")
            assert standin.asked[0].path == "/workspaces/w/agent/runs/a%2F..%2Fb%3Fc%23d"
            for empty in ("", ".", ".."):
                with pytest.raises(errors.Invalid):
                    await client.run("w", empty)


async def test_token_file_is_for_this_machine_and_must_be_ascii(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("KEDGE_DATA_DIR", str(tmp_path))
    paths.token_file().write_text("from-the-file\n")
    monkeypatch.delenv("KEDGE_TOKEN", raising=False)
    assert http_transport.Transport("tcp://127.0.0.1:1")._token == "from-the-file"
    assert http_transport.Transport("tcp://10.1.2.3:1")._token is None
    assert http_transport.Transport("unix:///k.sock")._token is None
    for bad in ("has space", "n\u00f6n-ascii", "new\nline"):
        with pytest.raises(errors.Invalid):
            Client("tcp://127.0.0.1:1", token=bad)


async def test_tcp_rereads_the_token_file_after_a_restart(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEDGE_TOKEN", raising=False)
    monkeypatch.setenv("KEDGE_DATA_DIR", str(own_server.home.data))
    async with Client(own_server.tcp) as own_client:
        assert (await own_client.version()).pid
        port = own_server.tcp.rpartition(":")[2]
        own_server.stop()
        own_server.arguments = ("--host", f"tcp://127.0.0.1:{port}")
        own_server.start()
        assert (await own_client.version()).pid
    async with Client(own_server.tcp, token="wrong-but-well-formed") as own_client:
        with pytest.raises(errors.Unauthorized):
            await own_client.version()
    monkeypatch.setenv("KEDGE_DATA_DIR", "/nowhere")
    async with Client(own_server.tcp) as own_client:
        with pytest.raises(errors.Unauthorized, match="KEDGE_TOKEN"):
            await own_client.version()


async def test_read_cancelled_on_arrival_prints_no_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It appeared once in a terminal, below a question."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        listening.setblocking(False)
        async with Client(f"unix://{tmp_path}/s") as client:
            asking = asyncio.create_task(client.health())
            peer, _ = await loop.sock_accept(listening)
            with peer:
                await loop.sock_recv(peer, 10_000)
                for _ in range(20):  # until the request waits for its reply
                    await asyncio.sleep(0)
                loop.call_soon(asking.cancel)
                peer.send(json(200, {}))
                await asyncio.wait({asking})
            assert asking.cancelled()
    assert caplog.records == []
    loop.call_soon(lambda: asyncio.Future[None](loop=loop).result())  # other errors are reported
    await asyncio.sleep(0)
    assert [record.message.splitlines()[0] for record in caplog.records] != []
