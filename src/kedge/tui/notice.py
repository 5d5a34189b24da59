"""Calls people back who look elsewhere: by the bell, or by a notice on the desktop for those who want that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from textual.app import App

from kedge.client.safe_text import visible_line

#: What a desktop shows of a notice. Characters.
NOTICE_CHARS_MAX = 120

NoticeKind = Literal["bell", "desktop", "off"]

#: Terminals that know OSC 777 and not OSC 9, by how $TERM begins.
_KNOW_777 = ("rxvt", "foot")


def notice_kind(environ: Mapping[str, str] = os.environ) -> NoticeKind:
    """What $KEDGE_NOTICE says: desktop or off; anything else, or nothing, is the bell."""
    match environ.get("KEDGE_NOTICE", "").strip().lower():
        case "desktop":
            return "desktop"
        case "off" | "none":
            return "off"
    return "bell"


def notice_codes(words: str, environ: Mapping[str, str] = os.environ) -> str:
    """What is written to the terminal. The words are of others: nothing in them ends the sequence or begins one."""
    kind = notice_kind(environ)
    if kind == "off":
        return ""
    if kind == "bell":
        return "\a"
    # A semicolon would begin another field, and "4;" is no text at all for some terminals.
    said = visible_line(words, NOTICE_CHARS_MAX).replace(";", ",")
    knows_777 = environ.get("TERM", "").startswith(_KNOW_777) or "VTE_VERSION" in environ
    code = f"\x1b]777;notify;kedge;{said}\x1b\\" if knows_777 else f"\x1b]9;kedge: {said}\x1b\\"
    # tmux hands on only what is wrapped so, with each escape doubled.
    return f"\x1bPtmux;{code.replace(chr(27), chr(27) * 2)}\x1b\\" if environ.get("TMUX") else code


def give_notice(app: App[int], words: str) -> None:
    """Nothing while people look here: the terminal tells when it has the focus."""
    driver = app._driver
    if driver is not None and not app.app_focus and (codes := notice_codes(words)):
        driver.write(codes)
        driver.flush()
