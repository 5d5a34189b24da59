"""The parameters and results of the requests between the server and the MCP bridge."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from kedge.core.mcp_login import McpLogin

McpTransport = Literal["stdio", "http", "sse"]

#: Text of one result: the limit of a tool call (`tools.base.OUTPUT_CHARS_MAX`), cut before it is sent. Characters.
TEXT_CHARS_MAX = 30_000
#: Pictures of one result, as data URLs: below the limit of the pictures of a Step. Characters.
IMAGES_CHARS_MAX = 12_000_000
#: Limits of a listing: more tools than a model can choose from. Items.
TOOLS_MAX = 500
PROMPTS_MAX = 200
RESOURCES_MAX = 500
#: Size of one input schema, as JSON. Bytes.
SCHEMA_BYTES_MAX = 64 * 1024
#: A description: a page. Characters.
DESCRIPTION_CHARS_MAX = 4000
#: A name or a URI in a listing. Characters.
NAME_CHARS_MAX = 500
#: Time for the start of a server and its first listing: a package runner may download it. Seconds.
START_S = 60.0
#: The error of a connection whose server requires a login.
NEEDS_LOGIN = "needs a login"


class McpServerSpec(Struct, frozen=True):
    """The way to reach a server, with all references to variables and secrets resolved."""

    type: McpTransport
    #: The workspace, which the server receives as its root.
    root: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}


class ListedTool(Struct, frozen=True):
    name: str
    description: str = ""
    #: The input schema, as JSON text. Empty: it was too large.
    schema: str = ""


class ListedPrompt(Struct, frozen=True):
    name: str
    description: str = ""
    arguments: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


class ListedResource(Struct, frozen=True):
    uri: str
    name: str = ""
    description: str = ""


class McpListing(Struct, frozen=True):
    """The tools, prompts and resources of a server."""

    tools: tuple[ListedTool, ...] = ()
    prompts: tuple[ListedPrompt, ...] = ()
    resources: tuple[ListedResource, ...] = ()


class Connect(Struct, frozen=True):
    """Request `connect`: start a server and return its McpListing. `connection`: a new number, chosen by the sender."""

    connection: int
    spec: McpServerSpec
    login: McpLogin | None = None


class Disconnect(Struct, frozen=True):
    """Request `disconnect`."""

    connection: int


class WantedLogin(Struct, frozen=True):
    """Request `login` of the bridge: return the login of a connection as a LoginReply.

    `stale`: the token that the server refused, or that has expired. If it is still the stored one, the login is renewed
    by a request `renew` with a McpLogin, which returns a LoginReply as well."""

    connection: int
    stale: str


class LoginReply(Struct, frozen=True):
    #: None: the user must log in.
    login: McpLogin | None = None


class McpCall(Struct, frozen=True):
    """Request `call`: call a tool and return a McpCallResult. `call`: a number for progress and elicitation."""

    connection: int
    call: int
    tool: str
    arguments: dict[str, Any]


class McpCallResult(Struct, frozen=True):
    text: str = ""
    #: Data URLs.
    images: tuple[str, ...] = ()
    is_error: bool = False


class GetPrompt(Struct, frozen=True):
    """Request `prompt`: return the text of a prompt."""

    connection: int
    name: str
    arguments: dict[str, str]


class ReadResource(Struct, frozen=True):
    """Request `resource`: return the text of a resource."""

    connection: int
    uri: str


class Changed(Struct, frozen=True):
    """Notice `listing`: a server offers something else now."""

    connection: int
    listing: McpListing


class Ended(Struct, frozen=True):
    """Notice `ended`: the connection to a server was lost."""

    connection: int
    reason: str


class McpProgress(Struct, frozen=True):
    """Notice `progress`."""

    call: int
    text: str


class Elicit(Struct, frozen=True):
    """Request `elicit` of the bridge: a server asks the user. Returns an Elicited."""

    connection: int
    #: The latest call of this connection.
    call: int
    message: str
    #: The JSON Schema of the form. Empty: the user is asked to open `url`.
    schema: dict[str, Any] = {}
    url: str = ""


class Elicited(Struct, frozen=True):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None
