"""The table of keys and commands, used by the bindings, the help and the palette."""

from __future__ import annotations

from msgspec import Struct
from textual.binding import Binding

from kedge.client.safe_text import one_line


class KeyCommand(Struct, frozen=True):
    keys: str
    action: str
    description: str
    #: The section of the help.
    group: str
    #: Its name in the palette; empty: not a command.
    command: str = ""
    #: A key of a related action, which the palette shows for a command without a key.
    related_key: str = ""

    @property
    def shown(self) -> str:
        return " or ".join(key_name(key) for key in self.keys.split(",") if key)


KEYS: tuple[KeyCommand, ...] = (
    KeyCommand("escape", "stop", "stop the active run; again within 2 s: stop all runs of the session", "Runs"),
    KeyCommand("ctrl+o", "toggle_fold", "toggle: queue prompts, or fold them into the run", "Runs", "fold"),
    KeyCommand("f2", "approve('allow')", "allow once", "Approvals"),
    KeyCommand("f3", "approve('allow_session')", "allow in this session", "Approvals"),
    KeyCommand("f4", "approve('allow_always')", "always allow in this workspace", "Approvals"),
    KeyCommand("f5", "choose_rule", "choose or edit the rule to allow", "Approvals"),
    KeyCommand("f8", "deny", "deny; the text in the prompt is the reason", "Approvals"),
    KeyCommand("ctrl+up,alt+pageup", "ask_page(-1)", "scroll up in the approval", "Approvals"),
    KeyCommand("ctrl+down,alt+pagedown", "ask_page(1)", "scroll down in the approval", "Approvals"),
    KeyCommand("ctrl+a", "to_question", "answer the model's question (also tab)", "Approvals"),
    KeyCommand("ctrl+n", "new_session", "start a new session", "Sessions", "new"),
    KeyCommand("ctrl+s", "sessions", "find, preview, rename, fork or delete sessions", "Sessions", "sessions"),
    KeyCommand("ctrl+l", "models", "choose the model of this session", "Sessions", "model"),
    KeyCommand("shift+tab", "next_mode", "next mode: ask, edits, plan, auto", "Sessions"),
    KeyCommand("", "mode", "choose the mode: what passes without asking", "Sessions", "mode", related_key="shift+tab"),
    KeyCommand("", "grants", "list or revoke the rules of earlier answers", "Approvals", "grants"),
    KeyCommand("", "jobs", "show or end commands that continue after their run", "Sessions", "jobs"),
    KeyCommand("", "undo", "undo the file changes of the last run", "Sessions", "undo"),
    KeyCommand("", "rewind", "return to before an earlier prompt: conversation, files or both", "Sessions", "rewind"),
    KeyCommand("", "redo", "take back the last undo or rewind of files", "Sessions", "redo"),
    KeyCommand("", "fork", "continue in a copy of this session", "Sessions", "fork"),
    KeyCommand("", "export", "export this session to a Markdown file", "Sessions", "export"),
    KeyCommand("", "extensions", "show servers, skills, commands, agents and hooks", "Sessions", "extensions"),
    KeyCommand("", "phone", "continue on a phone: show the link to this session as a QR code", "Sessions", "phone"),
    KeyCommand("", "summarize", "replace the history that the model sees with a summary", "Sessions", "summarize"),
    KeyCommand("", "rename", "rename this session", "Sessions", "rename"),
    KeyCommand("pageup", "page_up", "scroll up", "Transcript"),
    KeyCommand("pagedown", "page_down", "scroll down", "Transcript"),
    KeyCommand("ctrl+end", "to_end", "go to the end and follow it", "Transcript"),
    KeyCommand("ctrl+r", "fold_all", "unfold or fold all reasoning and output", "Transcript", "unfold"),
    KeyCommand("ctrl+b", "side", "show or hide the side panel", "Transcript", "panel"),
    KeyCommand("ctrl+t", "next_theme", "next theme: dark, light, contrast, plain", "Transcript", "theme"),
    KeyCommand("ctrl+g", "editor", "edit the prompt in your editor", "General", "editor"),
    KeyCommand("ctrl+k", "palette", "all commands", "General", "commands"),
    KeyCommand("f1", "help", "all keys and commands (also ? in an empty prompt)", "General", "help"),
    KeyCommand("ctrl+q", "quit", "quit; runs continue on the server", "General", "quit"),
)

