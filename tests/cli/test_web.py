"""`kedge web`: links, the port that is remembered, phones, and the list of browsers."""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
import time
from pathlib import Path

import pytest

from kedge.client.web_links import choose_target, own_address
from kedge.errors import Invalid
from kedge.qr_code import qr_code
from tests.certificates import with_certificate
from tests.client.fixtures import server_pids
from tests.client.process import Home
from tests.polling import until
from tests.server.web_tab import Tab

LINK = re.compile(r"(https?://[\w.:-]+)/#ticket=([\w-]{43})")


def made(home: Home, *arguments: str) -> tuple[str, str]:
    """Return the address and the ticket of a new link."""
    done = home.kedge("web", *arguments)
    match = LINK.fullmatch(done.out.splitlines()[-1]) if done.out else None
    assert match is not None, done
    return match[1], match[2]


async def test_link_starts_the_server_and_survives_it(in_home: Home) -> None:
    in_home.config.write_text(in_home.config.read_text() + "\n[server]\nidle_exit_s = 1.0\n")
    url, ticket = made(in_home, "--read-only")
    async with Tab(url) as tab:
        body = await tab.log_in(ticket)
        assert body["browser"]["rights"] == "read_only"
        (first,) = server_pids(in_home)
        # Idle for twice the limit: the browser holds the server.
        idle_since = time.monotonic()
        await until(lambda: time.monotonic() > idle_since + 2)
        assert await tab.status() == (200, "")
        assert server_pids(in_home) == [first]

        assert in_home.kedge("stop").code == 0
        (listed,) = json.loads(in_home.kedge("web", "list", "--json").out)  # starts another server
        assert (listed["id"], listed["label"]) == (body["browser"]["id"], "Firefox on Linux")
        assert await tab.status() == (200, ""), "the new server listens on the same port"
        table = in_home.kedge("web", "list").out
        assert "Firefox on Linux  read_only  all" in table

        assert made(in_home)[0] == url
        revoked = in_home.kedge("web", "revoke", body["browser"]["id"][:4])
        assert revoked.out == f"{body['browser']['id']}: revoked (Firefox on Linux)\n"
        assert await tab.status() == (401, "unauthorized")
    assert in_home.kedge("web", "list").out == "no browser has access\n"
    assert "No browser 'b1'" in in_home.kedge("web", "revoke", "b1").err
    assert in_home.kedge("web", "revoke").code == 2


async def test_server_without_browsers_exits_when_idle(in_home: Home) -> None:
    in_home.config.write_text(in_home.config.read_text() + "\n[server]\nidle_exit_s = 1.0\n")
    url, ticket = made(in_home)
    async with Tab(url) as tab:
        await tab.log_in(ticket)
        assert in_home.kedge("web", "revoke", "--all").code == 0
        await until(lambda: not server_pids(in_home))
    assert ticket not in (in_home.data / "server.log").read_text()


async def test_link_to_one_session(in_home: Home) -> None:
    assert in_home.kedge("run", "script: say hello").code == 0
    (session,) = json.loads(in_home.kedge("sessions", "list", "--json").out)
    url, ticket = made(in_home, "--session", session["id"][:6])
    async with Tab(url) as tab:
        browser = (await tab.log_in(ticket))["browser"]
        at = f"/workspaces/{browser['workspace_id']}"
        assert browser["session_id"] == session["id"]
        # No client has the workspace open: the page opens it again, by its id.
        opened = await tab.call("POST", f"{at}/open", {"client_id": "6f2f1d9e-4b5a-4f0e-9d50-8a8a6cbb41a4"})
        assert opened.status_code == 200, opened.text
        messages = (await tab.call("GET", f"{at}/sessions/{session['id']}/messages")).json()
        assert len(messages) == 2
        assert (await tab.call("GET", "/workspaces")).status_code == 403


async def test_phone_with_a_certificate(in_home: Home, tmp_path: Path) -> None:
    _, certificate = with_certificate("phone.test", tmp_path)
    files = ("--certificate", str(certificate), "--key", str(tmp_path / "key.pem"))
    done = in_home.kedge("web", "--phone", "--address", "127.0.0.1", *files)
    match = LINK.fullmatch(done.out.splitlines()[-1])
    assert match is not None
    assert match[1].startswith("https://127.0.0.1:")
    assert done.out.startswith(qr_code(match[0]))
    trusting = ssl.create_default_context(cafile=str(certificate))
    trusting.check_hostname = False
    async with Tab(match[1], verify=trusting) as tab:
        del tab.headers["origin"]
        await tab.log_in(match[2])
        assert tab.set_cookie.endswith("; Secure")
        assert await tab.status() == (200, "")
    swapped = in_home.kedge("web", "--certificate", str(tmp_path / "key.pem"), "--port", "0")
    assert (swapped.code, "cannot be used" in swapped.err) == (1, True)
    assert swapped.err.count("\n") == 1


async def test_other_machines_need_permission_and_a_warning(in_home: Home) -> None:
    refused = in_home.kedge("web", "--phone", "--address", "192.0.2.7")
    assert (refused.code, "Add --allow-remote" in refused.err) == (1, True)
    asked = in_home.kedge("web", "--phone", "--address", "192.0.2.7", "--allow-remote")
    assert (asked.code, asked.err.startswith("Plain HTTP: everyone who can read")) == (1, True)
    assert "Add --yes" in asked.err
    foreign = in_home.kedge("web", "--phone", "--address", "192.0.2.7", "--allow-remote", "--yes")
    assert (foreign.code, "Cannot listen on 192.0.2.7" in foreign.err) == (1, True)
    assert "Choose the address" in in_home.kedge("web", "--phone").err
    address = own_address()
    if not address or ipaddress.ip_address(address).is_loopback:
        pytest.skip("this machine has no other address than its loopback ones")
    url, ticket = made(in_home, "--phone", "--address", address, "--allow-remote", "--yes", "--no-open")
    async with Tab(url) as tab:
        await tab.log_in(ticket)
        assert await tab.status() == (200, "")
        assert await tab.status(host="10.9.8.7", origin="") == (421, "bad_host"), "only the chosen address is accepted"
    port = json.loads((in_home.data / "web.json").read_bytes())["port"]
    assert port == 0, "a remote address is not remembered"


async def test_tunnel_adds_its_name_and_nothing_else(in_home: Home) -> None:
    done = in_home.kedge("web", "--phone", "--address", "https://kedge.example")
    assert done.out.splitlines()[-1].startswith("https://kedge.example/#ticket=")
    url, ticket = made(in_home)
    async with Tab(url) as tab:
        through = {"host": "kedge.example", "origin": "https://kedge.example"}
        reply = await tab.call("POST", "/web/login", {"ticket": ticket}, **through)
        assert reply.headers["set-cookie"].startswith("kedge_web=")
        assert reply.headers["set-cookie"].endswith("; Secure")
        assert await tab.status(host="other.example", origin="") == (421, "bad_host")
        assert await tab.status(host="x.kedge.example", origin="") == (421, "bad_host")


def test_wrong_addresses_are_explained() -> None:
    for address, text in (
        ("0.0.0.0", "means all addresses"),
        ("::", "means all addresses"),
        ("ftp://x", "not a valid address of a tunnel"),
        ("https://x/path", "not a valid address of a tunnel"),
        ("no-such-name.invalid", "has no address"),
    ):
        with pytest.raises(Invalid, match=text):
            choose_target(address, 0, allow_remote=True)
