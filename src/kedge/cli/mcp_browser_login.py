"""Logins to remote MCP servers. They are stored on this machine, for the server that runs here."""

from __future__ import annotations

import asyncio
import os
import sys
import webbrowser
from pathlib import Path
from threading import Thread

import click

from kedge import paths
from kedge.cli.config_files import load_config, trusted_files
from kedge.client.safe_text import one_line
from kedge.config.mcp_config import TRUST_FIRST, configured_servers, expanded, mcp_files
from kedge.config.mcp_logins import McpLogins
from kedge.config.schema import McpServerConfig
from kedge.core.mcp_login import has_own_credentials
from kedge.errors import ExtensionNotFound, Invalid, KedgeError


def log_in(name: str, workspace: Path) -> None:
    """Log in to a server of the workspace, and store the tokens."""
    server = _remote_server(name, workspace)
    from kedge.bridge.mcp_authorization import authorize  # the library takes a second to import

    try:
        login = asyncio.run(authorize(server.url, server.headers, is_sse=server.type == "sse", show=_show))
    except KedgeError as error:
        raise Invalid(f"{name}: {error.message}") from None
    McpLogins(paths.data_dir()).write(name, login)


def log_out(name: str) -> int:
    """Remove the stored logins to servers with this name, and return their number."""
    return McpLogins(paths.data_dir()).remove(name)


def _remote_server(name: str, workspace: Path) -> McpServerConfig:
    """Return the configuration of a server that takes a login, with its variables looked up."""
    entries = configured_servers(load_config(workspace).config, mcp_files(workspace), trusted_files())
    entry = next((entry for entry in entries if entry.name == name), None)
    if entry is None:
        raise ExtensionNotFound(f"MCP server {one_line(name, 100)} not found. List them with: kedge mcp list")
    if entry.problem:
        raise Invalid(f"{name}: {one_line(entry.problem, 500)}")
    if not entry.is_trusted:
        raise Invalid(f"{name} is a server of the repository, whose file is not trusted; {TRUST_FIRST}")
    if not entry.config.url:
        raise Invalid(f"{name} is a local program and takes no login.")
    server = expanded(entry.config)
    if has_own_credentials(server.url, server.headers):
        raise Invalid(f"{name} has credentials in its configuration. Remove them to log in instead.")
    return server


def _show(address: str, port: int) -> None:
    click.echo(f"Open this address in a browser to log in:\n\n  {one_line(address, len(address))}\n")
    if "SSH_CONNECTION" in os.environ:
        click.echo(
            f"If the browser is on another machine, forward the port first: ssh -L {port}:127.0.0.1:{port} ...\n"
        )
    elif sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        # In a thread, which may outlive the login: some browsers keep the caller waiting.
        Thread(target=webbrowser.open, args=(address,), daemon=True).start()
