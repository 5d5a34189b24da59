"""The schema of the configuration: one Struct per table, with defaults and limits.

`load.py` reads the files. Secrets are references or literals here; `secrets.py` looks them up when they are used.
The comments above the settings are the text of docs/configuration.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Meta, Struct, field

from kedge.core.approvals import PARSED_MAX, Rule, Rules, parse_rules
from kedge.core.claims import GRACE_S, HOLD_S
from kedge.core.commands import QUEUE_RUNS_MAX, QUEUE_RUNS_PER_USER_MAX, OnCrash, WhenBusy
from kedge.core.hooks import HOOK_EVENTS, HookEvent, matcher_mistake
from kedge.core.modes import Mode
from kedge.core.patterns import has_wildcard
from kedge.core.rule_mistakes import check_rules
from kedge.errors import Invalid
from kedge.llm.provider_types import ProviderType
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.workspace_paths import real_path

#: Instruction files: each is searched for in every directory from the repository's root down. Items.
CONTEXT_FILES_MAX = 50
#: Hooks of one event: each is a process for each tool call. Items.
HOOKS_MAX = 20
MASK = "********"

# The upper limits guard against typing errors, and against a repository's file, which may set some of these untrusted.
Seconds = Annotated[float, Meta(ge=0, le=10_000_000)]
SomeSeconds = Annotated[float, Meta(gt=0, le=10_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]
UsdPerMillion = Annotated[float, Meta(ge=0, le=1_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: The name of a variable or of a keyring entry. Anything else may be a literal key.
_REFERENCE = re.compile(r"\$[A-Z_][A-Z0-9_]*|keyring:[^/\s]+/\S+")


#: The start of the source of a plugin. Other sources are absolute paths.
_PLUGIN = "plugin "
#: The fields of `HooksConfig`, in the order of the events.
HOOK_FIELDS = ("pre_tool_use", "post_tool_use", "user_prompt_submit", "stop", "asked")


class ModelEntry(Struct, forbid_unknown_fields=True):
    """A model of the provider. Values that are not set come from the built-in catalogue (see `kedge models`)."""

    #: The name of the model at the provider.
    id: Name
    #: Size of the context window (request and reply together), in tokens.
    context_window: Tokens | None = None
    #: Maximum number of tokens in one reply.
    output_tokens_max: Tokens | None = None
    #: US dollars per million input tokens.
    input_price: UsdPerMillion | None = None
    #: US dollars per million output tokens.
    output_price: UsdPerMillion | None = None
    #: Whether the model accepts images.
    images: bool | None = None
    #: Budget for extended thinking, in tokens, of runs without an effort. Default: no extended thinking.
    thinking_tokens: Tokens | None = None


class ProviderConfig(Struct, forbid_unknown_fields=True):
    """A model provider. `local/some-model` names some-model of [providers.local]."""

    #: API format. `openai` is the chat completions API, which most endpoints support.
    type: ProviderType = "openai"
    #: URL of the API. Default: the vendor's public endpoint.
    base_url: str = ""
    #: The key, "$VARIABLE" or "keyring:SERVICE/USER". Default: the vendor's usual variable, unless `base_url` is set.
    api_key: str = ""
    #: Allowed models. Default: any model name is accepted.
    models: list[ModelEntry] = []


class PermissionsConfig(Struct, forbid_unknown_fields=True):
    """Rules for tool calls. See "Rules" below."""

    #: Tool calls that need no approval.
    allow: list[str] = []
    #: Tool calls that are always denied. Deny rules override everything else.
    deny: list[str] = []

    def rules(self, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> Rules:
        """Return these rules and the given ones, such as those of a Run. Raises Invalid for an invalid rule."""
        rules = parse_rules((*self.allow, *allow), (*self.deny, *deny), _homes(os.path.expanduser("~")))
        return Rules(rules.allow, tuple(chain.from_iterable(map(_with_real_path, rules.deny))))


@lru_cache(maxsize=1)
def _homes(home: str) -> tuple[str, ...]:
    """Return the home directory as named and with links resolved: rules are compared with real paths."""
    return tuple(dict.fromkeys((home, os.path.realpath(home)))) if os.path.isabs(home) else ()


@lru_cache(maxsize=PARSED_MAX)
def _with_real_path(rule: Rule) -> tuple[Rule, ...]:
    """Return a deny rule, and the same rule with the links in its path resolved if that differs."""
    pattern = rule.pattern or ""
    literal = re.split(r"[*?]", pattern)[0].rpartition("/")[0] if has_wildcard(pattern) else pattern.rstrip("/")
    if not literal.startswith("/"):
        return (rule,)
    try:
        real = str(real_path(Path(literal)))
    except ToolFailed:  # too many links: the path does not exist
        return (rule,)
    if real == literal or has_wildcard(real):
        return (rule,)
    return (rule, Rule(rule.tool, real + pattern[len(literal) :]))


class RunsConfig(Struct, forbid_unknown_fields=True):
    """Defaults and limits of Runs."""

    #: How to handle a prompt to a busy session. `auto`: queue it if the client chose its run_id, otherwise fold it.
    when_busy: Literal["auto"] | WhenBusy = "auto"
    #: How to handle the active Run after a server crash: resume it after its last step, at most twice, or end it.
    on_crash: OnCrash = "resume"
    #: Maximum number of queued Runs in one session.
    queue_runs_max: Annotated[int, Meta(ge=1, le=1_000)] = QUEUE_RUNS_MAX
    #: Maximum number of queued Runs of one named user in one session. The owner is not limited.
    queue_runs_per_user_max: Annotated[int, Meta(ge=1, le=1_000)] = QUEUE_RUNS_PER_USER_MAX
    #: Maximum size of the queued prompts of one session, with their attachments, in MiB. Five of the largest fit.
    queue_mib_max: Annotated[int, Meta(ge=1, le=16 * 1024)] = 64
    #: Maximum seconds for the clean-up of a stopped Run. After that, the Run ends with `cleanup: failed`.
    cleanup_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    #: Maximum number of steps of a Run. Long tasks take dozens.
    max_steps: Annotated[int, Meta(ge=1, le=10_000)] = 200
    #: Maximum number of attempts per step, including the first, if the provider fails with a retryable error.
    retries_max: Annotated[int, Meta(ge=1, le=100)] = 5
    #: Seconds before the second attempt, unless the provider asks for another delay. Doubles with each attempt.
    retry_s: Seconds = 1.0
    #: Fraction of the model's context window in use at which the session is compacted.
    compact_at: Annotated[float, Meta(gt=0, le=1)] = 0.85
    #: Whether `small_model` writes titles for new sessions.
    titles: bool = True


class SandboxConfig(Struct, forbid_unknown_fields=True):
    """Write and network access of the agent's commands. See "The sandbox" below."""

    #: `workspace-write`: commands can write only to the workspace, the temporary directory and `writable`.
    mode: Literal["off", "workspace-write"] = "off"
    #: Additional paths that commands can write to and whose Unix sockets they can use: absolute, or starting with "~/".
    writable: list[str] = []
    #: Whether sandboxed commands can use the network. Not set: with `mode`, they can; commands that run only because
    #: they are sandboxed (mode `auto`, rules with a wildcard) cannot. Read-only commands never can.
    network: bool | None = None


