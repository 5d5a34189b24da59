"""QR codes for terminals."""

from __future__ import annotations

import io


def qr_code(text: str) -> str:
    """Return the QR code of a text as lines for a terminal, dark on light."""
    import segno  # slow to import, and only needed here

    out = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(out, compact=True, border=2)
    return out.getvalue()
