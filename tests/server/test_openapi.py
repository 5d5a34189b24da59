"""The OpenAPI document of the server, and the server's conformance to it."""

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

#: The public routes. Removing one breaks clients.
CONTRACT = """
GET /health · GET /version · POST /control · DELETE /clients/{client_id} · GET /metrics · GET /runs · GET /openapi.json
GET /known-workspaces · DELETE /known-workspaces/{id} · GET /nodes
GET /docs · POST /workspaces · GET /workspaces · GET /workspaces/{id} · DELETE /workspaces/{id}
POST /workspaces/{id}/current-session · GET /workspaces/{id}/config · GET /workspaces/{id}/events
GET /workspaces/{id}/models · GET /workspaces/{id}/extensions · GET /workspaces/{id}/commands
GET /workspaces/{id}/search · GET /workspaces/{id}/sessions · POST /workspaces/{id}/sessions
GET /workspaces/{id}/sessions/{sid} · PUT /workspaces/{id}/sessions/{sid} · DELETE /workspaces/{id}/sessions/{sid}
GET /workspaces/{id}/sessions/{sid}/messages · POST /workspaces/{id}/sessions/{sid}/fork
GET /workspaces/{id}/sessions/{sid}/export · GET /workspaces/{id}/sessions/{sid}/files
POST /workspaces/{id}/agent
POST /workspaces/{id}/agent/sessions/{sid}/cancel · GET /workspaces/{id}/agent/sessions/{sid}/runs
POST /workspaces/{id}/agent/sessions/{sid}/queue/clear · GET /workspaces/{id}/agent/runs/{run_id}
GET /workspaces/{id}/agent/runs/{run_id}/wait · POST /workspaces/{id}/agent/runs/{run_id}/cancel
PATCH /workspaces/{id}/agent/runs/{run_id} · POST /workspaces/{id}/agent/runs/{run_id}/move
POST /workspaces/{id}/agent/runs/{run_id}/fold
POST /workspaces/{id}/agent/sessions/{sid}/summarize · POST /workspaces/{id}/agent/sessions/{sid}/shell
GET /workspaces/{id}/permissions · POST /workspaces/{id}/permissions/grant
GET /workspaces/{id}/permissions/grants · DELETE /workspaces/{id}/permissions/grants/{grant_id}
GET /workspaces/{id}/questions · POST /workspaces/{id}/questions/answer · POST /workspaces/{id}/questions/cancel
GET /stats · GET /lanes · GET /workspaces/{id}/sessions/{sid}/lane
GET /workspaces/{id}/commands
GET /workspaces/{id}/file-names
GET /workspaces/{id}/extensions
POST /workspaces/{id}/mcp/{name}/test
POST /workspaces/{id}/mcp/{name}/restart
GET /workspaces/{id}/sessions/{sid}/jobs
GET /workspaces/{id}/sessions/{sid}/jobs/{job_id}
POST /workspaces/{id}/sessions/{sid}/jobs/{job_id}/end
POST /workspaces/{id}/sessions/{sid}/redo
POST /workspaces/{id}/sessions/{sid}/rewind
POST /workspaces/{id}/sessions/{sid}/undo
POST /web/listen · POST /web/tickets · POST /web/login · POST /web/logout · GET /web/access
GET /web/browsers · DELETE /web/browsers/{browser_id} · POST /workspaces/{id}/open
GET /users · POST /users · DELETE /users/{name} · GET /audit
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
    document: Json = await peer.call("GET", "/openapi.json")
    return document


def operations(reference: Json) -> list[tuple[str, str, Json]]:
    """(METHOD, path, operation)"""
    return [(m.upper(), path, operation) for path, item in reference["paths"].items() for m, operation in item.items()]


def references(value: Any) -> Iterator[str]:
    """Yield every $ref in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from references(part)


