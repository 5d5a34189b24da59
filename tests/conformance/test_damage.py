"""A server on a data directory in which one workspace of two was damaged while no server ran."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from kedge.store.sqlite_connect import has_page_checksums
from tests.conformance.harness import WAIT_S, Endpoint, Json, Peer, Server, unique


async def left_behind(server: Server, directory: Path, endpoint: Endpoint) -> tuple[str, str, str]:
    """Return (workspace, session, run) of a Run that was active when its server was killed."""
    tag = unique("tag")
    async with server.peer(directory) as peer:
        session, run_id = await peer.session(), unique("run")
        await peer.submit(session, f"script: tag {tag} | say half | hold {unique('key')}", run_id=run_id)
        await endpoint.wait_open(tag)
        return peer.workspace, session, run_id


def database(server: Server) -> apsw.Connection:
    assert has_page_checksums()
    return apsw.Connection(str(server.data_dir / "kedge.db"), vfs="cksmvfs")


def damage(server: Server, workspace_id: str) -> None:
    db = database(server)
    db.execute("DELETE FROM log WHERE workspace_id = ? AND kind = 'RunStarted'", (workspace_id,))
    assert db.changes() == 1
    db.close()


def entries(server: Server, workspace_id: str) -> list[tuple[object, ...]]:
    db = database(server)
    rows = db.execute("SELECT position, hash FROM log WHERE workspace_id = ? ORDER BY position", (workspace_id,))
    result = rows.fetchall()
    db.close()
    return result


def command(server: Server, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `kedge` in this directory, with this server."""
    host = ("--host", f"unix://{server.socket}")
    return subprocess.run(
        [sys.executable, "-m", "kedge", *arguments, *host],
        env=server.environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


async def refused_routes(peer: Peer, workspace_id: str, session: str, run_id: str) -> int:
    """Check that every route of this workspace is refused, and return their number."""
    document = await peer.call("GET", "/openapi.json")
    asked = 0
    for path, methods in document["paths"].items():
        below = path.removeprefix("/v1")
        if not below.startswith("/workspaces/{id}"):
            continue
        values = {"id": workspace_id, "sid": session, "rid": run_id, "run_id": run_id}
        for method, about in methods.items():
            reply = await peer.reply(
                method.upper(),
                below.format_map(_Anything(values)),
                _smallest(document, about),
                client_id=peer.client_id,
                timeout_s="1",
            )
            error = reply.json()
            assert (reply.status_code, error["code"]) == (500, "store_damaged"), f"{method} {path}: {reply.text}"
            assert workspace_id in error["message"], error
            assert "restore the data directory from a backup" in error["message"], error
            asked += 1
    return asked


class _Anything(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "none"


def _smallest(document: Json, about: Json) -> Any:
    """Return a body with only the required fields of this route."""
    if "requestBody" not in about:
        return None
    return _value(document, about["requestBody"]["content"]["application/json"]["schema"])


def _value(document: Json, schema: Json) -> Any:
    if reference := schema.get("$ref"):
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            fields: Json = schema.get("properties", {})
            required = {name: _value(document, fields[name]) for name in schema.get("required", ())}
            return required | ({"client_id": str(uuid.uuid4())} if "client_id" in required else {})
        case "array":
            return []
        case "integer" | "number":
            return 1
        case "boolean":
            return False
        case _:
            return "x"


async def test_a_damaged_workspace_is_refused_on_every_route(
    own_server: Callable[..., Server], tmp_path: Path, endpoint: Endpoint
) -> None:
    server = own_server('[runs]\non_crash = "end"')
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    whole.mkdir()
    damaged.mkdir()
    _, whole_session, whole_run = await left_behind(server, whole, endpoint)
    workspace_id, session, run_id = await left_behind(server, damaged, endpoint)
    server.kill()
    damage(server, workspace_id)
    before = entries(server, workspace_id)
    server.start()
    async with server.peer(whole) as peer:
        assert (await peer.run(whole_run))["outcome"] == "interrupted"
        async with peer.stream(after=0) as stream:
            receipt = await peer.submit(whole_session, "script: say fine", run_id=unique("run"))
            _, complete = await stream.until_complete(whole_run, receipt["run_id"])
            assert (complete["outcome"], complete["text"]) == ("completed", "fine")
        body = {"path": str(damaged), "client_id": str(uuid.uuid4())}
        error = await peer.call("POST", "/workspaces", body, expect=500)
        assert error["code"] == "store_damaged"
        assert await refused_routes(peer, workspace_id, session, run_id) > 30
        assert [workspace["path"] for workspace in await peer.call("GET", "/workspaces")] == [str(whole)]
        assert await peer.call("GET", "/runs") == []
        assert "kedge_workspaces_damaged 1" in (await peer.reply("GET", "/metrics")).text

    for arguments in (("sessions", "list"), ("run", "hello")):
        done = command(server, damaged, *arguments)
        assert done.returncode != 0, arguments
        (line,) = done.stderr.splitlines()
        assert f"workspace {workspace_id} ({damaged}) is damaged" in line
    doctor = command(server, damaged, "doctor")
    assert doctor.returncode == 1
    assert f"FAIL  store: workspace {workspace_id}" in doctor.stdout
    assert server.terminate() == 0
    (line,) = [line for line in server.log.splitlines() if "kedge.engine" in line and "is damaged" in line]
    assert f"workspace {workspace_id} ({damaged}) is damaged" in line
    assert entries(server, workspace_id) == before, "it is not written to"


def test_an_invalid_database_is_a_one_line_error(
    own_server: Callable[..., Server],
) -> None:
    server = own_server()
    assert server.terminate() == 0
    (server.data_dir / "kedge.db").write_bytes(b"no database " * 1_000)
    done = subprocess.run(
        [sys.executable, "-m", "kedge", "serve", "--host", f"unix://{server.socket}"],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kedge: the database ")
    assert "kedge.db is damaged" in line
    assert "restore the data directory from a backup" in line
