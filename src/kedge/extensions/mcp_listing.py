"""The tools of MCP servers as models see them: names, descriptions, schemas, all bounded. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from msgspec import Struct

from kedge.bridge.mcp_messages import ListedTool, McpListing
from kedge.core.untrusted_text import visible, without_surrogates

#: Names of tools that providers accept.
MODEL_NAME_CHARS_MAX = 64
#: The description of a tool in a request. Characters.
DESCRIPTION_CHARS_MAX = 2000
#: The input schema of a tool in a request. Bytes.
SCHEMA_BYTES_MAX = 16 * 1024
SCHEMA_DEPTH_MAX = 20
#: A schema that takes any input, for a tool whose schema is too large.
ANY_SCHEMA = '{"type":"object"}'
#: A digest that users see and write in rules. Characters.
DIGEST_CHARS = 8

#: Names of tools as the protocol defines them. Rules could not distinguish others.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class OfferedTool(Struct, frozen=True):
    """A tool of a server, as it is sent to models."""

    #: The name that models use.
    name: str
    tool: str
    description: str
    schema: str
    #: Digest of everything that the server says about the tool.
    digest: str

    @property
    def bytes(self) -> int:
        return len(self.name) + len(self.description.encode()) + len(self.schema.encode())


def offered_tools(server: str, listing: McpListing, allowed: list[str], taken: set[str]) -> list[OfferedTool]:
    """Return the tools of a server. `allowed`: empty for all. `taken`: the names in use, to which theirs are added."""
    offered = []
    for tool in listing.tools:
        if not _TOOL_NAME.fullmatch(tool.name) or (allowed and tool.name not in allowed):
            continue
        name = model_name(server, tool.name, taken)
        taken.add(name)
        offered.append(
            OfferedTool(name, tool.name, _description(server, tool.description), _schema(tool.schema), digest(tool))
        )
    return offered


def digest(tool: ListedTool) -> str:
    return hashlib.sha256(json.dumps([tool.name, tool.description, tool.schema]).encode()).hexdigest()


def model_name(server: str, tool: str, taken: set[str]) -> str:
    """Return `mcp__SERVER__TOOL` with the characters and the length that providers accept."""
    full = f"mcp__{server}__{tool}"
    plain = plain_name(full)
    if plain == full and len(plain) <= MODEL_NAME_CHARS_MAX and plain not in taken:
        return plain
    suffix = "_" + hashlib.sha256(full.encode()).hexdigest()[:DIGEST_CHARS]
    return plain[: MODEL_NAME_CHARS_MAX - len(suffix)] + suffix


def plain_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _description(server: str, text: str) -> str:
    own = without_surrogates(visible(text[:DESCRIPTION_CHARS_MAX], mark_ends=False))
    cut = " ..." if len(text) > DESCRIPTION_CHARS_MAX else ""
    return f"A tool of the MCP server {server}, which describes it so: {own}{cut}"


def _schema(text: str) -> str:
    """Return a JSON Schema for one plain object."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return ANY_SCHEMA
    if not isinstance(schema, dict) or _is_deep(schema, SCHEMA_DEPTH_MAX):
        return ANY_SCHEMA
    schema["type"] = "object"
    if not isinstance(schema.get("properties", {}), dict):
        return ANY_SCHEMA
    plain = without_surrogates(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    return plain if len(plain.encode()) <= SCHEMA_BYTES_MAX else ANY_SCHEMA


def _is_deep(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_is_deep(item, depth - 1) for item in inner)