class ToolsConfig(Struct, forbid_unknown_fields=True):
    """Tools of the model and their processes."""

    #: Tools that models cannot use.
    disabled: list[Name] = []
    #: Additional environment variables of the server that tool processes inherit, by name.
    environment: list[Name] = []


class McpServerConfig(Struct, forbid_unknown_fields=True):
    """An MCP server. Its tools are offered to models, and every call asks for approval. See docs/extending.md."""

    #: Program of a local server, which is started when its tools are first used.
    command: str = ""
    #: Arguments of the program.
    args: list[str] = []
    #: Environment of the program, beside PATH, HOME and the like. A value can be "$VARIABLE" or "keyring:SERVICE/USER",
    #: and can contain ${VARIABLE}.
    env: dict[Name, str] = {}
    #: Directory of the program. Default: the workspace.
    cwd: str = ""
    #: URL of a remote server, instead of `command`.
    url: str = ""
    #: Additional HTTP headers of requests to a remote server. Values are as those of `env`.
    headers: dict[Name, str] = {}
    #: `http` is streamable HTTP. Default: `stdio` with `command`, `http` with `url`.
    type: Literal["", "stdio", "http", "sse"] = ""
    #: Whether the server is not used.
    disabled: bool = False
    #: Seconds after which a tool call is cancelled.
    timeout_s: SomeSeconds = 300.0
    #: Tools to offer, by name. Default: all.
    tools: list[Name] = []
    #: Set by kedge: the repository's file or the plugin that has this server.
    source: str = ""


