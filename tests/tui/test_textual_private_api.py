"""The private names of Textual that the terminal interface uses. pyproject.toml pins Textual to a minor version."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from textual import _ansi_sequences
from textual.app import App

PROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"


@pytest.mark.parametrize("name", ["_driver", "_return_code", "_handle_exception", "_close_messages_no_wait"])
def test_app_has_the_private_name(name: str) -> None:
    app: App[None] = App()
    assert hasattr(app, name), f"Textual no longer has App.{name}: adapt kedge.tui.app and kedge.tui.notice"


def test_key_sequence_table_can_be_extended() -> None:
    table = getattr(_ansi_sequences, "ANSI_SEQUENCES_KEYS", None)
    assert isinstance(table, dict), "Textual no longer has the key table: adapt kedge.tui.panels.prompt_panel"


def test_textual_is_pinned_to_a_minor_version() -> None:
    dependencies = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    pin = next(line for line in dependencies if line.startswith("textual"))
    assert ",<8.3" in pin, "private names may change in any minor version"
