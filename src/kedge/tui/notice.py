"""Notices for a user whose terminal is not focused: the bell, or a desktop notification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from textual.app import App

from kedge.client.safe_text import visible_line

#: Desktops show about this much. Characters.
NOTICE_CHARS_MAX = 120

NoticeKind = Literal["bell", "desktop", "off"]

#: Prefixes of $TERM of terminals that support OSC 777 instead of OSC 9.
_OSC_777_TERMS = ("rxvt", "foot")


def notice_kind(environ: Mapping[str, str] = os.environ) -> NoticeKind:
    """Parse $KEDGE_NOTICE: desktop or off; any other value means the bell."""
    match environ.get("KEDGE_NOTICE", "").strip().lower():
        case "desktop":
            return "desktop"
        case "off" | "none":
            return "off"
    return "bell"


def notice_codes(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the control sequence of a notice. The text is untrusted and cannot end the sequence or start another."""
    kind = notice_kind(environ)
    if kind == "off":
        return ""
    if kind == "bell":
        return "\a"
    # A semicolon separates fields, and some terminals interpret "4;" as a command.
    message = visible_line(text, NOTICE_CHARS_MAX).replace(";", ",")
    has_osc_777 = environ.get("TERM", "").startswith(_OSC_777_TERMS) or "VTE_VERSION" in environ
    code = f"\x1b]777;notify;kedge;{message}\x1b\\" if has_osc_777 else f"\x1b]9;kedge: {message}\x1b\\"
    # tmux passes a sequence through only in this envelope, with each escape doubled.
    return f"\x1bPtmux;{code.replace(chr(27), chr(27) * 2)}\x1b\\" if environ.get("TMUX") else code


def send_notice(app: App[int], text: str) -> None:
    """Send a notice unless the terminal has the focus."""
    driver = app._driver
    if driver is not None and not app.app_focus and (codes := notice_codes(text)):
        driver.write(codes)
        driver.flush()
