"""An MCP server written by hand that misbehaves on request: `python hostile_mcp_server.py STATE_DIRECTORY [MODE]`.

The state directory lets tests change the server between two listings, and see what it received."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

STATE = Path(sys.argv[1])
MODE = sys.argv[2] if len(sys.argv) > 2 else ""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    with open(STATE / "received", "a") as file:
        file.write(text + "\n")


def tools() -> list[dict[str, Any]]:
    description = (STATE / "description").read_text() if (STATE / "description").exists() else "Does something."
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    names = ["echo", "die", "huge", "escapes", "never", "flood", "picture", "ask", "progress", "change", "environment"]
    hinted = {"readOnlyHint": True}
    return [
        {
            "name": name,
            "description": description if name == "echo" else name,
            "inputSchema": schema,
            "annotations": hinted,
        }
        for name in names
    ]


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], **more}


def call(id_: Any, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    result: dict[str, Any] = text(name)
    if name == "echo":
        result = text(arguments.get("text", ""))
    elif name == "environment":
        result = text(" ".join(sorted(os.environ)) + f" cwd={os.getcwd()} token={os.environ.get('TOKEN', '')}")
    elif name == "die":
        print("about to die", file=sys.stderr, flush=True)
        os._exit(7)
    elif name == "huge":
        sys.stdout.write(f'{{"jsonrpc":"2.0","id":{id_},"result":{{"content":[{{"type":"text","text":"')
        for _ in range(int(arguments.get("text", "100"))):
            sys.stdout.write("x" * 1_000_000)
        sys.stdout.write('"}]}}\n')
        sys.stdout.flush()
        return
    elif name == "escapes":
        result = text("\x1b[31mred\x1b[0m \x1b]0;title\x07 \x00bell\x07 plain", isError=True)
    elif name == "never":
        return
    elif name == "flood":
        for index in range(700):
            send({"method": "notifications/message", "params": {"level": "info", "data": f"line {index}"}})
        result = text("after the flood")
    elif name == "picture":
        result = {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}], "structuredContent": {"a": 1}}
    elif name == "progress":
        send(
            {
                "method": "notifications/progress",
                "params": {"progressToken": meta["progressToken"], "progress": 1, "total": 3},
            }
        )
    elif name == "change":
        (STATE / "description").write_text("Now it does something else.")
        send({"method": "notifications/tools/list_changed"})
    elif name == "ask":
        properties = {
            "size": {"type": "string", "enum": ["small", "large"]},
            "sure": {"type": "boolean"},
            "count": {"type": "integer"},
        }
        schema = {"type": "object", "properties": properties, "required": ["size", "sure"]}
        send(
            {
                "id": "ask1",
                "method": "elicitation/create",
                "params": {"message": "Which size?", "requestedSchema": schema},
            }
        )
        answer = json.loads(sys.stdin.readline())
        result = text(json.dumps(answer["result"]))
    send({"id": id_, "result": result})


def read(id_: Any, uri: str) -> None:
    note(f"read {uri}")
    if uri == "memo://never":
        return
    if uri == "memo://huge":
        call(id_, "huge", {}, {})
        return
    content = "\x1b[31mred\x1b[0m \x00plain" if uri == "memo://escapes" else "memo " * 20_000
    send({"id": id_, "result": {"contents": [{"uri": uri, "text": content}]}})


def main() -> None:
    note("started")
    if MODE == "hangs":
        sys.stdin.read()
        signal.alarm(60)  # the processes of these tests have no warden that ends it
        signal.pause()
    if MODE == "fails":
        print("Traceback\n  in main\nno database\nnpm notice\nnpm notice a new version", file=sys.stderr, flush=True)
        sys.exit(3)
    for line in sys.stdin:
        message = json.loads(line)
        method, id_ = message.get("method", ""), message.get("id")
        params = message.get("params", {})
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}, "prompts": {}, "resources": {}}
            info = {"name": "hostile", "version": "1"}
            version = params["protocolVersion"]
            send({"id": id_, "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}})
        elif method == "tools/list":
            send({"id": id_, "result": {"tools": tools()}})
        elif method == "prompts/list":
            arguments = [{"name": "topic", "required": True}, {"name": "style"}]
            send({"id": id_, "result": {"prompts": [{"name": "explain", "arguments": arguments}]}})
        elif method == "prompts/get":
            content = {"type": "text", "text": f"Explain {json.dumps(params['arguments'])}\x1b[2J"}
            send({"id": id_, "result": {"messages": [{"role": "user", "content": content}]}})
        elif method == "resources/list":
            uris = ["memo://one", "memo://escapes", "memo://huge", "memo://never", "memo://two words"]
            send({"id": id_, "result": {"resources": [{"uri": uri, "name": uri} for uri in uris]}})
        elif method == "resources/read":
            read(id_, params["uri"])
        elif method == "notifications/cancelled":
            note("cancelled")
        elif method == "tools/call":
            note(f"call {params['name']}")
            call(id_, params["name"], params.get("arguments", {}), params.get("_meta", {}))
        elif id_ is not None and method:
            send({"id": id_, "error": {"code": -32601, "message": "Method not found"}})


main()
