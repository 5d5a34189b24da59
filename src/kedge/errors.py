"""The exceptions of kedge, as a tree. Each has a code (stable, for programs) and an HTTP status.

    KedgeError
    ├── Invalid                 400  malformed request
    │   ├── EmptyPrompt         400
    │   ├── BadClientId         400
    │   ├── BadPosition         400
    │   ├── BadConfig           400
    │   └── WrongType           422  a field has the wrong type or an invalid value
    ├── Unauthorized            401
    ├── Forbidden               403  the browser or the user may not do this
    ├── BadOrigin               403
    ├── PromptBlocked           403  a hook of the user refuses the prompt
    ├── NotFound                404
    │   ├── WorkspaceNotFound · SessionNotFound · RunNotFound · MessageNotFound · RouteNotFound
    │   ├── AskNotFound · GrantNotFound · KeptCommandNotFound · PromptCommandNotFound · BrowserNotFound · UserNotFound
    ├── MethodNotAllowed        405
    ├── TooSlow                 408  the request did not arrive in time
    ├── Conflict                409  the current state does not allow the request
    │   ├── RunIdReused · LaneBusy · RunIsFolded · RunNotQueued · RunNotActive · RunIsStopping
    │   ├── AskWithdrawn · FilesChanged · UserExists
    │   ├── WorkspaceClosing · WorkspaceInUse · ClientNotAttached · ClientRetired · ServerNotIdle
    ├── LinkGone                410  the link was used or has expired
    ├── TooLarge                413
    ├── NotJson                 415
    ├── BadHost                 421
    ├── Busy                    429  a limit is reached; retry later
    │   ├── QueueFull · TooManyRuns · TooManyStreams
    ├── Unavailable             503
    │   ├── Starting · ShuttingDown · StoreUnavailable
    │   ├── ServedElsewhere · NodeUnreachable · NoNode · LeaseLost · NodeReplaced
    ├── DirectoryTimeout        504  a directory does not answer: its mount is dead
    ├── ModelFailed             502  the model's provider refused or failed
    │   └── ContextFull         502  the request exceeds the model's context window
    ├── StoreError              500  the store cannot answer correctly
    │   ├── VersionConflict · StoreDamaged · StoreLocked
    └── Unreachable             ---  raised by clients only: no server responded

The message states what failed and what to do. Users see it unchanged.
"""

from __future__ import annotations

from typing import ClassVar

#: The remedy for a damaged store.
RESTORE_BACKUP = "restore the data directory from a backup, or move it away to start a new one"