class ContextConfig(Struct, forbid_unknown_fields=True):
    """Instructions for the model."""

    #: Additional instruction files, searched for in each directory from the repository's root down.
    files: Annotated[list[Name], Meta(max_length=CONTEXT_FILES_MAX)] = []


class HookEntry(Struct, forbid_unknown_fields=True):
    """A command that runs at an event: `PreToolUse`, `PostToolUse`, `UserPromptSubmit`, `Stop` or `Notification`. See
    [extending.md](extending.md#hooks)."""

    #: Shell command. It reads the event as JSON from standard input.
    command: Annotated[str, Meta(min_length=1, max_length=4000)]
    #: Tools that a hook of a tool call runs for: names joined by a bar, with `*` for any text. Default: all tools.
    matcher: Annotated[str, Meta(max_length=500)] = ""
    #: Seconds after which the command is ended, which counts as a failure.
    timeout_s: Annotated[float, Meta(gt=0, le=600)] = 60.0
    #: Set by kedge: the repository's file or the plugin that has this hook.
    source: str = ""


_Hooks = Annotated[list[HookEntry], Meta(max_length=HOOKS_MAX)]


class HooksConfig(Struct, forbid_unknown_fields=True, rename=dict(zip(HOOK_FIELDS, HOOK_EVENTS, strict=True))):
    """Commands that run at events."""

    pre_tool_use: _Hooks = []
    post_tool_use: _Hooks = []
    user_prompt_submit: _Hooks = []
    stop: _Hooks = []
    asked: _Hooks = []

    @property
    def of_calls(self) -> bool:
        """True if there are hooks for tool calls."""
        return bool(self.pre_tool_use or self.post_tool_use)

    def of(self, event: HookEvent) -> list[HookEntry]:
        entries: list[HookEntry] = getattr(self, HOOK_FIELDS[HOOK_EVENTS.index(event)])
        return entries


class LanguageServerConfig(Struct, forbid_unknown_fields=True):
    """A language server: one of `kedge lsp list` by its name, with other settings, or another one."""

    #: The program: a name in PATH, or an absolute path outside of the workspace. Default: that of a known server.
    command: str = ""
    #: Arguments of the program. Default: those of a known server, if `command` is not set.
    args: Annotated[list[str], Meta(max_length=100)] = []
    #: File extensions that it serves, such as ".py". Default: those of a known server.
    extensions: Annotated[list[Name], Meta(max_length=100)] = []
    #: Whether the server is never started.
    disabled: bool = False
    #: Initialization options, as the documentation of the server names them.
    options: dict[str, Any] = {}
    #: Set by kedge: the repository's file or the plugin that has this server.
    source: str = ""


class LspConfig(Struct, forbid_unknown_fields=True):
    """Language servers: diagnostics after edits, definitions, references, renames. See docs/extending.md."""

    #: Whether language servers are used. Not set: where the machine can confine them. `true`: on any machine.
    enabled: bool | None = None
    #: Settings of single servers, as [lsp.servers.NAME].
    servers: dict[Name, LanguageServerConfig] = {}


class ServerConfig(Struct, forbid_unknown_fields=True):
    """Timeouts and limits of the server. Only your own file can set these."""

    #: Seconds between the heartbeats of an idle event stream.
    heartbeat_s: SomeSeconds = 15.0
    #: Seconds after which a connection whose client reads nothing of a reply or stream is closed.
    stall_s: SomeSeconds = 60.0
    #: Seconds that a workspace stays open for the first stream of the client that opened it.
    hold_s: Seconds = HOLD_S
    #: Seconds that a workspace stays open for a client whose last stream was lost.
    grace_s: Seconds = GRACE_S
    #: Seconds after which a server that a client started exits once its last workspace is closed.
    idle_exit_s: Seconds = 60.0
    #: Seconds that a shutdown waits for Runs to end, in addition to their clean-up.
    shutdown_s: Seconds = 5.0
    #: Maximum size of the queued prompts of all sessions, with their attachments, in MiB. Their texts are in memory.
    queue_mib_max: Annotated[int, Meta(ge=1, le=64 * 1024)] = 512
    #: Maximum number of active and queued Runs of one named user, in all sessions. The owner is not limited.
    live_runs_per_user_max: Annotated[int, Meta(ge=1, le=10_000)] = 50
    #: Log entries to keep per workspace; one with a tenth more is trimmed. Readers of older entries receive a `gap`.
    log_entries_max: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 200_000


