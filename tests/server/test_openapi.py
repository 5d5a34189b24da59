"""The reference the server gives of itself, held against the server: its shape, its routes, and what it answers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import Json, Peer, Server

#: The outside contract: what other clients may rely on.
CONTRACT = """
GET /health · GET /version · POST /control · DELETE /clients/{client_id} · GET /metrics · GET /runs · GET /openapi.json
GET /docs · POST /workspaces · GET /workspaces · GET /workspaces/{id} · DELETE /workspaces/{id}
POST /workspaces/{id}/current-session · GET /workspaces/{id}/config · GET /workspaces/{id}/events
GET /workspaces/{id}/models
GET /workspaces/{id}/search · GET /workspaces/{id}/sessions · POST /workspaces/{id}/sessions
GET /workspaces/{id}/sessions/{sid} · PUT /workspaces/{id}/sessions/{sid} · DELETE /workspaces/{id}/sessions/{sid}
GET /workspaces/{id}/sessions/{sid}/messages · POST /workspaces/{id}/sessions/{sid}/fork
GET /workspaces/{id}/sessions/{sid}/export · POST /workspaces/{id}/agent
POST /workspaces/{id}/agent/sessions/{sid}/cancel · GET /workspaces/{id}/agent/sessions/{sid}/runs
POST /workspaces/{id}/agent/sessions/{sid}/queue/clear · GET /workspaces/{id}/agent/runs/{run_id}
GET /workspaces/{id}/agent/runs/{run_id}/wait · POST /workspaces/{id}/agent/runs/{run_id}/cancel
PATCH /workspaces/{id}/agent/runs/{run_id} · POST /workspaces/{id}/agent/runs/{run_id}/move
POST /workspaces/{id}/agent/runs/{run_id}/fold
POST /workspaces/{id}/agent/sessions/{sid}/summarize · POST /workspaces/{id}/agent/sessions/{sid}/shell
GET /workspaces/{id}/permissions · POST /workspaces/{id}/permissions/grant
GET /workspaces/{id}/permissions/skip · POST /workspaces/{id}/permissions/skip
GET /workspaces/{id}/permissions/grants · DELETE /workspaces/{id}/permissions/grants/{grant_id}
GET /workspaces/{id}/questions · POST /workspaces/{id}/questions/answer · POST /workspaces/{id}/questions/cancel
POST /workspaces/{id}/sessions/{sid}/undo
"""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with HostedEndpoint() as endpoint:
        server = Server(tmp_path_factory.mktemp("openapi"), endpoint.url).start()
        yield server
        server.stop()


@pytest.fixture
async def peer(server: Server, tmp_path: Path) -> AsyncIterator[Peer]:
    async with server.peer(tmp_path) as peer:
        yield peer


@pytest.fixture
async def reference(peer: Peer) -> Json:
    found: Json = await peer.call("GET", "/openapi.json")
    return found


def operations(reference: Json) -> list[tuple[str, str, Json]]:
    """(METHOD, path, operation)"""
    return [(m.upper(), path, operation) for path, item in reference["paths"].items() for m, operation in item.items()]


def references(value: Any) -> Iterator[str]:
    """Every $ref in it."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from references(part)


async def test_the_reference_is_openapi_3_1_in_shape(reference: Json) -> None:
    assert reference["openapi"].startswith("3.1.")
    assert {"title", "version"} <= set(reference["info"])
    ids = [operation["operationId"] for _, _, operation in operations(reference)]
    assert len(ids) == len(set(ids)), "an operationId is unique"
    for method, path, operation in operations(reference):
        where = f"{method} {path}"
        assert path.startswith("/v1/"), where
        assert method in ("GET", "POST", "PUT", "PATCH", "DELETE"), where
        assert operation["summary"], where
        given = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert given == re.findall(r"{(\w+)}", path), where
        assert all(parameter["required"] for parameter in operation["parameters"] if parameter["in"] == "path")
        assert all("schema" in parameter for parameter in operation["parameters"]), where
        names = [parameter["name"] for parameter in operation["parameters"]]
        assert len(names) == len(set(names)), where
        assert ("requestBody" in operation) <= (method in ("POST", "PUT", "PATCH")), where
        done = [status for status in operation["responses"] if status.startswith("2")]
        assert len(done) == 1, where
        for answer in operation["responses"].values():
            assert answer["description"], where
            assert all("schema" in content for content in answer["content"].values()), where


