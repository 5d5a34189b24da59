"""The OpenAPI 3.1 document, generated from the route table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from kedge.wire.models import ErrorBody

#: Errors of the checks that every route has.
_COMMON = {"400": "Malformed request", "401": "Missing or wrong token", "403": "Foreign Origin, or not permitted"}
_COMMON |= {"410": "The link was used or has expired"}
_COMMON |= {"404": "Not found", "409": "Conflict with the current state", "413": "Too large", "415": "Not JSON"}
_COMMON |= {"421": "Foreign Host", "422": "Wrong type", "429": "Limit reached", "503": "Shutting down"}
_COMMON |= {"504": "The directory of the workspace does not answer"}


#: read: every browser may use the route. act: not one that may only read. owner: no browser.
Access = Literal["read", "act", "owner"]
#: How a request names its session, for browsers that reach one session only. `server.session_scope` checks each.
#: listed: the reply has only what belongs to the session. workspace: about the session's workspace.
SessionSource = Literal["path", "run", "body", "query", "ask", "listed", "workspace", "none"]


class RouteSpec(Struct, frozen=True):
    """The public description of a route."""

    method: str
    path: str  # below /v1, with {names}
    summary: str
    body: type | None = None
    query: type[msgspec.Struct] | None = None
    reply: Any = None
    status: int = 200
    #: The status may also be 202: the request has effect, and is not recorded yet.
    may_be_accepted: bool = False
    media_type: str = "application/json"
    #: Further media types that the query can select.
    other_media_types: tuple[str, ...] = ()
    needs_token: bool = True
    #: The reply is a list, to which each node of a cluster adds its own part, ordered by this field; empty: it is not.
    merged_by: str = ""
    #: The request concerns all nodes of a cluster.
    for_all_nodes: bool = False
    #: None: `read` for GET, else `act`.
    declared_access: Access | None = None
    #: None: from the names in the path; without them, a browser of one session may not use the route.
    declared_session: SessionSource | None = None

    @property
    def access(self) -> Access:
        return self.declared_access or ("read" if self.method == "GET" else "act")

    @property
    def session(self) -> SessionSource | None:
        in_path: dict[str, SessionSource] = {"{sid}": "path", "{run_id}": "run"}
        return self.declared_session or next((source for name, source in in_path.items() if name in self.path), None)


def openapi(specs: Iterable[RouteSpec], version: str) -> dict[str, Any]:
    specs = list(specs)
    types = [ErrorBody, *(t for spec in specs for t in (spec.body, spec.reply) if t is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = {repr(t): schema for t, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for spec in specs:
        paths.setdefault("/v1" + spec.path, {})[spec.method.lower()] = _operation(spec, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kedge", "version": version, "license": {"name": "MIT", "identifier": "MIT"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(spec: RouteSpec, schema_of: dict[str, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": schema_of[repr(ErrorBody)]}}
    content = {
        kind: {"schema": _reply_schema(spec, kind, schema_of)} for kind in (spec.media_type, *spec.other_media_types)
    }
    operation: dict[str, Any] = {
        "summary": spec.summary,
        "operationId": f"{spec.method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', spec.path)}",
        "parameters": [*_path_parameters(spec.path), *_query_parameters(spec.query)],
        "responses": {
            str(spec.status): {"description": "Success", "content": content},
            **{status: {"description": text, "content": error} for status, text in _COMMON.items()},
        },
        "security": [{"token": []}] if spec.needs_token else [],
    }
    if spec.may_be_accepted:
        operation["responses"]["202"] = {"description": "In effect, not recorded yet", "content": content}
    if spec.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[repr(spec.body)]}},
        }
    return operation


def _reply_schema(spec: RouteSpec, media_type: str, schema_of: dict[str, Any]) -> dict[str, Any]:
    if spec.reply is not None:
        schema: dict[str, Any] = schema_of[repr(spec.reply)]
        return schema
    return {"type": "object" if media_type == "application/json" else "string"}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(query: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    if query is None:
        return []
    schema = msgspec.json.schema_components([query])[1][query.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(value)}
        for name, value in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without null: a query parameter may be absent, but is never null."""
    if "anyOf" not in schema:
        return schema
    options = [option for option in schema["anyOf"] if option.get("type") != "null"]
    return options[0] if len(options) == 1 else {"anyOf": options}
