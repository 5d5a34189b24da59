"""What a configuration may say: one Struct per table, each with its defaults and its limits.

How files become one configuration is in `config.py`, which everybody imports. Secrets are references or literals here,
and are only looked up when they are used (`keys.py`); `masked` and `shown` leave them out.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Meta, Struct, field

from kedge.core.approvals import PARSED_MAX, Rule, Rules, parse_rules
from kedge.core.claims import GRACE_S, HOLD_S
from kedge.core.commands import QUEUE_RUNS_MAX, OnCrash, WhenBusy
from kedge.core.patterns import has_wildcard
from kedge.tools.paths import real_path
from kedge.tools.tool_failed import ToolFailed

#: Further instruction files: each is looked for in each directory from the repository's root down. Items.
CONTEXT_FILES_MAX = 50
#: A true but tiny language model on this machine, without a network.
DEMO = "demo/smollm2"
MASK = "********"

ProviderType = Literal[
    "openai",
    "anthropic",
    "openai-responses",
    "google",
    "google-cloud",
    "bedrock",
    "mistral",
    "cohere",
    "groq",
]

# Upper limits are there for a repository's file, which may set some of these without being trusted, and for slips of
# the keyboard. Far above what anybody wants.
Seconds = Annotated[float, Meta(ge=0, le=10_000_000)]
SomeSeconds = Annotated[float, Meta(gt=0, le=10_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]
UsdPerMillion = Annotated[float, Meta(ge=0, le=1_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What is surely the name of a variable or of an entry in the keyring, and not a key that begins oddly.
_REFERENCE = re.compile(r"\$[A-Z_][A-Z0-9_]*|keyring:[^/\s]+/\S+")


class ModelEntry(Struct, forbid_unknown_fields=True):
    """What you know of a model. What is not set is taken from the catalogue that `kedge models` shows."""

    #: As the provider calls it.
    id: Name
    #: Tokens of a request and its answer together.
    context_window: Tokens | None = None
    #: Tokens of one answer.
    output_tokens_max: Tokens | None = None
    #: US dollars per million tokens that are sent.
    input_price: UsdPerMillion | None = None
    #: US dollars per million tokens that come back.
    output_price: UsdPerMillion | None = None
    #: Whether it takes images.
    images: bool | None = None
    #: How much it may think before it answers. Not set: it is not asked to.
    thinking_tokens: Tokens | None = None


class Provider(Struct, forbid_unknown_fields=True):
    """Who serves models. `local/some-model` is some-model of [providers.local]."""

    #: The format it speaks; openai: chat completions, which most endpoints know.
    type: ProviderType = "openai"
    #: Empty: where the maker itself serves it.
    base_url: str = ""
    #: A literal, "$NAME" or "keyring:SERVICE/USER". Empty: the maker's own variable, if `base_url` is empty too.
    api_key: str = ""
    #: Its models. Where some are listed, only these can be used; else any can be named.
    models: list[ModelEntry] = []


class PermissionsConfig(Struct, forbid_unknown_fields=True):
    """Rules about tool calls, as `core.approvals` knows them."""

    #: What needs no approval.
    allow: list[str] = []
    #: What is denied, whatever else is said.
    deny: list[str] = []

    def rules(self, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> Rules:
        """With further ones, those of a Run for example. Invalid when one of them is not a rule."""
        rules = parse_rules((*self.allow, *allow), (*self.deny, *deny), _homes(os.path.expanduser("~")))
        return Rules(rules.allow, tuple(chain.from_iterable(map(_real, rules.deny))))


@lru_cache(maxsize=1)
def _homes(home: str) -> tuple[str, ...]:
    """The home directory as it is called, and as its links lead: rules are compared with real paths."""
    return tuple(dict.fromkeys((home, os.path.realpath(home)))) if os.path.isabs(home) else ()


@lru_cache(maxsize=PARSED_MAX)
def _real(rule: Rule) -> tuple[Rule, ...]:
    """A deny rule, and the same as the links in its path lead: rules are compared with real paths."""
    pattern = rule.pattern or ""
    literal = re.split(r"[*?]", pattern)[0].rpartition("/")[0] if has_wildcard(pattern) else pattern.rstrip("/")
    if not literal.startswith("/"):
        return (rule,)
    try:
        real = str(real_path(Path(literal)))
    except ToolFailed:  # more links than any system follows: nothing is behind them
        return (rule,)
    if real == literal or has_wildcard(real):
        return (rule,)
    return (rule, Rule(rule.tool, real + pattern[len(literal) :]))


class RunsConfig(Struct, forbid_unknown_fields=True):
    """How Runs go."""

    #: What becomes of a prompt to a busy session that does not say; auto: queue with a run_id of its own, else fold.
    when_busy: Literal["auto"] | WhenBusy = "auto"
    #: What becomes of the active Run of a server that was lost: it goes on from its last step, or ends.
    on_crash: OnCrash = "resume"
    #: Runs that may wait in one session.
    queue_runs_max: Annotated[int, Meta(ge=1, le=1_000)] = QUEUE_RUNS_MAX
    #: How long a stopped Run's clean-up may take before it ends with `cleanup: failed`.
    cleanup_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    #: Steps after which a Run ends, whatever the model still wants. Long work has dozens.
    max_steps: Annotated[int, Meta(ge=1, le=10_000)] = 200
    #: Attempts at one Step, the first included, while the provider says that trying again makes sense.
    retries_max: Annotated[int, Meta(ge=1, le=100)] = 5
    #: The pause before the second attempt, where the provider names none; it doubles with each further one.
    retry_s: Seconds = 1.0
    #: Part of the model's context window that may be full before the session is compacted.
    compact_at: Annotated[float, Meta(gt=0, le=1)] = 0.85
    #: The small model gives new sessions a title.
    titles: bool = True


class SandboxConfig(Struct, forbid_unknown_fields=True):
    """What the commands of an agent may write."""

    #: workspace-write: only in the workspace, the temporary directory and `writable`. See "The sandbox" below.
    mode: Literal["off", "workspace-write"] = "off"
    #: Further paths that commands may write, and whose Unix sockets they may use: absolute, or beginning with "~/".
    writable: list[str] = []


class ToolsConfig(Struct, forbid_unknown_fields=True):
    """What an agent has to work with."""

    #: Tools that the model is not offered.
    disabled: list[Name] = []
    #: Further variables of the server's environment that tool processes get, by name.
    environment: list[Name] = []


class McpServer(Struct, forbid_unknown_fields=True):
    """A server of tools: a command to start, or an address. Checked, and not used yet."""

    #: The program and its arguments.
    command: list[str] = []
    #: Its address, if it runs elsewhere.
    url: str = ""
    #: For the command; values are secrets.
    env: dict[str, str] = {}
    #: For the address; values are secrets.
    headers: dict[str, str] = {}
    #: Keeps the table and leaves the server out.
    disabled: bool = False


class ContextConfig(Struct, forbid_unknown_fields=True):
    """What a model is told of a workspace."""

    #: Further instruction files, looked for in each directory from the repository's root down.
    files: Annotated[list[Name], Meta(max_length=CONTEXT_FILES_MAX)] = []


class ServerConfig(Struct, forbid_unknown_fields=True):
    """How the server runs. Only your own file can say this."""

    #: A stream on which nothing happens gets a comment line this often.
    heartbeat_s: SomeSeconds = 15.0
    #: A stream that has taken nothing for so long is dropped.
    stall_s: SomeSeconds = 60.0
    #: A workspace is held this long for the first stream of the client that opened it.
    hold_s: Seconds = HOLD_S
    #: It is held this long for a client whose last stream broke off.
    grace_s: Seconds = GRACE_S
    #: A server that a client started exits so long after its last workspace is gone.
    idle_exit_s: Seconds = 60.0
    #: How long an orderly shutdown may wait for Runs, beyond their own clean-up.
    shutdown_s: Seconds = 5.0
    #: Entries of a workspace's log kept when the server starts; a reader from before gets a `gap`.
    log_entries_max: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 200_000


class Config(Struct, forbid_unknown_fields=True):
    """The whole file. Its tables follow."""

    #: The model, as provider/model. Empty: the built-in offline model.
    model: str = ""
    #: The one that gives sessions their titles. Empty: the model of the Run.
    small_model: str = ""
    providers: dict[Name, Provider] = field(default_factory=dict)
    permissions: PermissionsConfig = field(default_factory=PermissionsConfig)
    runs: RunsConfig = field(default_factory=RunsConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    mcp: dict[Name, McpServer] = field(default_factory=dict)
    context: ContextConfig = field(default_factory=ContextConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def masked(self) -> dict[str, Any]:
        """All of it as plain data, without secrets. What only names a secret (a variable, a keyring entry) stays."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for provider in plain["providers"].values():
            provider["api_key"] = masked_secret(provider["api_key"])
            provider["base_url"] = masked_url(provider["base_url"])
        for server in plain["mcp"].values():
            server["url"] = masked_url(server["url"])
            for table in ("env", "headers"):
                server[table] = {name: masked_secret(value) for name, value in server[table].items()}
        return plain


