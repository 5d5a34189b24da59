"""Write the tables of docs/configuration.md: every setting with its default, from the configuration schema."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from kedge.config import schema

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
#: The generated part of the page.
PART = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- /settings -->)", re.DOTALL)
TABLES: dict[str, type[msgspec.Struct]] = {
    "Top level": schema.Config,
    "[providers.NAME]": schema.ProviderConfig,
    "[[providers.NAME.models]]": schema.ModelEntry,
    "[mcp.NAME]": schema.McpServerConfig,
    "[permissions]": schema.PermissionsConfig,
    "[runs]": schema.RunsConfig,
    "[sandbox]": schema.SandboxConfig,
    "[tools]": schema.ToolsConfig,
    "[context]": schema.ContextConfig,
    "[[hooks.EVENT]]": schema.HookEntry,
    "[lsp]": schema.LspConfig,
    "[lsp.servers.NAME]": schema.LanguageServerConfig,
    "[server]": schema.ServerConfig,
}


def page() -> str:
    return PART.sub(lambda _: settings(), PAGE.read_text())


def settings() -> str:
    parts = []
    for heading, table in TABLES.items():
        text = inspect.cleandoc(table.__doc__ or "")
        rows = [f"| `{key}` | {default} | {description} |" for key, default, description in rows_of(table)]
        parts += [f"\n### `{heading}`" if "[" in heading else f"\n### {heading}", "", text, ""]
        parts += ["| key | default | |", "|---|---|---|", *rows]
    return "\n".join([*parts, "", ""])


def rows_of(table: type[msgspec.Struct]) -> Iterator[tuple[str, str, str]]:
    comments = comments_of(table)
    kinds = get_type_hints(table)
    for setting in msgspec.structs.fields(table):
        if table is schema.Config and setting.default_factory is not msgspec.NODEFAULT:
            continue  # has its own table
        description = comments[setting.name]
        assert description, f"{table.__name__}.{setting.name} has no comment in its source"
        if values := choices(kinds[setting.name]):
            description += f" One of {', '.join(f'`{value}`' for value in values)}."
        yield setting.name, default_of(setting), description


def default_of(setting: msgspec.structs.FieldInfo) -> str:
    if setting.default_factory is not msgspec.NODEFAULT:
        return f"`{json.dumps(setting.default_factory())}`"
    if setting.default is msgspec.NODEFAULT:
        return "required"
    return "not set" if setting.default is None else f"`{json.dumps(setting.default)}`"


def choices(kind: Any) -> list[str]:
    """Return the allowed values of a setting, if it is an enumeration."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [value for part in get_args(kind) for value in choices(part)]


def comments_of(table: type[msgspec.Struct]) -> dict[str, str]:
    """Return the comment above each setting in the source."""
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(table).splitlines():
        if comment := re.match(r"    #: (.*)", line):
            above.append(comment[1])
        elif setting := re.match(r"    (\w+): ", line):
            comments[setting[1]] = " ".join(above)
            above = []
    return comments


if __name__ == "__main__":
    PAGE.write_text(page())
