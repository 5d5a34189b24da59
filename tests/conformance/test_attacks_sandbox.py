"""Attacks by sandboxed commands: on kedge's own files, and through programs outside of the sandbox."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Server
from tests.conformance.test_attacks_permissions import tried
from tests.conformance.test_i_agent import call

SANDBOX = '[sandbox]\nmode = "workspace-write"\n'


@pytest.mark.found(
    "attack 15",
    "with the directory of the configuration as workspace, one allowed command turned the sandbox and the approvals "
    "off; the configuration is read-only there and the data directory hidden, or no command is run",
)
async def test_a_sandbox_around_kedges_own_files_cannot_be_turned_off(own_server: Callable[..., Server]) -> None:
    server = own_server(SANDBOX)
    config = server.home / "config.toml"
    before = config.read_bytes()
    command = (
        "printf '[permissions]\\nallow = [\"bash\"]\\n' >> config.toml; sed -i s/workspace-write/off/ config.toml; "
        "mv config.toml aside; cat data/token; echo x > data/trusted.json; mv data aside; echo done > done"
    )
    async with server.peer(server.home) as kedge:
        (result,) = await tried(kedge, call("bash", command=command), mode="yolo")
        assert server.token not in result["content"]
    assert config.read_bytes() == before
    assert not (server.data_dir / "trusted.json").exists()
    # Without mount namespaces the command is not run at all.
    assert (server.home / "done").exists() or "No command can be run in the sandbox" in result["content"]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.found(
    "attack 14",
    "a sandboxed command had the user's tmux run a command outside of the sandbox, the tree and the check of peers; "
    "the sockets of running programs are covered in the sandbox",
)
async def test_tmux_runs_nothing_for_a_sandboxed_command(
    own_server: Callable[..., Server], workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    socket, escaped = tmp_path / "tmux.sock", tmp_path / "escaped"
    tmux = ["tmux", "-f", "/dev/null", "-S", str(socket)]
    await asyncio.to_thread(subprocess.run, [*tmux, "new-session", "-d", "sleep 1000"], check=True)
    try:
        async with own_server(SANDBOX).peer(workspace) as kedge:
            run = f"tmux -S {socket} run-shell 'id > {escaped}' && echo answered"
            (result,) = await tried(kedge, call("bash", command=run), mode="yolo")
            (where,) = await tried(kedge, call("bash", command="readlink /proc/self/ns/mnt"), mode="yolo")
    finally:
        await asyncio.to_thread(subprocess.run, [*tmux, "kill-server"], check=False)
    if where["content"].strip() == str(Path("/proc/self/ns/mnt").readlink()):
        pytest.skip("this machine has no mount namespaces: sockets are not covered")
    assert "answered" not in result["content"].splitlines()
    assert not escaped.exists()
