"""Sessions in a mode, for tests that repeat attacks in each."""

from __future__ import annotations

import pytest

from kedge.core.modes import Mode
from tests.conformance.harness import Peer

#: The modes in which what leaves the workspace asks. On a machine without a sandbox there is no mode auto.
ASKING_MODES: tuple[Mode, ...] = ("ask", "edits", "auto")


async def in_mode(kedge: Peer, mode: Mode) -> str:
    """Return a new session in this mode. Skips the test if the machine does not support it."""
    session = await kedge.session()
    if (await kedge.reply("PUT", f"{kedge.at}/sessions/{session}", {"mode": mode})).status_code == 409:
        pytest.skip("this machine has no sandbox that isolates from the network")
    return session
