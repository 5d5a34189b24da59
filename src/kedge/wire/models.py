"""Bodies of requests, replies and events. Absent optional fields are omitted; unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from kedge.core.approvals import RULE_CHARS_MAX, Answer
from kedge.core.commands import WhenBusy
from kedge.core.events import Outcome, Reason
from kedge.core.modes import Mode
from kedge.core.records import Effort, OnApproval, OnDisconnect
from kedge.core.transcript import Role
from kedge.wire.job_models import JobBody
from kedge.wire.limits import MESSAGE_CHARS_MAX, MODEL_CHARS_MAX, OPTION_MAX, QUESTIONS_MAX, RULES_MAX
from kedge.wire.trace_models import TraceBody

# --- requests --------------------------------------------------------------------------------------------------------


class CreateWorkspace(Struct, kw_only=True):
    path: str = ""
    client_id: str = ""


class CreateSession(Struct, kw_only=True):
    title: str = ""


class UpdateSession(Struct, kw_only=True):
    title: str | None = None
    #: The default model of its Runs; empty: the configured one.
    model: Annotated[str, Meta(max_length=MODEL_CHARS_MAX)] | None = None
    effort: Effort | None = None
    #: Obeyed by the next tool call of the session.
    mode: Mode | None = None


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
    when_busy: WhenBusy | None = None
    on_disconnect: OnDisconnect = "continue"
    model: Annotated[str, Meta(max_length=MODEL_CHARS_MAX)] | None = None
    #: How much the model thinks; empty: its default. None: that of the session, if the Run uses its model.
    effort: Effort | None = None
    max_steps: Annotated[int, Meta(gt=0, le=OPTION_MAX)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=OPTION_MAX)] | None = None
    budget_usd: Annotated[float, Meta(gt=0, le=OPTION_MAX)] | None = None
    #: fail: a call that needs an approval ends the Run (`approval_needed`) instead of waiting.
    on_approval: OnApproval = "ask"
    #: Rules of this Run, in addition to the configured ones.
    allow: Annotated[list[str], Meta(max_length=RULES_MAX)] = []
    deny: Annotated[list[str], Meta(max_length=RULES_MAX)] = []
    #: The mode of the session while this Run is active; None: the session's own.
    mode: Mode | None = None
    #: The prompt may be `/name arguments`, which stands for a prompt command or a skill; `//` is a plain slash. Words
    #: `@server:uri` are resources of MCP servers, which are attached.
    expand: bool = False


class GrantPermission(Struct, kw_only=True):
    id: str
    action: Answer
    #: The binding of the request that the user saw; the answer is refused if it differs. Empty: not checked.
    binding: str = ""
    #: The reason of a denial, for the model.
    message: Annotated[str, Meta(max_length=MESSAGE_CHARS_MAX)] = ""
    #: The rules to grant: one of the offers, or edited by the user. They must cover this call. Empty: `grant`.
    rules: Annotated[list[Annotated[str, Meta(max_length=RULE_CHARS_MAX)]], Meta(max_length=RULES_MAX)] = []


class QuestionResponse(Struct, kw_only=True):
    request_id: str = ""
    selected_ids: list[str] = []
    fill_in_text: Annotated[str, Meta(max_length=MESSAGE_CHARS_MAX)] = ""


class AnswerQuestions(Struct, kw_only=True):
    batch_request_id: str = ""
    responses: Annotated[list[QuestionResponse], Meta(max_length=QUESTIONS_MAX)] = []


class CancelQuestions(Struct, kw_only=True):
    batch_request_id: str = ""


class RunShell(Struct, kw_only=True):
    command: str = ""


class EditPrompt(Struct, kw_only=True):
    prompt: str = ""
    #: The new attachments; None: keep the present ones.
    attachments: list[AttachmentBody] | None = None


class MoveInQueue(Struct, kw_only=True):
    before: str | None = None


class Control(Struct, kw_only=True):
    command: Literal["shutdown", "shutdown_if_idle"]
    force: bool = False


# --- replies ---------------------------------------------------------------------------------------------------------


class ErrorBody(Struct, kw_only=True):
    message: str
    code: str


class Ok(Struct, kw_only=True):
    ok: bool = True


class Health(Struct, kw_only=True):
    ok: bool = True
    #: `starting` until every workspace with live Runs was recovered, or failed to be.
    state: Literal["starting", "ready"] = "ready"


class Version(Struct, kw_only=True):
    version: str
    platform: str
    python_version: str
    pid: int = 0
    data_dir: str = ""


class KnownWorkspaceBody(Struct, kw_only=True):
    id: str
    path: str
    sessions: int
    live_runs: int
    created_at: int
    #: When a session was changed last; 0: no session.
    used_at: int
    is_open: bool
    directory: Literal["present", "gone", "unknown"]


class WorkspaceBody(Struct, kw_only=True):
    id: str
    path: str
    data_dir: str
    version: str
    config: dict[str, Any]
    #: Why the files are not in effect, with path, line and suggestion; empty: they are.
    config_problem: str = ""


class ModelBody(Struct, kw_only=True):
    """A model for sessions and Runs. Facts that are not known are omitted."""

    model: str  # provider/name
    provider: str
    #: Tokens.
    context_window: int | UnsetType = UNSET
    output_tokens_max: int | UnsetType = UNSET
    #: US dollars per million tokens.
    input_price: float | UnsetType = UNSET
    output_price: float | UnsetType = UNSET
    #: True: it accepts images.
    images: bool | UnsetType = UNSET
    is_default: bool = False
    #: It writes titles.
    is_small: bool = False
    description: str = ""


class UsageBody(Struct, kw_only=True):
    input_tokens: int
    output_tokens: int
    cost_usd: float


class TodoBody(Struct, kw_only=True):
    content: str
    status: Literal["pending", "in_progress", "completed"]
    active_form: str = ""


class SessionBody(Struct, kw_only=True):
    id: str
    parent_session_id: str
    title: str
    message_count: int
    usage: UsageBody
    created_at: int
    updated_at: int
    is_busy: bool
    attached_clients: int
    todos: list[TodoBody] = []
    summary_message_id: str = ""
    #: Empty: the configured one.
    model: str = ""
    effort: Effort = ""
    #: The Run whose child agent uses this session; empty: a session of the user.
    parent_run_id: str = ""
    #: What the agent may do without asking, at present. An agent's session has the mode of its parent.
    mode: Mode = "ask"
    #: The last kept commands, in the order of their start.
    jobs: list[JobBody] = []


class PartBody(Struct, kw_only=True):
    """One part of a message; `data` has the fields of its type.

    A tool_call has a `title`, a tool_result a `summary`: one line each, safe to print, made by the tool. `display` of a
    tool_call names what else to show: compact (nothing), text (the result), command (the input's `command` and the
    result) or agent (the child Run with the input's `prompt`). `metadata` of a tool_result is JSON text and may have a
    `diff` and an `exit_code`. No client needs to know the names of tools.
    """

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
    #: A summary: once complete, it replaces all messages before it in requests to a model. False if it failed.
    is_summary: bool = False


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
    #: Cancelled, and still cleaning up.
    stopping: bool
    steps: int
    #: Lower values start earlier.
    queue_order: int = 0
    #: Queued to join the active Run at its next Step.
    folds: bool = False
    #: The Run whose tool call started this one.
    parent_run_id: str | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    error: str | UnsetType = UNSET
    folded_into: str | UnsetType = UNSET
    started_at: int | UnsetType = UNSET
    ended_at: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    #: Size of the last request to the model and its reply; 0: not known. Tokens.
    context_tokens: int = 0
    #: Cancels, moves, folds and resumes, in order: at most the last 50.
    trace: list[TraceBody] | UnsetType = UNSET
    #: The user who submitted it. Omitted: the owner.
    author: str | UnsetType = UNSET
    #: The user who cancelled it. Omitted: the owner, or it was not cancelled.
    cancelled_by: str | UnsetType = UNSET
    #: No live node of the cluster has the directory of the workspace: the Run begins when one has.
    waits_for_node: bool | UnsetType = UNSET


class Receipt(Struct, kw_only=True):
    run_id: str
    session_id: str
    seq: int
    state: Literal["queued", "active"]
    position: int
    waits_for_node: bool | UnsetType = UNSET


class CoveredBody(Struct, kw_only=True):
    run_id: str
    seq: int
    was: Literal["queued", "active", "folded"]


class CancelReply(Struct, kw_only=True):
    #: Runs with a `seq` up to this one are covered. Null: there was none, or the cancel is not recorded yet.
    mark: int | None
    covered: list[CoveredBody]
    #: False, with status 202: the runs are being stopped, and the cancel is the next that is written to the session.
    recorded: bool = True
    #: The kept commands of the session that run: a cancel does not end them.
    jobs: list[JobBody] = []


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
    reason: Reason
    usage: UsageBody
    cleanup: Literal["clean", "failed"]
    error: str | UnsetType = UNSET
    folded_into: str | UnsetType = UNSET
    #: The user who cancelled it. Omitted: the owner.
    cancelled_by: str | UnsetType = UNSET


class AgentEvent(Struct, kw_only=True):
    """`error`: the Run failed. `retry`: a model request failed and is repeated after `wait_s`."""

    type: Literal["error", "retry"]
    error: str
    run_id: str
    session_id: str
    message: str = ""
    attempt: int | UnsetType = UNSET
    attempts_max: int | UnsetType = UNSET
    wait_s: float | UnsetType = UNSET


class PermissionRequest(Struct, kw_only=True):
    """A tool call that needs an approval."""

    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    tool_name: str
    action: str
    description: str
    path: str
    #: The complete parameters to show: the command, the diff.
    params: dict[str, Any]
    #: The rule that allow_session and allow_always grant; empty: they are available with `rules` only, or not at all.
    grant: str
    asked_at: int
    #: Digest of the exact call, for `GrantPermission.binding`.
    binding: str = ""
    #: A command: alternatives for `GrantPermission.rules`, the narrowest first. Each has one rule for every command of
    #: the line that needs one.
    offers: list[list[str]] = []


class PermissionNotification(Struct, kw_only=True):
    """The end of a pending approval: it was answered or withdrawn."""

    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    granted: bool
    #: allow, allow_session, allow_always or deny; empty if it was withdrawn.
    answer: str = ""
    #: The client; "rule" if a new grant or mode permits the call.
    answered_by: str = ""
    withdrawn: bool = False
    #: The user who answered. Omitted: the owner, a grant or the mode.
    author: str | UnsetType = UNSET


class QuestionOptionBody(Struct, kw_only=True):
    id: str
    label: str
    description: str = ""


class QuestionBody(Struct, kw_only=True):
    request_id: str
    question: str
    options: list[QuestionOptionBody]
    multiple: bool


class QuestionBatch(Struct, kw_only=True):
    """Questions of the model to the user."""

    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    questions: list[QuestionBody]
    asked_at: int


class QuestionNotification(Struct, kw_only=True):
    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    answered: bool
    answered_by: str = ""
    withdrawn: bool = False
    #: The user who answered. Omitted: the owner.
    author: str | UnsetType = UNSET


class Resolved(Struct, kw_only=True, omit_defaults=True):
    resolved: bool
    #: The answer that counts, if another client was first.
    answered: str = ""


class GrantBody(Struct, kw_only=True):
    id: str
    rule: str
    #: Empty: valid in every session of the workspace.
    session_id: str
    given_by: str
    created_at: int
    #: The user who gave it. Omitted: the owner.
    author: str | UnsetType = UNSET


class ShellReply(Struct, kw_only=True):
    exit_code: int
    output: str


class ChangedFileBody(Struct, kw_only=True):
    path: str
    change: Literal["created", "updated", "deleted"]


class ChangedFiles(Struct, kw_only=True):
    count: int
    files: list[ChangedFileBody]  # the last changed first, at most 500


class ProgressBody(Struct, kw_only=True):
    """The progress of a running tool call: a status line, or the end of its output. Not stored."""

    session_id: str
    run_id: str
    tool_call_id: str
    text: str


class DeltaBody(Struct, kw_only=True, omit_defaults=True):
    message_id: str
    part: int
    text: str
    #: Omitted for text, the usual kind.
    kind: Literal["text", "reasoning"] = "text"


class PresenceBody(Struct, kw_only=True):
    """The new number of clients whose current session this is."""

    session_id: str
    attached_clients: int


class Change(Struct, kw_only=True):
    type: Literal["created", "updated", "deleted"]
    payload: dict[str, Any]


class Envelope(Struct, kw_only=True):
    type: str
    payload: Change