class KedgeError(Exception):
    """The base class. A plain `KedgeError` with status 500 is a bug in kedge."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    #: Seconds before a retry makes sense; sent as Retry-After.
    retry_after_s: ClassVar[int | None] = None

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else self.code


class Invalid(KedgeError):
    code, status = "invalid", 400


class EmptyPrompt(Invalid):
    code = "empty_prompt"


class BadClientId(Invalid):
    code = "bad_client_id"


class BadPosition(Invalid):
    code = "bad_position"


class BadConfig(Invalid):
    code = "bad_config"


class WrongType(Invalid):
    code, status = "wrong_type", 422


class Unauthorized(KedgeError):
    code, status = "unauthorized", 401


class Forbidden(KedgeError):
    code, status = "forbidden", 403


class BadOrigin(KedgeError):
    code, status = "bad_origin", 403


class PromptBlocked(KedgeError):
    code, status = "prompt_blocked", 403


class NotFound(KedgeError):
    code, status = "not_found", 404


class PromptCommandNotFound(NotFound):
    """The prompt cannot be accepted, since it begins with the name of a command that does not exist."""

    code = "prompt_command_not_found"


class WorkspaceNotFound(NotFound):
    code = "workspace_not_found"


class SessionNotFound(NotFound):
    code = "session_not_found"


class RunNotFound(NotFound):
    code = "run_not_found"


class MessageNotFound(NotFound):
    code = "message_not_found"


class AskNotFound(NotFound):
    code = "ask_not_found"


class GrantNotFound(NotFound):
    code = "grant_not_found"


class KeptCommandNotFound(NotFound):
    code = "kept_command_not_found"


class ExtensionNotFound(NotFound):
    code = "extension_not_found"


class BrowserNotFound(NotFound):
    code = "browser_not_found"


class UserNotFound(NotFound):
    code = "user_not_found"


class RouteNotFound(NotFound):
    code = "route_not_found"


class MethodNotAllowed(KedgeError):
    code, status = "method_not_allowed", 405

    def __init__(self, message: str, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        #: The methods of the path; sent as Allow.
        self.allowed = allowed


class TooSlow(KedgeError):
    code, status = "too_slow", 408


class Conflict(KedgeError):
    code, status = "conflict", 409


class RunIdReused(Conflict):
    code = "run_id_reused"


class LaneBusy(Conflict):
    code = "lane_busy"


class RunIsFolded(Conflict):
    code = "run_is_folded"


class RunNotQueued(Conflict):
    code = "run_not_queued"


class RunNotActive(Conflict):
    code = "run_not_active"


class RunIsStopping(Conflict):
    code = "run_is_stopping"


class AskWithdrawn(Conflict):
    code = "ask_withdrawn"


class FilesChanged(Conflict):
    code = "files_changed"


class UserExists(Conflict):
    code = "user_exists"


class WorkspaceClosing(Conflict):
    code = "workspace_closing"


class WorkspaceInUse(Conflict):
    code = "workspace_in_use"


class ClientNotAttached(Conflict):
    code = "client_not_attached"


class ClientRetired(Conflict):
    code = "client_retired"


class ServerNotIdle(Conflict):
    code = "server_not_idle"


class LinkGone(KedgeError):
    code, status = "link_gone", 410


class TooLarge(KedgeError):
    code, status = "too_large", 413


class NotJson(KedgeError):
    code, status = "not_json", 415


class BadHost(KedgeError):
    code, status = "bad_host", 421


class Busy(KedgeError):
    code, status, retry_after_s = "busy", 429, 1


class QueueFull(Busy):
    code = "queue_full"


class TooManyRuns(Busy):
    code = "too_many_runs"


class TooManyStreams(Busy):
    code = "too_many_streams"


class Unavailable(KedgeError):
    code, status, retry_after_s = "unavailable", 503, 1


class Starting(Unavailable):
    code = "starting"


class ShuttingDown(Unavailable):
    code = "shutting_down"


class ServedElsewhere(Unavailable):
    """Another node of the cluster serves the workspace. The server forwards such a request."""

    code = "served_elsewhere"

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class LeaseLost(Unavailable):
    """Another node may serve the workspace. Nothing was written."""

    code = "lease_lost"


class NodeReplaced(Unavailable):
    """Another process has registered with the name of this node."""

    code = "node_replaced"


class NodeUnreachable(Unavailable):
    code = "node_unreachable"


class NoNode(Unavailable):
    code = "no_node"


class StoreUnavailable(Unavailable):
    code = "store_unavailable"


class DirectoryTimeout(KedgeError):
    """Not Unavailable, which clients retry: a dead mount needs the user."""

    code, status = "directory_timeout", 504


class ModelFailed(KedgeError):
    code, status = "model_failed", 502

    def __init__(self, message: str = "", *, retryable: bool = False, wait_s: float | None = None) -> None:
        super().__init__(message)
        #: Whether the same request may succeed later.
        self.retryable = retryable
        #: The delay that the provider asked for; None: it gave none.
        self.wait_s = wait_s


class ContextFull(ModelFailed):
    code = "context_full"


class StoreError(KedgeError):
    code = "store_error"


class VersionConflict(StoreError):
    code = "version_conflict"


class StoreDamaged(StoreError):
    code = "store_damaged"

    def __init__(self, damage: str, remedy: str = "") -> None:
        super().__init__(f"{damage}; {remedy}" if remedy else damage)
        self.damage, self.remedy = damage, remedy


class StoreLocked(StoreError):
    code = "store_locked"


class Unreachable(KedgeError):
    code = "unreachable"


def _family(root: type[KedgeError]) -> list[type[KedgeError]]:
    return [root, *(error for child in root.__subclasses__() for error in _family(child))]


#: code -> class, for clients that turn an error body back into an exception.
BY_CODE: dict[str, type[KedgeError]] = {error.code: error for error in _family(KedgeError)}
