"""Bodies of requests and replies. Optional fields that are absent are left out; unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from kedge.core.commands import WhenBusy
from kedge.core.events import Outcome
from kedge.core.records import OnDisconnect
from kedge.core.transcript import Role
from kedge.wire.limits import MODEL_CHARS_MAX, OPTION_MAX

# --- what clients send ----------------------------------------------------------------------------------------------


class CreateWorkspace(Struct, kw_only=True):
    path: str = ""
    client_id: str = ""


class CreateSession(Struct, kw_only=True):
    title: str = ""


class UpdateSession(Struct, kw_only=True):
    title: str


class CurrentSession(Struct, kw_only=True):
    session_id: str = ""


class ForkSession(Struct, kw_only=True):
    message_id: str = ""


class AttachmentBody(Struct, kw_only=True):
    file_path: str = ""
    file_name: str = ""
    mime_type: str = "application/octet-stream"
    content: bytes = b""


class SubmitPrompt(Struct, kw_only=True, omit_defaults=True):
    session_id: str = ""
    prompt: str = ""
    run_id: str = ""
    attachments: list[AttachmentBody] | None = None
    when_busy: WhenBusy | Literal["auto"] | None = None
    on_disconnect: OnDisconnect = "continue"
    model: Annotated[str, Meta(max_length=MODEL_CHARS_MAX)] | None = None
    max_steps: Annotated[int, Meta(gt=0, le=OPTION_MAX)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=OPTION_MAX)] | None = None
    budget_usd: Annotated[float, Meta(gt=0, le=OPTION_MAX)] | None = None


class EditRun(Struct, kw_only=True):
    prompt: str = ""


class MoveRun(Struct, kw_only=True):
    before: str | None = None


class Control(Struct, kw_only=True):
    command: Literal["shutdown", "shutdown_if_idle"]
    force: bool = False


# --- what the server answers ----------------------------------------------------------------------------------------


class ErrorBody(Struct, kw_only=True):
    message: str
    code: str


class Ok(Struct, kw_only=True):
    ok: bool = True


class Version(Struct, kw_only=True):
    version: str
    commit: str
    build_id: str
    platform: str
    python_version: str
    #: Kept for clients of the reference system, which expect the field.
    go_version: str = ""
    pid: int = 0
    data_dir: str = ""


class WorkspaceBody(Struct, kw_only=True):
    id: str
    path: str
    data_dir: str
    version: str
    config: dict[str, Any]
    yolo: bool = False
    debug: bool = False
    env: list[str] = []
    channels: list[str] = []
    skills: list[str] = []


class UsageBody(Struct, kw_only=True):
    input_tokens: int
    output_tokens: int
    cost_usd: float


class SessionBody(Struct, kw_only=True):
    id: str
    parent_session_id: str
    title: str
    message_count: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    created_at: int
    updated_at: int
    is_busy: bool
    attached_clients: int
    todos: list[dict[str, Any]] = []
    summary_message_id: str = ""


class PartBody(Struct, kw_only=True):
    type: str
    data: dict[str, Any]


class MessageBody(Struct, kw_only=True):
    id: str
    role: Role
    session_id: str
    run_id: str
    parts: list[PartBody]
    model: str
    provider: str
    created_at: int
    updated_at: int


class RunBody(Struct, kw_only=True):
    run_id: str
    session_id: str
    workspace_id: str
    seq: int
    state: Literal["queued", "active", "ended"]
    prompt: str
    accepted_at: int
    usage: UsageBody
    cleanup: Literal["clean", "failed"]
    #: Told to stop; it ends when its clean-up is done.
    stopping: bool
    steps: int
    outcome: Outcome | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    folded_into: str | UnsetType = UNSET
    started_at: int | UnsetType = UNSET
    ended_at: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    text: str | UnsetType = UNSET


class Receipt(Struct, kw_only=True):
    run_id: str
    session_id: str
    seq: int
    state: Literal["queued", "active"]
    position: int


class CoveredBody(Struct, kw_only=True):
    run_id: str
    seq: int
    was: Literal["queued", "active", "folded"]


class CancelReply(Struct, kw_only=True):
    mark: int | None
    covered: list[CoveredBody]


class AgentInfo(Struct, kw_only=True):
    is_ready: bool
    is_busy: bool
    model: dict[str, Any]
    model_cfg: dict[str, Any]


class SearchHitBody(Struct, kw_only=True):
    session_id: str
    message_id: str
    session_title: str
    snippet: str


class RunComplete(Struct, kw_only=True):
    """The payload of `run_complete`: exactly one per Run."""

    session_id: str
    run_id: str
    message_id: str
    text: str
    outcome: Outcome
    reason: str
    usage: UsageBody
    cleanup: Literal["clean", "failed"]
    error: str | UnsetType = UNSET
    cancelled: bool | UnsetType = UNSET
    folded_into: str | UnsetType = UNSET


class AgentEvent(Struct, kw_only=True):
    type: Literal["error"]
    error: str
    run_id: str
    session_id: str
    message: str = ""


class DeltaBody(Struct, kw_only=True, omit_defaults=True):
    message_id: str
    part: int
    text: str
    #: Left out for text, which most are.
    kind: Literal["text", "reasoning"] = "text"


class GapBody(Struct, kw_only=True):
    reason: Literal["evicted", "epoch"]
    position: int


#: `type` of an envelope on the stream.
EventType = Literal["message", "session", "run", "run_complete", "agent_event", "delta", "gap"]


class Change(Struct, kw_only=True):
    type: Literal["created", "updated", "deleted"]
    payload: dict[str, Any]


class Envelope(Struct, kw_only=True):
    type: str
    payload: Change
