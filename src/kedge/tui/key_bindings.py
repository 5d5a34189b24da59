"""Every key and every command, once: what is bound, what the help shows, what the palette offers."""

from __future__ import annotations

from msgspec import Struct
from textual.binding import Binding


class KeyCommand(Struct, frozen=True):
    keys: str
    action: str
    does: str
    #: Where the help lists it.
    group: str
    #: What the palette and `/` call it; empty: it is no command.
    command: str = ""

    @property
    def shown(self) -> str:
        return " or ".join(spelled(key) for key in self.keys.split(",") if key)


KEYS: tuple[KeyCommand, ...] = (
    KeyCommand("escape", "stop", "stop the run shown; again within 2 s: everything accepted so far", "Runs"),
    KeyCommand("ctrl+o", "toggle_fold", "while a run works: send to the queue, or into the run", "Runs", "fold"),
    KeyCommand("f2", "approve('allow')", "allow what is asked, once", "Approvals"),
    KeyCommand("f3", "approve('allow_session')", "allow it in this session", "Approvals"),
    KeyCommand("f4", "approve('allow_always')", "allow it always in this workspace", "Approvals"),
    KeyCommand("f8", "deny", "deny it; what stands in the prompt is the reason", "Approvals"),
    KeyCommand("ctrl+up,alt+pageup", "ask_page(-1)", "scroll up in what is asked", "Approvals"),
    KeyCommand("ctrl+down,alt+pagedown", "ask_page(1)", "scroll down in what is asked", "Approvals"),
    KeyCommand("ctrl+a", "to_question", "answer the model's question (also tab)", "Approvals"),
    KeyCommand("ctrl+n", "new_session", "begin a new session", "Sessions", "new"),
    KeyCommand("ctrl+s", "sessions", "find, preview, rename, fork, delete sessions", "Sessions", "sessions"),
    KeyCommand("ctrl+l", "models", "choose the model of this session", "Sessions", "model"),
    KeyCommand("", "undo", "put back the files the last run changed", "Sessions", "undo"),
    KeyCommand("", "fork", "go on from here in a copy of this session", "Sessions", "fork"),
    KeyCommand("", "export", "write this session to a markdown file", "Sessions", "export"),
    KeyCommand("", "summarize", "replace what the model sees of this session by a summary", "Sessions", "summarize"),
    KeyCommand("", "rename", "give this session another title", "Sessions", "rename"),
    KeyCommand("pageup", "page_up", "scroll up", "Transcript"),
    KeyCommand("pagedown", "page_down", "scroll down", "Transcript"),
    KeyCommand("ctrl+end", "to_end", "to the end, and follow it", "Transcript"),
    KeyCommand("ctrl+r", "fold_all", "unfold all thoughts and outputs, or fold them", "Transcript", "unfold"),
    KeyCommand("ctrl+b", "side", "show or hide the side panel", "Transcript", "panel"),
    KeyCommand("ctrl+t", "next_theme", "the next theme: dark, light, contrast, plain", "Transcript", "theme"),
    KeyCommand("ctrl+g", "editor", "write the prompt in your editor", "Everything else", "editor"),
    KeyCommand("ctrl+k", "palette", "all commands", "Everything else", "commands"),
    KeyCommand("f1", "help", "this help (also ? in an empty prompt)", "Everything else", "help"),
    KeyCommand("ctrl+q", "quit", "leave; runs go on", "Everything else", "quit"),
)

#: What can be typed into the prompt: not bindings, but the help lists them.
TYPED: tuple[tuple[str, str], ...] = (
    ("enter", "send"),
    ("ctrl+j, alt+enter, shift+enter", "a new line"),
    ("up, down", "earlier prompts, from the first and the last line"),
    ("@", "complete the name of a file, and attach it"),
    ("/", "a command"),
    ("! command", "run it yourself; it becomes part of the session"),
    ("ctrl+c", "empty the prompt; up brings it back"),
    ("tab", "to the queue and back"),
)

#: In the list of queued prompts.
QUEUE_KEYS: tuple[tuple[str, str, str], ...] = (
    ("e", "edit", "edit it in the prompt"),
    ("shift+up,K", "move_up", "move it up"),
    ("shift+down,J", "move_down", "move it down"),
    ("n", "make_next", "make it next"),
    ("f", "fold_in", "fold it into the run that works"),
    ("delete,d", "remove", "remove it; its text goes back to the prompt"),
)

#: In the list of sessions: a letter in the list; the second key also while something is typed into the search.
SESSION_KEYS: tuple[tuple[str, str, str], ...] = (
    ("enter", "open", "open it"),
    ("r,ctrl+r", "rename", "give it another title"),
    ("d,ctrl+d", "delete", "delete it; asks once more"),
    ("f,ctrl+f", "fork", "make a copy that goes on from its end"),
    ("e,ctrl+e", "export", "write it to a markdown file"),
    ("u,ctrl+z", "undo", "put back the files its last run changed; asks once more"),
)


def bindings() -> list[Binding]:
    return [Binding(key.keys, key.action, key.does, show=False, priority=True) for key in KEYS if key.keys]


def spelled(key: str) -> str:
    return key.replace("escape", "esc").replace("ctrl+", "ctrl-").replace("shift+", "shift-")
