"""Extensions as lines of text, for all front ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kedge.client.safe_text import visible_line
from kedge.core.extensions import ExtensionKind
from kedge.wire.extension_models import ExtensionBody

#: Length of a description in a list. Characters.
DESCRIPTION_CHARS_MAX = 120
_TITLES: dict[ExtensionKind, str] = {
    "mcp": "MCP servers",
    "skill": "Skills",
    "command": "Commands",
    "agent": "Agents",
    "hook": "Hooks",
    "lsp": "Language servers",
    "plugin": "Plugins",
}


def extension_groups(extensions: Iterable[ExtensionBody]) -> Iterator[tuple[str, list[ExtensionBody]]]:
    """Yield the extensions by kind, with the title of the kind."""
    listed = list(extensions)
    for kind, title in _TITLES.items():
        if group := sorted((one for one in listed if one.kind == kind), key=lambda one: one.name):
            yield title, group


def extension_line(extension: ExtensionBody) -> str:
    """Return name, condition, origin and offers in one line, without the error."""
    counts = offer_counts(extension) if extension.kind == "mcp" and extension.offers else ""
    details = [extension.condition.replace("_", " "), extension.origin, counts]
    description = visible_line(extension.description, DESCRIPTION_CHARS_MAX) if extension.description else ""
    line = f"{visible_line(extension.name, 80)}  {' · '.join(filter(None, details))}"
    return f"{line}  {description}" if description else line


def offer_counts(server: ExtensionBody) -> str:
    """Return the numbers of tools, prompts and resources of an MCP server."""
    prompts = sum(offer.startswith("/") for offer in server.offers)
    resources = sum(offer.startswith("@") for offer in server.offers)
    counts = {"tool": len(server.offers) - prompts - resources, "prompt": prompts, "resource": resources}
    shown = [f"{count} {one}{'' if count == 1 else 's'}" for one, count in counts.items() if count]
    return ", ".join(shown) or "it offers nothing"
