"""Changes of the MCP servers in a configuration file that leave everything else in it as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kedge.config.load import parse_toml, to_config
from kedge.errors import Invalid

_BARE = re.compile(r"[A-Za-z0-9_-]+")
#: The header of a table: `[mcp.name]`, `[mcp."name".env]`. Lists of tables are not ours.
_HEADER = re.compile(r"""\s*\[\s*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'|\s*\.\s*)+)\]""")


def with_server(text: str, path: Path, name: str, settings: dict[str, Any]) -> str:
    """Return the file with a new table. Raises Invalid if there is such a server, BadConfig if a setting is wrong."""
    plain = parse_toml(text.encode(), path)
    if name in plain.get("mcp", {}):
        raise Invalid(f"{path} already has an MCP server {name}. Remove it first: kedge mcp remove {name}")
    start = "" if not text else text if text.endswith("\n") else f"{text}\n"
    added = f"{start}{chr(10) if start else ''}{_table(name, settings)}"
    expected = {**plain, "mcp": {**plain.get("mcp", {}), name: settings}}
    if parse_toml(added.encode(), path) != expected:
        raise Invalid(f"{path} cannot be extended automatically; add the table [mcp.{_key(name)}] yourself.")
    to_config(expected, path, added.encode())
    return added


def without_server(text: str, path: Path, name: str) -> str:
    """Return the file without the tables of a server. Raises Invalid if that would change anything else."""
    plain = parse_toml(text.encode(), path)
    servers = dict(plain.get("mcp", {}))
    if name not in servers:
        raise Invalid(f"{path} has no MCP server {name}. List them with: kedge mcp list")
    del servers[name]
    lines, is_ours = [], False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            header = _HEADER.match(line)
            is_ours = header is not None and _parts(header[1])[:2] == ["mcp", name]
        if not is_ours:
            lines.append(line)
    removed = "".join(lines).rstrip("\n") + "\n" if "".join(lines).strip() else ""
    after = parse_toml(removed.encode(), path)
    if {**after, "mcp": after.get("mcp", {})} != {**plain, "mcp": servers}:
        raise Invalid(f"{path} cannot be changed automatically; remove the table [mcp.{_key(name)}] yourself.")
    return removed


def _parts(header: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(r"""[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'""", header)]


def _table(name: str, settings: dict[str, Any]) -> str:
    lines = [f"[mcp.{_key(name)}]"]
    lines += [f"{key} = {_value(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    # A JSON string is a TOML string, apart from DEL and surrogate pairs.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)