def masked_secret(value: str) -> str:
    return value if not value or _REFERENCE.fullmatch(value) else MASK


def masked_url(url: str) -> str:
    """Without a user's name and password and without a query: keys are put into both."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    if "@" not in parts.netloc and not parts.query and not parts.fragment:
        return url
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{MASK}@{host}" if "@" in parts.netloc else host
    return urlunsplit((parts.scheme, netloc, parts.path, MASK if parts.query else "", MASK if parts.fragment else ""))


def first_fault(config: Config) -> str | None:
    """What is wrong with it beyond types and limits: "where: what". Rules are checked apart (`PermissionsConfig`)."""
    for name, server in config.mcp.items():
        if bool(server.command) == bool(server.url):
            return f"mcp.{name}: it needs either a command or a url"
    for variable in config.tools.environment:
        if not _VARIABLE.fullmatch(variable):
            return f"tools.environment: {variable!r} is no name of a variable"
    for place in config.sandbox.writable:
        if not place.startswith(("/", "~/")):
            return f"sandbox.writable: {place!r} is neither absolute nor begins with ~/"
    for file in config.context.files:
        if PurePath(file).is_absolute() or ".." in PurePath(file).parts or "\0" in file:
            return f"context.files: {file!r} does not stay inside its directory"
    return None
