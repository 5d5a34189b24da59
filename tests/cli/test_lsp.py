"""`kedge lsp`: what was found, what is off, and what to install. Nothing is started."""

from __future__ import annotations

import json
import os
import sys

from tests.client.process import Home, Server


def test_servers_are_listed_with_what_to_install(home: Home) -> None:
    tools = home.root / "tools"
    inside = home.workspace / "bin"
    for directory in (tools, inside):
        directory.mkdir()
    (tools / "gopls").symlink_to(sys.executable)
    (inside / "clangd").symlink_to(sys.executable)
    home.env["PATH"] = os.pathsep.join([str(inside), str(tools), "/usr/bin", "/bin"])
    for name in ("main.go", "main.zig", "main.tf", "main.cpp", "main.swift"):
        (home.workspace / name).touch()
    entry = f'command = "{sys.executable}"\nextensions = [".zig"]'
    off = "[lsp.servers.terraform]\ndisabled = true"
    inner = f'[lsp.servers.sourcekit]\ncommand = "{inside / "clangd"}"'
    home.config.write_text(f"{home.config.read_text()}\n[lsp.servers.mine]\n{entry}\n{off}\n{inner}\n")
    server = Server(home).start()
    try:
        listed = json.loads(home.kedge("lsp", "list", "--json", "--host", server.host).out)
        states = {each["name"]: (each["condition"], each.get("error", "")) for each in listed}
        assert states["mine"] == states["gopls"] == ("idle", "")
        assert states["terraform"] == ("disabled", "")
        assert states["sourcekit"][0] == "missing", "a program in the workspace is never started"
        if not os.path.exists("/usr/bin/clangd"):
            assert states["clangd"] == ("missing", "not installed; your package manager: clangd")
        assert "zls" not in states
        assert "gopls" in home.kedge("lsp", "--host", server.host).out
        home.config.write_text(home.config.read_text() + "[lsp]\nenabled = false\n")
        assert home.kedge("lsp", "--host", server.host).out.startswith("no language servers")
    finally:
        server.stop()
