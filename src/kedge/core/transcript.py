"""Messages and their parts, and the conversion of a stored transcript into a request for a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.reversal import Reversal, reversal_prompt

#: Messages of a session that a Run reads for its requests. Items.
HISTORY_MESSAGES_MAX = 10_000

Role = Literal["user", "assistant", "tool", "system"]
FinishReason = Literal["end_turn", "max_tokens", "tool_use", "canceled", "error", "content_filter", "unknown"]
#: The details of a tool call that a front end shows besides its title and the summary of its result. A diff in the
#: metadata is shown for every kind.
#: compact: nothing unless the user unfolds it. text: the beginning of the result. command: the input's `command` if it
#: has several lines, and the beginning of the result. agent: the child Run with the input's `prompt`, and its answer.
Display = Literal["compact", "text", "command", "agent"]

#: How a tool call ended. returned: the tool returned a result or an error. cut_off: it was stopped before it returned,
#: and may have had an effect. not_run: it did not begin, because it was not approved or its Run ended first.
CallEnd = Literal["returned", "cut_off", "not_run"]


class Text(Struct, frozen=True):
    kind: ClassVar[str] = "text"
    #: For the model.
    text: str
    #: The prompt command that the user typed, which `text` is the expansion of. Empty: `text` is shown to users.
    command: str = ""


class Reasoning(Struct, frozen=True):
    kind: ClassVar[str] = "reasoning"
    thinking: str
    signature: str = ""
    started_at: int = 0
    finished_at: int = 0


class ToolCall(Struct, frozen=True):
    kind: ClassVar[str] = "tool_call"
    id: str
    name: str
    #: JSON text as the model wrote it; it may be malformed.
    input: str
    finished: bool = True
    #: One line for users: "$ pytest -q", "view src/app.py". Escaped and cut by the engine. May be empty.
    title: str = ""
    display: Display = "compact"


class ToolResult(Struct, frozen=True):
    kind: ClassVar[str] = "tool_result"
    tool_call_id: str
    name: str
    content: str
    #: JSON text for clients: the diff of an edit, the exit code of a command. Not sent to models.
    metadata: str = ""
    is_error: bool = False
    #: Images for the model, as data URLs.
    images: tuple[str, ...] = ()
    #: One line for users: "exit 1, 0.2 s", "+3 -1", "not run: denied". Escaped and cut by the engine. May be empty.
    summary: str = ""
    end: CallEnd = "returned"
    #: When its call began; 0: it did not, or that is not known because its process was lost.
    started_at: int = 0


class FinishPart(Struct, frozen=True):
    kind: ClassVar[str] = "finish"
    reason: FinishReason
    time: int
    message: str = ""
    details: str = ""


class AttachedFile(Struct, frozen=True):
    """A file attached to a prompt. Its content is stored once, under its digest."""

    kind: ClassVar[str] = "file"
    path: str
    mime_type: str
    #: Bytes.
    size: int
    digest: str


class Binary(Struct, frozen=True):
    """An attached file with its content, in a request to a model. Never stored. `data` is base64."""

    kind: ClassVar[str] = "binary"
    path: str
    mime_type: str
    data: str


class ImageUrl(Struct, frozen=True):
    kind: ClassVar[str] = "image_url"
    url: str
    detail: str = ""


#: Limit of a command that the user runs (`!ls`): the user waits for it. Seconds.
USER_COMMAND_S_MAX = 120.0


class ShellCommand(Struct, frozen=True):
    kind: ClassVar[str] = "shell_command"
    command: str
    output: str
    exit_code: int


Part = (
    Text | Reasoning | ToolCall | ToolResult | FinishPart | AttachedFile | Binary | ImageUrl | ShellCommand | Reversal
)

#: The parts that can be stored.
PART_TYPES: dict[str, type[Part]] = {
    part.kind: part
    for part in (Text, Reasoning, ToolCall, ToolResult, FinishPart, AttachedFile, ImageUrl, ShellCommand, Reversal)
}

P = TypeVar("P", bound=Part)


class Message(Struct, frozen=True):
    id: str
    session_id: str
    role: Role
    parts: tuple[Part, ...]
    created_at: int
    updated_at: int
    run_id: str = ""
    model: str = ""
    provider: str = ""
    #: A summary of the messages before it, or the request for one. Only the current summary of a session is sent to
    #: models.
    is_summary: bool = False

    def all(self, kind: type[P]) -> list[P]:
        return [part for part in self.parts if isinstance(part, kind)]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.all(Text))

    @property
    def finish(self) -> FinishPart | None:
        return next(iter(self.all(FinishPart)), None)

    def closed(self, finish: FinishPart) -> Message:
        """Return this message with a finish part. An existing one stays: the first wins.

        Half a summary replaces no message and is not an answer, so a summary that failed has no text."""
        if self.finish:
            return self
        parts = () if self.is_summary and finish.reason != "end_turn" else self.parts
        return replace(self, parts=(*parts, finish), updated_at=finish.time)


class Tail(Struct, frozen=True):
    """Text that a streaming message gained since it was last stored, so that storing it takes linear time."""

    message_id: str
    session_id: str
    part: int
    kind: Literal["text", "reasoning"]
    text: str


def with_tails(message: Message, tails: list[Tail]) -> Message:
    """Return the message with its tails appended."""
    parts = list(message.parts)
    for tail in tails:
        while len(parts) <= tail.part:
            parts.append(Text("") if tail.kind == "text" else Reasoning(""))
        match parts[tail.part]:
            case Text(text=text):
                parts[tail.part] = Text(text + tail.text)
            case Reasoning() as reasoning:
                parts[tail.part] = replace(reasoning, thinking=reasoning.thinking + tail.text)
            case _:
                raise AssertionError(f"a tail cannot add to part {tail.part} of message {message.id}")
    return replace(message, parts=tuple(parts))


def chars_of(message: Message) -> int:
    """Return the approximate size of the message in a request."""
    chars = 0
    for part in message.parts:
        match part:
            case Text(text=text) | Reasoning(thinking=text) | ToolCall(input=text) | Binary(data=text):
                chars += len(text)
            case AttachedFile(size=size):
                chars += (size + 2) // 3 * 4  # as base64
            case ToolResult(content=text, images=pictures):
                chars += len(text) + sum(map(len, pictures))
            case ShellCommand(command=command, output=text):
                chars += len(command) + len(text)
            case ImageUrl(url=text):
                chars += len(text)
            case Reversal():
                chars += len(reversal_prompt(part))
            case _:
                pass
    return chars


CUT_OFF = "This call was cut off before it returned a result. It may or may not have had an effect."
NOT_RUN = "Not run: the run ended before this call began. It had no effect."
#: For a model only, for example in a fork that ends between a call and its result.
NO_RESULT = "No result of this call was recorded."


def result_without_return(call: ToolCall, *, has_begun: bool) -> ToolResult:
    """Return the result of a call that did not return one before its Run ended."""
    if has_begun:
        return ToolResult(call.id, call.name, CUT_OFF, is_error=True, summary="cut off", end="cut_off")
    return ToolResult(call.id, call.name, NOT_RUN, is_error=True, summary="not run", end="not_run")


SUMMARY = "This is a summary of the conversation so far. The earlier messages are not included.\n\n"


def for_model(messages: Sequence[Message], summary_message_id: str = "") -> list[Message]:
    """Return the messages for a model, valid for every provider in spite of cancels, errors and crashes.

    - messages before a summary are omitted, and the summary becomes a message of the user;
    - a failed attempt of a Step that was retried in the same Run is omitted;
    - an answer that was cancelled is omitted, and so are its prompts. Earlier Steps of its Run may have had effects:
      they are sent, with the prompt that led to them;
    - a tool call without a result gets an error result, and a result without its call is omitted, since providers
      refuse both;
    - messages without content for a model are omitted.
    """
    return list(for_model_reversed(messages, summary_message_id))[::-1]


def for_model_reversed(messages: Sequence[Message], summary_message_id: str = "") -> Iterator[Message]:
    """Yield the messages for a model, newest first: one pass, which meets each result before its call.

    The caller of a long history gives other tasks a turn in between."""
    #: Run -> call -> result, since the Run's next Step: some providers restart the numbering of calls in each Step.
    results: dict[str, dict[str, ToolResult]] = {}
    #: Runs with a later assistant message.
    continued: set[str] = set()
    #: Runs with a cancelled answer, until an earlier Step or the prompt is met.
    cancelled: set[str] = set()
    for message in reversed(messages):
        if summary_message_id and message.id == summary_message_id:
            yield replace(message, role="user", parts=(Text(SUMMARY + message.text),), is_summary=False)
            return
        is_omitted = message.is_summary
        if message.role == "assistant":
            end = message.finish.reason if message.finish else None
            if end == "canceled" and not message.all(ToolCall):
                cancelled.add(message.run_id)
                is_omitted = True
            if not message.is_summary:
                is_omitted |= end == "error" and message.run_id in continued  # a failed attempt
                continued.add(message.run_id)
        elif message.role == "user" and message.run_id and cancelled:
            # While its answer is searched for, a prompt of another Run is one that was folded into it.
            cancelled.discard(message.run_id)
            is_omitted = True
        if is_omitted or not _has_content(message):
            continue
        if message.role != "assistant":
            of_run = results.setdefault(message.run_id, {})
            for result in reversed(message.all(ToolResult)):
                of_run.setdefault(result.tool_call_id, result)
            if message.role != "tool":
                yield message
            continue
        cancelled.discard(message.run_id)
        of_step = results.pop(message.run_id, {})
        if calls := message.all(ToolCall):
            answers = tuple(
                of_step.get(call.id) or ToolResult(call.id, call.name, NO_RESULT, is_error=True) for call in calls
            )
            yield replace(message, id=f"{message.id}-results", role="tool", parts=answers)
        yield message


def _has_content(message: Message) -> bool:
    return any(not isinstance(part, FinishPart | Reasoning) and part != Text("") for part in message.parts)
