"""`kedge store`, without a server."""

from __future__ import annotations

import json

import apsw

from kedge.store.sqlite_connect import has_page_checksums
from tests.client.process import Home, Server


def test_store_is_checked_and_copied(home: Home) -> None:
    server = Server(home).start()
    assert home.kedge("run", "say hello", "--host", server.host).code == 0
    running = home.kedge("store", "check")
    assert (running.code, running.out) == (1, "")
    assert f"the data directory {home.data} is in use by process" in running.err
    server.stop()

    checked = home.kedge("store", "check")
    assert (checked.code, checked.err) == (0, "")
    assert f"{home.data}: 1 workspaces, " in checked.out
    assert checked.out.endswith(": no damage\n")
    copied = home.kedge("store", "copy", f"sqlite://{home.data}", f"sqlite://{home.root}/copy")
    assert (copied.code, copied.err) == (0, "")
    assert "verified: " in copied.out
    home.env["KEDGE_STORE"] = f"sqlite://{home.root}/copy"
    report = json.loads(home.kedge("store", "check", "--json").out)
    assert (report["workspaces"], report["rows"]["runs"], report["damage"]) == (1, 1, [])

    again = home.kedge("store", "copy", f"sqlite://{home.data}", f"sqlite://{home.root}/copy")
    assert (again.code, again.out) == (1, "")
    assert "is not empty: it has 1 workspaces; copy to a new directory" in again.err


def test_damage_is_one_line_for_each_workspace(home: Home) -> None:
    server = Server(home).start()
    assert home.kedge("run", "say hello", "--host", server.host).code == 0
    server.stop()
    db = apsw.Connection(str(home.data / "kedge.db"), vfs="cksmvfs" if has_page_checksums() else None)
    db.execute("UPDATE log SET payload = x'00'; UPDATE messages SET parts = x'00'")
    db.close()
    checked = home.kedge("store", "check", f"sqlite://{home.data}")
    assert (checked.code, checked.err) == (1, "")
    damaged, summary = checked.out.splitlines()
    assert damaged.startswith("FAIL  workspace ")
    assert f"({home.workspace}): the log of workspace" in damaged
    assert "the hash of the entry does not match" in damaged
    assert "more)" in damaged
    assert summary.endswith(": 1 damaged")
    refused = home.kedge("store", "copy", f"sqlite://{home.data}", f"sqlite://{home.root}/copy")
    assert (refused.code, refused.out) == (1, "")
    assert not (home.root / "copy" / "kedge.db").exists()


def test_urls_are_checked(home: Home) -> None:
    for arguments in (("check", "mysql://me:secret@host/db"), ("copy", "memory:", f"sqlite://{home.root}/copy")):
        refused = home.kedge("store", *arguments)
        assert (refused.code, refused.out) == (1, "")
        assert "use sqlite:///directory or postgresql://user:password@host/database" in refused.err
        assert "secret" not in refused.err
