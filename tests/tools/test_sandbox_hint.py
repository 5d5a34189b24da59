"""The hint for the model when the sandbox may have made a command fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.tools.shell import BashTool
from tests.tools.contexts import RecordingHost, call, make_context


@pytest.mark.found("audit of issue 20", "git switch failed to write .git/config, exit code 0, without a hint")
async def test_refused_write_in_the_sandbox_is_explained(tmp_path: Path) -> None:
    host = RecordingHost(confinement="workspace")
    context = make_context(tmp_path, host=host)
    busy = "echo 'error: could not write config file .git/config: Device or resource busy' >&2"
    for command, is_explained in (
        (busy, True),
        ("echo x: Read-only file system", True),
        ("echo", False),
        ("false", True),
    ):
        assert (
            "It ran in the sandbox" in (await call(BashTool(), context, command=command)).content
        ) == is_explained, command
    host.confinement = "configured"
    assert "It ran in the sandbox" not in (await call(BashTool(), context, command=busy)).content