#: The action of a prompt command: its name goes to the prompt, where the user adds arguments.
TYPE_COMMAND = "type_command"
#: Its texts in the palette: one line. Characters.
PROMPT_COMMAND_CHARS_MAX = 200


def prompt_command(name: str, argument_hint: str, description: str) -> KeyCommand:
    text = one_line(f"{argument_hint} {description}", PROMPT_COMMAND_CHARS_MAX)
    return KeyCommand("", TYPE_COMMAND, text, "Prompts", f"/{one_line(name, PROMPT_COMMAND_CHARS_MAX)}")


#: The modes of a session, as commands of a palette.
MODE_COMMANDS: tuple[KeyCommand, ...] = tuple(
    KeyCommand("", f"set_mode('{mode}')", description, "Modes", mode)
    for mode, description in (
        ("ask", "changes and commands ask"),
        ("edits", "changes of files in the workspace pass, commands ask"),
        ("plan", "read-only; ends with a plan for you to accept"),
        ("auto", "changes and commands pass, in a sandbox without network"),
        ("yolo", "nothing asks; deny rules still hold"),
    )
)
#: The confirmation of yolo.
CONFIRM_COMMANDS: tuple[KeyCommand, ...] = (
    KeyCommand("", "keep_mode", "keep the present mode", "Modes", "no"),
    KeyCommand("", "ask_nothing", "the agent does everything in this session without asking", "Modes", "yes"),
)

#: Keys of the prompt, for the help. They are not bindings.
TYPED: tuple[tuple[str, str], ...] = (
    ("enter", "send"),
    ("ctrl-j, alt-enter, shift-enter", "insert a line break"),
    ("up, down", "earlier and later prompts, in the first and last line"),
    ("@", "attach a file"),
    ("/", "choose a command"),
    ("! command", "run a shell command; it becomes part of the session"),
    ("ctrl-c", "clear the prompt; up restores it"),
    ("tab", "move to the queue and back"),
)

#: Keys that answer an approval while the prompt is empty, for the help. They are not bindings.
ANSWER_KEYS: tuple[tuple[str, str], ...] = (
    ("y or 1, 2, 3, e, n or 4", "as F2, F3, F4, F5, F8, while the prompt is empty"),
    ("arrows, then enter", "choose an answer, while the prompt is empty"),
)

#: Keys of the queue: keys, action, description.
QUEUE_KEYS: tuple[tuple[str, str, str], ...] = (
    ("e", "edit", "edit in the prompt"),
    ("shift+up,K", "move_up", "move up"),
    ("shift+down,J", "move_down", "move down"),
    ("n", "make_next", "make next"),
    ("f", "fold_in", "fold into the active run"),
    ("delete,d", "remove", "remove; the text returns to the prompt"),
)

#: Keys of the session list: keys, action, description. The second key also works in the search field.
SESSION_KEYS: tuple[tuple[str, str, str], ...] = (
    ("enter", "open", "open"),
    ("r,ctrl+r", "rename", "rename"),
    ("d,ctrl+d", "delete", "delete, after confirmation"),
    ("f,ctrl+f", "fork", "fork: make a copy"),
    ("e,ctrl+e", "export", "export to a Markdown file"),
    ("u,ctrl+z", "undo", "undo the file changes of its last run, after confirmation"),
)


def bindings() -> list[Binding]:
    return [Binding(key.keys, key.action, key.description, show=False, priority=True) for key in KEYS if key.keys]


def key_name(key: str) -> str:
    return key.replace("escape", "esc").replace("+", "-")
