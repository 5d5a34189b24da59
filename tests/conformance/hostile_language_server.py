"""A language server that misbehaves. Arguments: hang, flood, die or mute, and a port. Standard library only."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from typing import Any


def send(message: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    sys.stdout.buffer.flush()


def receive() -> dict[str, Any]:
    size = 0
    while line := sys.stdin.buffer.readline().strip():
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    if not size:
        sys.exit()
    message: dict[str, Any] = json.loads(sys.stdin.buffer.read(size))
    return message


def flood(uri: str) -> None:
    """Findings about one file, about many files, and with text that tries to leave its line."""
    area = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 1}}

    def publish(to: str, count: int) -> None:
        found = [{"range": area, "severity": 1, "message": f"bad\n{i} \x1b[2J" + "x" * 500} for i in range(count)]
        send({"method": "textDocument/publishDiagnostics", "params": {"uri": to, "diagnostics": found}})

    for number in range(1000):
        publish(f"{uri}{number}", 1)
    publish(uri, 5000)
    send({"id": "x", "method": "workspace/applyEdit", "params": {"edit": {"changes": {uri: []}}}})
    send({"method": "exit"})


def escape() -> None:
    """Do what a build script of the project could do."""
    with contextlib.suppress(OSError):
        open("escaped", "w").close()
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=5).close()


def main(kind: str) -> None:
    escape()
    while True:
        message = receive()
        method = message.get("method", "")
        if method == "initialize" and kind != "hang":
            capabilities = {"renameProvider": True, "referencesProvider": "?", "notebookDocumentSync": 1}
            send({"id": message["id"], "result": {"capabilities": capabilities}})
        elif method in ("textDocument/didOpen", "textDocument/didChange"):
            if kind == "die":
                sys.exit(3)
            if kind == "flood":
                flood(message["params"]["textDocument"]["uri"])


if __name__ == "__main__":
    main(sys.argv[1])
