"""`kedge mcp login` and `kedge mcp logout`, with a real server and a real authorization server."""

from __future__ import annotations

import asyncio
import json
import re
import socket

import httpx2

from tests.client.process import Home, Server, until
from tests.extensions.oauth_mcp_server import CANARY, oauth_server


async def test_login_in_the_terminal(own_server: Server) -> None:
    home, host = own_server.home, own_server.host
    home.env["SSH_CONNECTION"] = "x"  # no browser is opened
    async with oauth_server() as provider:
        added = await asyncio.to_thread(home.kedge, "mcp", "add", "r", "--url", provider.url, "--host", host)
        assert (added.code, added.errors) == (
            1,
            "kedge: r is needs_login: needs a login; run: kedge mcp login r\n",
        )
        login = home.start_kedge("mcp", "login", "r", "--host", host)
        shown = await asyncio.to_thread(until, login, "ssh -L")
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            await browser.get(re.findall(r"^  (http\S+)$", shown, re.MULTILINE)[0])
        out, err = await asyncio.to_thread(login.communicate, timeout=30)
        assert (login.returncode, err) == (0, "")
        assert out.endswith("logged in to r\nr is ready: 1 tool\n  add\n")
        script = 'script: tool mcp__r__add {"a": 20, "b": 3} | say done'
        run = await asyncio.to_thread(home.kedge, "run", "--host", host, "--allow", "mcp(r/*)", script)
        assert run.code == 0
        assert any(header.startswith(f"Bearer {CANARY}") for path, header in provider.received if path == "/mcp")

        extensions = await asyncio.to_thread(home.kedge, "extensions", "--json", "--host", host)
        assert "r" in [one["name"] for one in json.loads(extensions.out)]
        shown = f"{shown}{out}{run.out}{run.err}{extensions.out}{own_server.log()}"
        assert CANARY not in shown
        with_tokens = {
            file.parent.name for file in home.root.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()
        }
        assert with_tokens == {"mcp-logins"}

        assert home.kedge("mcp", "logout", "r").out == "logged out of r\n"
        assert home.kedge("mcp", "logout", "r").out == "there is no login to r\n"
        tested = await asyncio.to_thread(home.kedge, "mcp", "test", "r", "--host", host)
        assert (tested.code, "kedge mcp login r" in tested.err) == (1, True)


def test_logins_that_are_refused(home: Home) -> None:
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))  # it does not listen
    url = f"https://127.0.0.1:{closed.getsockname()[1]}/mcp"
    servers = {"repo": {"url": url}}
    (home.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    headers = 'headers = { authorization = "x" }'
    home.config.write_text(f'[mcp.local]\ncommand = "x"\n[mcp.own]\nurl = "{url}"\n{headers}\n')
    for name, reason in (
        ("none", "MCP server none not found"),
        ("local", "local is a local program and takes no login"),
        ("own", "own has credentials in its configuration"),
        ("repo", "repo is a server of the repository, whose file is not trusted; run: kedge config trust"),
    ):
        done = home.kedge("mcp", "login", name)
        assert (done.code, done.out, done.err.startswith(f"kedge: {reason}")) == (1, "", True), done
    assert home.kedge("config", "trust", "--yes").code == 0
    done = home.kedge("mcp", "login", "repo")
    assert (done.code, done.err) == (1, "kedge: repo: The login failed: All connection attempts failed\n")
    closed.close()
