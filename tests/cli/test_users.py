"""`kedge users` and `kedge audit`, with a real server and the tokens that they print."""

from __future__ import annotations

import json
import re
from copy import copy

from tests.client.process import Server

TOKEN = re.compile(r"export KEDGE_TOKEN=(kedge_[\w-]{43})\n  (kedge runs --host (\S+))\n")


def test_user_from_the_first_to_the_last_command(own_server: Server) -> None:
    kedge, host = own_server.home.kedge, ("--host", own_server.tcp)
    assert kedge("users", "list", *host).out.startswith(
        "no users: only the owner has access; add one with: kedge users"
    )
    assert kedge("audit", *host).out.startswith("no actions; they are recorded once")

    done = kedge("users", "add", "eve", "--role", "collaborator", *host)
    assert done.code == 0, done.err
    match = TOKEN.search(done.out)
    assert match is not None, done.out
    assert (done.out.count(match[1]), match[3]) == (2, own_server.tcp)
    eve, wall = copy(own_server.home), copy(own_server.home)
    eve.env = eve.env | {"KEDGE_TOKEN": match[1]}
    assert eve.kedge(*match[2].split()[1:]).out == "no active or queued runs\n"
    assert "hello" in eve.kedge("run", "say hello", *host).out
    refused = eve.kedge("users", "list", *host)
    assert (refused.code, refused.err) == (
        1,
        "kedge: User eve has the role collaborator and may not do this. Ask the owner of the server.\n",
    )
    assert eve.kedge("audit", *host).code == 1

    spectator = json.loads(kedge("users", "add", "wall", "--role", "spectator", "--json", *host).out)
    wall.env = wall.env | {"KEDGE_TOKEN": spectator["token"]}
    assert "may only read" in wall.kedge("run", "say hello", *host).err
    assert re.search(r"USER +ROLE +ADDED\neve +collaborator +\d+s\nwall +spectator", kedge("users", "list", *host).out)
    assert kedge("users", "revoke", "eve", *host).out == "eve: revoked\n"
    assert "wrong token" in eve.kedge("runs", *host).err
    assert [one["name"] for one in json.loads(kedge("users", "list", "--json", *host).out)] == ["wall"]

    actions = [("revoke_user", "eve"), ("add_user", "wall, spectator"), ("add_user", "eve, collaborator")]
    listed = json.loads(kedge("audit", "--json", *host).out)
    assert [(one["action"], one["detail"]) for one in listed if one["action"].endswith("_user")] == actions
    assert [one["action"] for one in json.loads(kedge("audit", "--json", "--limit", "1", *host).out)] == ["revoke_user"]
    assert re.search(r"\d\d:\d\d:\d\d  \(owner\) +revoke_user +- +- +- +eve\n", kedge("audit", *host).out)
    assert kedge("audit", "--user", "unknown", *host).out.startswith("no actions")
    assert kedge("users", "add", "eve", *host).code == 2, "the role is chosen, not assumed"


def test_owners_own_server_is_started(own_server: Server) -> None:
    kedge = own_server.home.kedge
    own_server.stop()
    done = kedge("users", "add", "eve", "--role", "spectator")
    assert done.code == 0, done.err
    assert "The server needs such an address: kedge serve --host tcp://ADDRESS:PORT" in done.out
