"""The prompt: line breaks, history, files, shell commands, the external editor."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual._xterm_parser import XTermParser

from kedge.client.attachment_files import FILES_BYTES_MAX
from kedge.tui.app import KedgeApp
from kedge.tui.panels.file_completions import FileCompletions
from kedge.tui.panels.prompt_panel import NEW_LINE_KEYS, PromptPanel
from kedge.tui.panels.queue_panel import QueuePanel
from kedge.tui.screens.help_screen import HelpScreen
from kedge.tui.screens.palette_screen import PaletteScreen
from kedge.tui.state.drafts import DRAFTS_MAX, SAVED_DRAFT_CHARS_MAX, Drafts
from kedge.tui.state.prompt_history import HISTORY_MAX, SAVED_PROMPT_CHARS_MAX, PromptHistory
from tests.client.process import Server, has_reader
from tests.polling import until
from tests.tui.rig import Rig, rig

HOSTILE = Path(__file__).parents[1] / "extensions" / "hostile_mcp_server.py"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


async def attached(r: Rig) -> list[tuple[str, str]]:
    """Path and type of each file in the session, as the server has them."""
    messages = [
        message async for message in r.app.connection.client.all_messages(r.app.connection.id, r.app.session_id)
    ]
    parts: list[dict[str, Any]] = [part.data for message in messages for part in message.parts if part.type == "file"]
    return [(part["path"], part["mime_type"]) for part in parts]


def offered(r: Rig) -> list[str]:
    names = r.app.query_one(FileCompletions)
    assert names.display == (names.option_count > 0)
    return [str(names.get_option_at_index(index).prompt) for index in range(names.option_count)]


# --- lines ----------------------------------------------------------------------------------------------------------


async def test_enter_sends_and_other_keys_break_the_line(server: Server) -> None:
    async with rig(server) as r:
        await r.press("a", "ctrl+j", "b", "alt+enter", "c", "shift+enter", "d")
        assert r.prompt == "a\nb\nc\nd"
        await r.press("enter")
        assert r.prompt == ""
        await r.shows("You said: a")


@pytest.mark.parametrize("sent", ["\n", "\x1b\r", "\x1b[13;2u", "\x1b[13;3u", "\x1b[27;2;13~", "\x1b[27;3;13~"])
def test_line_break_sequences_of_terminals_are_recognised(sent: str) -> None:
    keys = [getattr(event, "key", "") for event in XTermParser().feed(sent)]
    assert len(keys) == 1
    assert keys[0] in NEW_LINE_KEYS


async def test_keys_after_enter_belong_to_the_next_prompt(server: Server) -> None:
    async with rig(server) as r:
        await r.type("script: say first")
        for key in ("enter", "n", "e", "x", "t"):  # before the screen is redrawn
            r.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await r.shows("first")
        await r.until(lambda: r.prompt == "next")


async def test_long_paste_scrolls_in_ten_lines(server: Server) -> None:
    async with rig(server, size=(60, 16)) as r:
        prompt = r.app.query_one(PromptPanel)
        assert prompt.size.height == 1
        await r.paste("one\rtwo\r\nthree")
        assert (r.prompt, prompt.size.height) == ("one\ntwo\nthree", 3)
        await r.press("ctrl+c")
        lines = "\n".join(f"line {n}" for n in range(30))
        await r.paste(lines)
        await r.until(lambda: prompt.size.height == 10)
        assert r.prompt == lines
        await r.shows("line 29")
        assert "line 19" not in r.text


async def test_pasted_text_is_harmless(server: Server) -> None:
    async with rig(server) as r:
        await r.paste("a\x1b]0;owned\x07b")
        assert r.prompt == "a␛]0;owned␇b"
        await r.shows("a␛]0;owned␇b")


async def test_slash_and_question_mark_need_an_empty_prompt(server: Server) -> None:
    async with rig(server) as r:
        await r.press("slash")
        await r.until(lambda: isinstance(r.app.screen, PaletteScreen))
        await r.press("escape")
        await r.until(lambda: not isinstance(r.app.screen, PaletteScreen))
        await r.press("question_mark")
        await r.until(lambda: isinstance(r.app.screen, HelpScreen))
        await r.press("escape")
        await r.until(lambda: not isinstance(r.app.screen, HelpScreen))
        await r.press("a", "slash", "question_mark")
        assert r.prompt == "a/?"


# --- history --------------------------------------------------------------------------------------------------------


async def test_up_and_down_browse_history_and_return_to_the_draft(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: say one")
        await r.send("script: say two\nin two lines")
        await r.type("a thought")
        await r.press("up")
        assert r.prompt == "script: say two\nin two lines"
        await r.press("up")
        assert r.prompt == "script: say two\nin two lines", "the cursor first moves to the first line"
        await r.press("up")
        assert r.prompt == "script: say one"
        await r.press("down", "down")
        assert r.prompt == "a thought"


async def test_ctrl_c_clears_the_prompt_and_up_restores_it(server: Server) -> None:
    async with rig(server) as r:
        await r.type("half a thought")
        await r.press("ctrl+c")
        assert r.prompt == ""
        assert "press ctrl-q to quit" not in r.text
        await r.press("ctrl+c")
        await r.shows("press ctrl-q to quit")
        await r.press("up")
        assert r.prompt == "half a thought"


async def test_history_survives_a_restart(server: Server, tmp_path: Path) -> None:
    async with rig(server, state_dir=tmp_path / "tui") as r:
        await r.send("script: say one\ntwo")
        await r.shows("one")
    (file,) = (tmp_path / "tui").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with rig(server, state_dir=tmp_path / "tui") as r:
        await r.press("up")
        assert r.prompt == "script: say one\ntwo"
    assert PromptHistory(tmp_path / "tui", "/another/workspace").earlier == []


def test_history_stays_small_and_survives_a_broken_line(tmp_path: Path) -> None:
    history = PromptHistory(tmp_path, "/work")
    for number in range(2 * HISTORY_MAX):
        history.add(f"prompt {number}")
    history.add("x" * (SAVED_PROMPT_CHARS_MAX + 1))
    assert len(history.earlier) == HISTORY_MAX
    (file,) = tmp_path.iterdir()
    with file.open("a") as opened:
        opened.write('{"not": "text"}\n"cut off')
    again = PromptHistory(tmp_path, "/work")
    assert again.earlier == [f"prompt {number}" for number in range(HISTORY_MAX + 2, 2 * HISTORY_MAX)]
    assert len(file.read_text().splitlines()) == HISTORY_MAX
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]


async def test_drafts_are_kept_per_session(server: Server) -> None:
    async with rig(server) as r:
        first = r.app.session_id
        await r.type("for the first")
        await r.press("ctrl+n")
        await r.until(lambda: r.app.session_id != first)
        await r.until(lambda: r.prompt == "")
        second = r.app.session_id
        await r.type("for the second")
        await r.app.sessions.show(first)
        assert r.prompt == "for the first"
        await r.app.sessions.show(second)
        assert r.prompt == "for the second"


async def test_draft_survives_a_restart_until_it_is_sent(server: Server, tmp_path: Path) -> None:
    async with rig(server, state_dir=tmp_path / "tui") as r:
        session_id = r.app.session_id
        await r.type("half a thought")
    async with rig(server, state_dir=tmp_path / "tui", session_id=session_id) as r:
        await r.until(lambda: r.prompt == "half a thought")
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "tui").iterdir())
        await r.press("enter")
        await r.shows("You said: half a thought")
    async with rig(server, state_dir=tmp_path / "tui", session_id=session_id) as r:
        await r.shows("You said: half a thought")
        assert r.prompt == ""


def test_drafts_of_two_processes_and_of_a_broken_file(tmp_path: Path) -> None:
    one, other = Drafts(tmp_path, "/work"), Drafts(tmp_path, "/work")
    one.put("s1", "one")
    other.put("s2", "two")
    one.save()
    other.save()
    again = Drafts(tmp_path, "/work")
    assert (again.of("s1"), again.of("s2"), Drafts(tmp_path, "/elsewhere").of("s1")) == ("one", "two", "")
    for number in range(2 * DRAFTS_MAX):
        again.put(f"n{number}", "x")
    again.put("long", "x" * (SAVED_DRAFT_CHARS_MAX + 1))
    again.save()
    newest = Drafts(tmp_path, "/work")
    assert [newest.of(f"n{number}") for number in (DRAFTS_MAX, 2 * DRAFTS_MAX - 1)] == ["x", "x"]
    assert (newest.of("s1"), newest.of("n0"), newest.of("long")) == ("", "", "")
    (file,) = tmp_path.iterdir()
    file.write_text("[broken")
    assert Drafts(tmp_path, "/work").of("n99") == ""


async def test_text_typed_before_the_server_starts_is_kept(server: Server) -> None:
    app = KedgeApp(str(server.home.workspace), server.host)
    async with app.run_test() as pilot:
        r = Rig(app, pilot)
        app.query_one(PromptPanel).insert("early")
        await r.until(lambda: app.is_following)
        await r.shows("enter: send")
        assert r.prompt == "early"


async def test_queued_prompt_is_not_edited_from_another_session(server: Server) -> None:
    async with rig(server) as r:
        first = r.app.session_id
        await r.send("script: hold never | say x")
        await r.shows("working")
        await r.send("script: say queued")
        await r.shows("1 queued")
        await r.type("my draft")
        r.app.query_one(QueuePanel).focus()
        await r.press("e")
        await r.until(lambda: r.prompt == "script: say queued")
        await r.press("ctrl+n")
        await r.until(lambda: r.app.session_id != first)
        await r.send("script: say in the new one")
        await r.shows("in the new one")
        await r.app.sessions.show(first)
        assert r.prompt == "my draft"
        assert [run.prompt for run in r.app.view.queue(first)] == ["script: say queued"]


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(server: Server) -> Path:
    root = server.home.workspace
    (root / "src" / "deep").mkdir(parents=True)
    (root / "notes.md").write_text("remember the milk")
    (root / "src" / "notation.py").write_text("x = 1")
    (root / "src" / "deep" / "other.py").write_text("y = 1")
    (root / "a picture.png").write_bytes(PNG)
    (root / ".hidden-notes").write_text("-")
    (root / "notes.log").write_text("-")
    (root / ".gitignore").write_text("*.log\n")
    return root


async def test_file_names_match_by_letters_without_ignored_files(server: Server, files: Path) -> None:
    async with rig(server) as r:
        await r.press("a", "space", "at", "n", "o")
        await r.until(lambda: offered(r) == ["notes.md", "src/notation.py"])
        await r.press("d", "e")
        await r.until(lambda: offered(r) == [])
        await r.press("backspace", "backspace", "backspace", "backspace", "S", "d", "e", "o")
        await r.until(lambda: offered(r) == ["src/deep/other.py"])
        await r.press("ctrl+c")
        await r.press("a", "at", "n")
        await r.until(lambda: r.prompt == "a@n")
        assert offered(r) == [], "a mail address is not a mention"


async def test_chosen_file_is_attached_when_the_prompt_is_sent(server: Server, files: Path) -> None:
    async with rig(server) as r:
        await r.type("look at ")
        await r.press("at", "n", "o")
        await r.until(lambda: offered(r) == ["notes.md", "src/notation.py"])
        await r.press("down", "tab")
        await r.until(lambda: r.prompt == "look at @src/notation.py ")
        await r.press("at", "p", "i", "c")
        await r.until(lambda: offered(r) == ["a picture.png"])
        await r.press("enter")
        await r.until(lambda: r.prompt == 'look at @src/notation.py @"a picture.png" ')
        assert offered(r) == []
        await r.press("enter")
        await r.shows("You said: look at @src/notation.py", "attached: src/notation.py", "attached: a picture.png")
        assert await attached(r) == [("src/notation.py", "text/x-python"), ("a picture.png", "image/png")]


async def test_resource_of_an_mcp_server_is_offered_and_attached(own_server: Server) -> None:
    home = own_server.home
    added = home.kedge(
        "mcp", "add", "notes", "--host", own_server.host, "--", sys.executable, str(HOSTILE), str(home.data)
    )
    assert added.code == 0, added
    async with rig(own_server) as r:
        await r.type("Explain ")
        await r.press("at", "n", "o", "t", "e", "s", ":")
        await r.until(lambda: len(offered(r)) == 4)
        await r.press("e", "s", "c")
        await r.until(lambda: offered(r) == ["notes:memo://escapes"])
        await r.press("tab")
        await r.until(lambda: r.prompt == "Explain @notes:memo://escapes ")
        await r.press("enter")
        await r.shows("You said: Explain @notes:memo://escapes", "attached: @notes:memo://escapes")
        assert await attached(r) == [("@notes:memo://escapes", "text/plain")]
        await r.type("And @notes:memo://none")
        await r.press("enter")
        await r.shows("lists no such resource")
        await r.until(lambda: r.prompt == "And @notes:memo://none")


async def test_esc_closes_file_names_and_stops_no_run(server: Server, files: Path) -> None:
    async with rig(server) as r:
        await r.send("script: hold names | say done")
        await r.shows("working")
        await r.press("at", "n")
        await r.until(lambda: "notes.md" in offered(r))
        await r.press("escape")
        assert offered(r) == []
        await r.press("o")
        assert (r.prompt, offered(r)) == ("@no", []), "closed until the next mention"
        active = r.app.view.active(r.app.session_id)
        assert active is not None
        assert not active.stopping
        await r.press("space", "at", "n")
        await r.until(lambda: "notes.md" in offered(r))
        server.home.endpoint.release("names")
        await r.shows("done")


async def test_earlier_prompt_offers_no_file_names(server: Server, files: Path) -> None:
    async with rig(server) as r:
        await r.send("first")
        await r.type("say @no")
        await r.until(lambda: offered(r) != [])
        await r.press("ctrl+c")
        await r.until(lambda: offered(r) == [])
        await r.press("up")
        await r.until(lambda: r.prompt == "say @no")
        await r.press("up")
        await r.until(lambda: r.prompt == "first")
        assert offered(r) == []


async def test_only_workspace_files_are_attached_by_name(server: Server, files: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (files / "link").symlink_to(tmp_path / "secret")
    async with rig(server) as r:
        await r.send(f"see @notes.md, @{tmp_path}/secret @link @src @none me@notes.md (@src/deep/other.py)")
        await r.shows("You said: see")
        assert await attached(r) == [("notes.md", "text/markdown")]


async def test_dropped_files_become_attachments(server: Server, files: Path, tmp_path: Path) -> None:
    outside = tmp_path / "a shot.png"
    outside.write_bytes(PNG)
    async with rig(server) as r:
        await r.type("compare")
        await r.paste(f"{shlex.quote(str(outside))} {files}/notes.md")
        assert r.prompt == f'compare @"{outside}" @notes.md '
        await r.paste(f"file://{files}/a%20picture.png")
        assert r.prompt.endswith('@notes.md @"a picture.png" ')
        await r.press("enter")
        await r.shows("You said: compare")
        assert await attached(r) == [
            (str(outside), "image/png"),
            ("notes.md", "text/markdown"),
            ("a picture.png", "image/png"),
        ]


@pytest.mark.parametrize("text", ["/etc", "/etc/hostname is a file", "/none/at/all", "'/etc/passwd"])
async def test_other_pastes_are_text(server: Server, text: str) -> None:
    async with rig(server) as r:
        await r.paste(text)
        assert r.prompt == text


async def test_too_large_files_leave_the_text_in_the_prompt(server: Server, files: Path) -> None:
    with (files / "large.bin").open("wb") as file:
        file.truncate(FILES_BYTES_MAX + 1)
    async with rig(server) as r:
        await r.send("what is @large.bin about?")
        await r.shows("large.bin is too large")
        assert r.prompt == "what is @large.bin about?"
        assert await r.app.connection.client.session_runs(r.app.connection.id, r.app.session_id) == []


# --- shell commands -------------------------------------------------------------------------------------------------


async def test_shell_command_becomes_part_of_the_session(server: Server) -> None:
    fifo = server.home.workspace / "fifo"
    os.mkfifo(fifo)
    async with rig(server) as r:
        await r.shows("enter: send")
        await r.type("!cat fifo; exit 3")
        await r.shows("enter: run in your shell")
        await r.press("enter")
        await r.shows("● running !cat fifo; exit 3", "esc: stop it", "enter: send")
        await asyncio.to_thread(fifo.write_text, "out of the fifo\n")
        await r.shows("! cat fifo; exit 3", "exit 3", "out of the fifo")
        await r.shows_no("● running")


async def test_esc_ends_the_shell_command_and_spares_the_run(server: Server) -> None:
    fifo = server.home.workspace / "fifo"
    os.mkfifo(fifo)
    async with rig(server) as r:
        await r.send("script: hold spared | say done")
        await r.shows("working")
        await r.send("!sleep 1000 0<>fifo")
        await r.shows("● running !sleep 1000 0<>fifo")
        await until(lambda: has_reader(fifo))
        await r.press("escape")
        await r.shows_no("● running")
        await until(lambda: not has_reader(fifo))
        await r.shows("esc: stop this run")
        server.home.endpoint.release("spared")
        await r.shows("done")
        await r.send("script: say later")
        await r.shows("later")
        assert "cancelled" not in r.text


# --- the editor -----------------------------------------------------------------------------------------------------


async def _run_here(command: list[str]) -> int:
    """Run the editor without a terminal."""
    return await asyncio.to_thread(subprocess.call, command)


def _editor(directory: Path, script: str) -> str:
    path = directory / "an editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return shlex.quote(str(path))


async def test_prompt_is_edited_in_the_editor(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Like many editors: a new file in place of the old one.
    script = 'test "$1" = --wait && sed "s/draft/letter/" "$2" > "$2.new" && mv "$2.new" "$2"'
    monkeypatch.setenv("VISUAL", f"{_editor(tmp_path, script)} --wait")
    async with rig(server) as r:
        r.app.run_editor = _run_here
        await r.type("a draft\nof mine")
        await r.press("ctrl+g")
        await r.until(lambda: r.prompt == "a letter\nof mine")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo x > $1; exit 1", "an editor exited with code 1"),
        ("rm $1", "Cannot read the edited prompt"),
    ],
)
async def test_failed_editor_leaves_the_prompt_unchanged(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", _editor(tmp_path, script))
    async with rig(server) as r:
        r.app.run_editor = _run_here
        await r.type("a draft")
        await r.press("ctrl+g")
        await r.shows(message)
        assert r.prompt == "a draft"
        monkeypatch.setenv("EDITOR", "/none/such")
        await r.press("ctrl+g")
        await r.shows("Cannot start")
        assert r.prompt == "a draft"