async def test_every_part_the_reference_refers_to_is_there(reference: Json) -> None:
    parts = reference["components"]["schemas"]
    named = {name.removeprefix("#/components/schemas/") for name in references(reference)}
    assert named <= set(parts)
    assert set(parts) <= named, "and nothing that is not referred to"


async def test_every_route_of_the_contract_is_in_the_reference(reference: Json) -> None:
    wanted = set(re.findall(r"[A-Z]+ /\S+", CONTRACT))
    there = {f"{method} {path.removeprefix('/v1')}" for method, path, _ in operations(reference)}
    assert wanted == there


async def test_every_route_but_health_says_that_it_needs_a_token(reference: Json) -> None:
    open_to_all = [path for _, path, operation in operations(reference) if not operation["security"]]
    assert open_to_all == ["/v1/health"]
    assert reference["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}


async def test_every_route_documents_the_errors_that_any_route_may_answer(reference: Json) -> None:
    for _, path, operation in operations(reference):
        errors = {status for status in operation["responses"] if not status.startswith("2")}
        assert {"400", "401", "403", "404", "409", "413", "415", "421", "422", "429", "503"} <= errors, path
        assert "500" not in errors, "500 is a bug"


async def test_the_page_for_people_lists_every_route(peer: Peer, reference: Json) -> None:
    page = (await peer.http.get("/v1/docs")).text
    for method, path, _ in operations(reference):
        assert f"<b>{method}</b></td><td><code>{path}</code>" in page


#: Some twenty seconds of work; on a busy machine, three times that. Seconds.
MADE_UP_S_MAX = 170


def schemathesis(server: Server, home: Path, config: str, *options: str) -> None:
    """Let it make up requests from the reference and hold the answers against it; its whole report when it objects.

    Left out are the stream, which never ends, and what would stop the server."""
    (home / "schemathesis.toml").write_text(f'headers = {{ Authorization = "Bearer {server.token}" }}\n{config}')
    command = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", "schemathesis.toml", "--no-color"]
    command += ["run", f"{server.url}/v1/openapi.json", "--checks", CHECKS, "--phases", "coverage,fuzzing"]
    command += ["--max-examples", "12", "--seed", "1", "--generation-database", "none", "--continue-on-failure"]
    command += ["--exclude-path-regex", "/events$|/control$", "--warnings", "off", *options]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=MADE_UP_S_MAX, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "unexpected error" not in server.log


@pytest.mark.timeout(MADE_UP_S_MAX + 10)
async def test_answers_to_made_up_requests_are_as_documented(server: Server, tmp_path: Path) -> None:
    """With ids that exist nowhere, all routes."""
    schemathesis(server, tmp_path, "")


@pytest.mark.timeout(MADE_UP_S_MAX + 10)
async def test_answers_about_things_that_exist_are_as_documented(server: Server, peer: Peer, tmp_path: Path) -> None:
    """With the ids of a workspace, a session and a Run that are there, so that what routes answer when all is well is
    held against the reference, too. Nothing is deleted, or the rest would be about nothing again."""
    session = await peer.session()
    receipt = await peer.submit(session, "script: think why | say hello | tool nothing {} | say there")
    await peer.wait(receipt["run_id"])
    known = {
        "path.id": peer.workspace,
        "path.sid": session,
        "path.run_id": receipt["run_id"],
        "query.client_id": peer.client_id,
    }
    config = "[parameters]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in known.items())
    async with peer.stream():  # it holds the workspace open
        schemathesis(server, tmp_path, config, "--exclude-method", "DELETE")
        assert (await peer.run(receipt["run_id"]))["text"] == "there"