async def test_the_document_is_valid_openapi_3_1(reference: Json) -> None:
    assert reference["openapi"].startswith("3.1.")
    assert {"title", "version"} <= set(reference["info"])
    ids = [operation["operationId"] for _, _, operation in operations(reference)]
    assert len(ids) == len(set(ids)), "every operationId is unique"
    for method, path, operation in operations(reference):
        where = f"{method} {path}"
        assert path.startswith("/v1/"), where
        assert method in ("GET", "POST", "PUT", "PATCH", "DELETE"), where
        assert operation["summary"], where
        in_path = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", path), where
        assert all(parameter["required"] for parameter in operation["parameters"] if parameter["in"] == "path")
        assert all("schema" in parameter for parameter in operation["parameters"]), where
        names = [parameter["name"] for parameter in operation["parameters"]]
        assert len(names) == len(set(names)), where
        assert ("requestBody" in operation) <= (method in ("POST", "PUT", "PATCH")), where
        successes = [status for status in operation["responses"] if status.startswith("2")]
        may_be_unrecorded = where.endswith(("{sid}/cancel", "{run_id}/cancel"))
        assert len(successes) == 1 + may_be_unrecorded, where
        for response in operation["responses"].values():
            assert response["description"], where
            assert all("schema" in content for content in response["content"].values()), where


async def test_every_schema_is_defined_and_used(reference: Json) -> None:
    parts = reference["components"]["schemas"]
    named = {name.removeprefix("#/components/schemas/") for name in references(reference)}
    assert named <= set(parts)
    assert set(parts) <= named, "no unused schemas"


async def test_the_document_has_exactly_the_public_routes(reference: Json) -> None:
    expected = set(re.findall(r"[A-Z]+ /\S+", CONTRACT))
    documented = {f"{method} {path.removeprefix('/v1')}" for method, path, _ in operations(reference)}
    assert documented == expected


async def test_only_health_and_the_login_need_no_token(reference: Json) -> None:
    public = [path for _, path, operation in operations(reference) if not operation["security"]]
    assert public == ["/v1/health", "/v1/web/login"]
    assert reference["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}


async def test_every_route_documents_the_common_errors(reference: Json) -> None:
    for _, path, operation in operations(reference):
        errors = {status for status in operation["responses"] if not status.startswith("2")}
        assert {"400", "401", "403", "404", "409", "413", "415", "421", "422", "429", "503"} <= errors, path
        assert "500" not in errors, "500 is a bug"


async def test_the_html_page_lists_every_route(peer: Peer, reference: Json) -> None:
    page = (await peer.http.get("/v1/docs")).text
    for method, path, _ in operations(reference):
        assert f"<b>{method}</b></td><td><code>{path}</code>" in page


#: About 20 seconds of work; three times that on a busy machine. Seconds.
SCHEMATHESIS_S_MAX = 170


def schemathesis(server: Server, home: Path, config: str, *options: str) -> None:
    """Generate requests from the document and check the replies against it.

    Excluded are the event stream, which never ends, and the shutdown."""
    (home / "schemathesis.toml").write_text(f'headers = {{ Authorization = "Bearer {server.token}" }}\n{config}')
    command = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", "schemathesis.toml", "--no-color"]
    command += ["run", f"{server.url}/v1/openapi.json", "--checks", CHECKS, "--phases", "coverage,fuzzing"]
    command += ["--max-examples", "12", "--seed", "1", "--generation-database", "none", "--continue-on-failure"]
    command += ["--exclude-path-regex", "/events$|/control$", "--warnings", "off", *options]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=SCHEMATHESIS_S_MAX, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "unexpected error" not in server.log


@pytest.mark.proof  # fuzzing, 9 s of CPU time
@pytest.mark.timeout(SCHEMATHESIS_S_MAX + 10)
async def test_generated_requests_get_documented_replies(server: Server, tmp_path: Path) -> None:
    """All routes, with unknown ids."""
    schemathesis(server, tmp_path, "")


@pytest.mark.proof  # fuzzing, 9 s of CPU time
@pytest.mark.timeout(SCHEMATHESIS_S_MAX + 10)
async def test_generated_requests_for_known_ids_succeed(server: Server, peer: Peer, tmp_path: Path) -> None:
    """With the ids of an existing workspace, session and Run, so that successful replies are checked too. Nothing is
    deleted, or later requests would fail."""
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
    async with peer.stream():  # keeps the workspace open
        schemathesis(server, tmp_path, config, "--exclude-method", "DELETE")
        assert (await peer.run(receipt["run_id"]))["text"] == "there"