class Config(Struct, forbid_unknown_fields=True):
    """Settings outside of any table."""

    #: Default model, as provider/model. Default: the built-in offline model.
    model: str = ""
    #: Model used for session titles. Default: the model of the Run.
    small_model: str = ""
    #: Mode of new sessions: `ask`, `edits`, `plan`, `auto` or `yolo`. Only your own file can set `auto` or `yolo`.
    mode: Mode = "ask"
    providers: dict[Name, ProviderConfig] = field(default_factory=dict)
    mcp: dict[Name, McpServerConfig] = field(default_factory=dict)
    permissions: PermissionsConfig = field(default_factory=PermissionsConfig)
    runs: RunsConfig = field(default_factory=RunsConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    hooks: HooksConfig = field(default_factory=HooksConfig)
    lsp: LspConfig = field(default_factory=LspConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def masked(self) -> dict[str, Any]:
        """Return plain data with secrets masked. References to secrets (variables, keyring entries) stay."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for provider in plain["providers"].values():
            provider["api_key"] = masked_secret(provider["api_key"])
            provider["base_url"] = masked_url(provider["base_url"])
        for server in plain["mcp"].values():
            server["url"] = masked_url(server["url"])
            for key in ("env", "headers"):
                server[key] = {name: masked_secret(value) for name, value in server[key].items()}
        return plain


def plugin_source(name: str, digest: str) -> str:
    """Return the `source` of the hooks and servers of a plugin, which differs between its versions."""
    return f"{_PLUGIN}{name} {digest[:16]}"


def plugin_of_source(source: str) -> str:
    """Return the name of the plugin; empty: it is not the source of a plugin."""
    return source.removeprefix(_PLUGIN).partition(" ")[0] if source.startswith(_PLUGIN) else ""


def origin_of(source: str) -> str:
    """Return the origin of a hook or server, as `core.extensions` defines it."""
    if name := plugin_of_source(source):
        return f"{_PLUGIN}{name}"
    return "repository" if source else "user"


def masked_secret(value: str) -> str:
    return value if not value or _REFERENCE.fullmatch(value) else MASK


def masked_url(url: str) -> str:
    """Mask user name, password, query and fragment: each may hold a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    if "@" not in parts.netloc and not parts.query and not parts.fragment:
        return url
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{MASK}@{host}" if "@" in parts.netloc else host
    return urlunsplit((parts.scheme, netloc, parts.path, MASK if parts.query else "", MASK if parts.fragment else ""))


def errors_in(config: Config) -> Iterator[tuple[tuple[str, str], str, str]]:
    """Yield the errors beyond types and limits: the keys, the value and the error."""
    for variable in config.tools.environment:
        if not _VARIABLE.fullmatch(variable):
            yield ("tools", "environment"), variable, "is not a valid variable name; write the name alone, such as CI"
    for path in config.sandbox.writable:
        if not path.startswith(("/", "~/")):
            yield ("sandbox", "writable"), path, "must be absolute or start with ~/"
    for file in config.context.files:
        if PurePath(file).is_absolute() or ".." in PurePath(file).parts or "\0" in file:
            yield ("context", "files"), file, "is outside of its directory; write a name, such as NOTES.md"
    for event in HOOK_EVENTS:
        for entry in config.hooks.of(event):
            if mistake := matcher_mistake(entry.matcher):
                yield ("hooks", event), entry.matcher, mistake
    for key, rules in (("allow", config.permissions.allow), ("deny", config.permissions.deny)):
        for rule in rules:
            try:
                PermissionsConfig(allow=[rule]).rules()
                check_rules((rule,) if key == "allow" else (), (rule,) if key == "deny" else ())
            except Invalid as error:
                yield ("permissions", key), rule, error.message.removeprefix(repr(rule)).strip().rstrip(".")
