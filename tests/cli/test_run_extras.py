"""Attachments and user commands of `kedge run`, and `kedge init`."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from kedge.client import attachment_files
from kedge.testing import HostedEndpoint
from tests.client.process import Home, Server

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def first_message(server: Server) -> Any:
    (session,) = json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out)
    shown = server.home.kedge("sessions", "show", "--host", server.host, "--json", session["id"])
    return json.loads(shown.out)["messages"][0]


def test_files_are_sent_by_content_with_their_type(server: Server) -> None:
    (server.home.workspace / "notes.md").write_text("remember the milk")
    (server.home.workspace / "deep").mkdir()
    (server.home.workspace / "deep" / "data").write_text('{"a": 1}')
    done = server.home.kedge("run", "--host", server.host, "-a", "notes.md", "--attach", "deep/data", "what is it?")
    assert (done.code, done.err) == (0, "")
    files = [part["data"] for part in first_message(server)["parts"] if part["type"] == "file"]
    assert [(file["path"], file["mime_type"]) for file in files] == [
        ("notes.md", "text/markdown"),
        ("deep/data", "text/plain"),
    ]
    assert files[0]["digest"] == hashlib.sha256(b"remember the milk").hexdigest()


def test_text_file_needs_no_prompt(server: Server) -> None:
    (server.home.workspace / "notes.txt").write_text("script: say from the file")
    done = server.home.kedge("run", "--host", server.host, "-a", "notes.txt")
    assert (done.code, done.err) == (0, "")


def test_image_type_is_detected_by_content() -> None:
    assert attachment_files.mime_type("a.txt", PNG) == "image/png"
    assert attachment_files.mime_type("a", b"RIFF\0\0\0\0WEBPVP8 ") == "image/webp"
    assert attachment_files.mime_type("a.json", b'{"a": 1}') == "text/plain"
    assert attachment_files.mime_type("a.html", b"<p>") == "text/html"
    assert attachment_files.mime_type("a.txt", b"\xff\0\xfe") == "application/octet-stream"
    assert attachment_files.mime_type("a.zip", b"PK\x03\x04\xff\0") == "application/zip"


def test_too_large_or_too_many_files_are_a_usage_error(home: Home) -> None:
    large = home.workspace / "large"
    with large.open("wb") as file:
        file.truncate(attachment_files.FILES_BYTES_MAX + 1)
    done = home.kedge("run", "-a", "large", "x")
    assert (done.code, "large is too large" in done.err, done.err.count("\n")) == (2, True, 1)
    many = [word for _ in range(21) for word in ("-a", "config")]
    done = home.kedge("run", *many, "x")
    assert (done.code, "at most 20" in done.err) == (2, True)


def test_user_command_becomes_part_of_the_session(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "!echo hello; echo there; exit 3")
    assert (done.code, done.out, done.err) == (3, "hello\nthere\n", "")
    part = first_message(server)["parts"][0]
    assert (part["type"], part["data"]["command"], part["data"]["exit_code"]) == (
        "shell_command",
        "echo hello; echo there; exit 3",
        3,
    )
    again = server.home.kedge("run", "--host", server.host, "-C", "--output", "json", "!", "kill -9 $$")
    assert again.code == 128 + 9
    (session,) = json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out)
    shown = server.home.kedge("sessions", "show", "--host", server.host, session["id"]).out
    assert "! echo hello; echo there; exit 3\n  -> exit 3: hello there\n" in shown


def test_piped_input_is_never_a_command(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, stdin="!touch here")
    assert (done.code, done.out) == (0, "You said: !touch here\n")
    both = server.home.kedge("run", "--host", server.host, "!cat", stdin="text")
    assert (both.code, "standard input" in both.err) == (2, True)
    assert not (server.home.workspace / "here").exists()


# --- init -----------------------------------------------------------------------------------------------------------


def test_init_refuses_an_existing_file_and_the_offline_model(server: Server) -> None:
    offline = server.home.kedge("init", "--host", server.host, "-m", "kedge/offline")
    assert (offline.code, "needs a language model" in offline.err, offline.err.count("\n")) == (1, True, 1)
    (server.home.workspace / "AGENTS.md").write_text("mine")
    done = server.home.kedge("init", "--host", server.host)
    assert (done.code, "--force" in done.err) == (1, True)
    assert (server.home.workspace / "AGENTS.md").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_init_reports_that_the_model_wrote_nothing(server: Server, endpoint: HostedEndpoint, force: bool) -> None:
    if force:
        (server.home.workspace / "AGENTS.md").write_text("mine")
    done = server.home.kedge("init", "--host", server.host, *(["--force"] if force else []))
    assert done.code == 1
    assert "write the file AGENTS.md" in done.out, "the endpoint echoes its prompt"
    assert "60 lines" in done.out
    assert done.err.startswith("kedge: The model did not write AGENTS.md")


def test_rules_of_init_cover_only_its_file(server: Server) -> None:
    flags = ["--allow", "write(AGENTS.md)", "--host", server.host]
    written = server.home.kedge("run", *flags, 'script: tool write {"path": "AGENTS.md", "content": "x"} | say ok')
    assert (written.code, (server.home.workspace / "AGENTS.md").read_text()) == (0, "x")
    other = server.home.kedge("run", *flags, 'script: tool write {"path": "other.md", "content": "x"} | say ok')
    assert other.code == 3
