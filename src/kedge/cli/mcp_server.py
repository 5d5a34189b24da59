"""kedge as an MCP server: its tools and resources, and its errors as one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp_types import ToolAnnotations
from pydantic import ValidationError

from kedge import __version__
from kedge.cli.mcp_tools import KedgeTools
from kedge.client.safe_text import one_line
from kedge.errors import KedgeError

#: Longest error in a result. Characters.
ERROR_CHARS_MAX = 1000
#: Errors of arguments in one message. Items.
ARGUMENT_ERRORS_MAX = 3

INSTRUCTIONS = """\
kedge runs coding agents. Send a prompt with `run`, which waits for the end, or with `submit`, which returns at once. \
Call `wait` until the state of the run is "ended". Send further prompts to the same session_id. A run in the state \
"waiting_for_answer" needs the user: show the pending text, then wait again."""


class KedgeMcp(MCPServer[Any]):
    """The server of one process, for all its clients."""

    def __init__(self, tools: KedgeTools, *, approve: bool) -> None:
        super().__init__("kedge", version=__version__, instructions=INSTRUCTIONS, subscriptions=False)
        read_only: list[Callable[..., Any]] = [tools.wait, tools.sessions, tools.transcript, tools.pending]
        others: list[Callable[..., Any]] = [tools.run, tools.submit, tools.cancel, tools.answer_question]
        for tool in read_only:
            self.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
        for tool in [*others, tools.answer_approval] if approve else others:
            self.add_tool(tool)

        @self.resource("kedge://session/{session_id}", mime_type="text/plain")
        async def session(session_id: str) -> str:
            """The first page of the transcript of a session in the server's own directory."""
            return (await tools.transcript(session_id))["text"]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if (text := _known_error(error)) is None:
                raise
            raise ToolError(text) from None

    async def read_resource(self, uri: Any, context: Context[Any, Any] | None = None) -> Any:
        try:
            return await super().read_resource(uri, context)
        except ResourceError as error:
            if (text := _known_error(error)) is None:
                raise
            raise ResourceError(text) from None


def _known_error(error: Exception) -> str | None:
    """Return the message of an error that the caller can act on; None for others, whose text is withheld."""
    match error.__cause__:
        case KedgeError() as cause:
            text = cause.message
        case ValidationError() as cause:
            problems = cause.errors(include_input=False, include_url=False)[:ARGUMENT_ERRORS_MAX]
            text = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
        case _:
            return None
    return one_line(text, ERROR_CHARS_MAX)
