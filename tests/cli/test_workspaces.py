"""`kedge workspaces`, with a real server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.client.process import Server


def test_workspaces_are_listed_and_removed(own_server: Server, tmp_path: Path) -> None:
    kedge, host = own_server.home.kedge, ("--host", own_server.host)
    for name in ("kept", "old", "gone"):
        (tmp_path / name).mkdir()
        done = kedge("sessions", "list", "--cwd", str(tmp_path / name), *host)
        assert done.code == 0, done.err
    assert kedge("run", "say hello", "--cwd", str(tmp_path / "old"), *host).code == 0
    shutil.rmtree(tmp_path / "gone")

    listed = {Path(known["path"]).name: known for known in json.loads(kedge("workspaces", "list", "--json", *host).out)}
    assert {"kept", "old", "gone"} <= listed.keys()
    assert (listed["old"]["sessions"], listed["old"]["live_runs"], listed["old"]["directory"]) == (1, 0, "present")
    assert listed["gone"]["directory"] == "gone"
    assert "directory is gone" in kedge("workspaces", "list", *host).out

    refused = kedge("workspaces", "remove", str(tmp_path / "old"), *host)
    assert (refused.code, refused.out) == (2, "")
    assert "has 1 sessions. Use --yes" in refused.err
    removed = kedge("workspaces", "remove", "--yes", str(tmp_path / "old"), *host)
    assert (removed.code, removed.err) == (0, "")
    assert "the directory is unchanged" in removed.out
    gone = kedge("workspaces", "remove", "--json", listed["gone"]["id"], *host)
    assert json.loads(gone.out) == {"removed": listed["gone"]["id"], "path": str(tmp_path / "gone")}
    left = {Path(known["path"]).name for known in json.loads(kedge("workspaces", "list", "--json", *host).out)}
    assert "kept" in left
    assert not left & {"old", "gone"}
    assert (tmp_path / "old").is_dir()
    missing = kedge("workspaces", "remove", str(tmp_path / "old"), *host)
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    assert "kedge workspaces list" in missing.err
    assert json.loads(kedge("sessions", "list", "--json", "--cwd", str(tmp_path / "old"), *host).out) == []
