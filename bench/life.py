"""Server start and kill: time to the first reply, memory, and text lost by kill -9."""

from __future__ import annotations

import time

from bench.load import Client, Connection
from bench.report import Line, median
from bench.server import Server, home
from bench.setting import Setting

#: Text sent to readers is durable after this time. Seconds.
DURABLE_AFTER_S = 0.25
#: Pause before each word, and words shown before the kill: as measured for other servers. Milliseconds, items.
KILL_PAUSE_MS, KILL_WORDS = 20, 40


async def start_and_memory(setting: Setting) -> list[Line]:
    """Start servers with new data directories, so the time includes creating the database."""
    start_s: list[float] = []
    idle_mib: list[float] = []
    used_mib: list[float] = []
    first_ms: list[float] = []
    for _ in range(setting.count(5, 2)):
        with home() as directory, Server(directory, setting.model).run() as running:
            async with Connection.open(running.address) as connection:
                await connection.call("GET", "/v1/health")
                start_s.append(time.perf_counter() - running.started)
            idle_mib.append(running.rss_mib)
            async with Client.open(running.address, running.server) as client, client.stream() as stream:
                session, sent = await client.session(), time.perf_counter()
                run_id = await client.submit(session, "script: pause 5 | words 50")
                first_ms.append(((await stream.until_delta(0)).at - sent) * 1000 - 5)
                await stream.until_complete(run_id)
            used_mib.append(running.rss_mib)
    return [
        Line("start to first healthy reply", median(start_s), "s", f"{min(start_s):.2f} to {max(start_s):.2f}"),
        Line("memory, idle", median(idle_mib), "MiB"),
        Line("memory, after one prompt", median(used_mib), "MiB", "a stream and 50 words through the OpenAI adapter"),
        Line("POST to first delta, first prompt of a new server", median(first_ms), "ms", "imports, TLS setup"),
    ]


async def kill(setting: Setting) -> list[Line]:
    """Kill the server while a message streams, restart it, and count the words that are missing from the message."""
    lost: list[int] = []
    late: list[int] = []
    for _ in range(setting.count(3, 1)):
        with home() as directory:
            server = Server(directory, setting.model)
            with server.run() as running:
                async with Client.open(running.address, server) as client, client.stream() as stream:
                    session = await client.session()
                    await client.submit(session, f"script: pause {KILL_PAUSE_MS} | words {4 * KILL_WORDS}")
                    await stream.until(
                        lambda: "w40" in "".join(f.payload["text"] for f in stream.find("delta")).split()
                    )
                    running.kill()
                    killed_at = time.perf_counter()
            shown = stream.find("delta")
            old = [frame for frame in shown if frame.at <= killed_at - DURABLE_AFTER_S]
            with server.run() as running:
                async with Client.open(running.address, server) as client:
                    messages = await client.connection.call("GET", f"{client.at}/sessions/{session}/messages")
                    stored = next(
                        "".join(part["data"]["text"] for part in message["parts"] if part["type"] == "text")
                        for message in messages
                        if message["id"] == shown[0].payload["message_id"]
                    )
                    await client.cancel(session)
            words = [len("".join(frame.payload["text"] for frame in frames).split()) for frames in (old, shown)]
            lost.append(max(0, words[0] - len(stored.split())))
            late.append(max(0, words[1] - len(stored.split())))
    return [
        Line(
            "kill -9 mid-stream, words lost before the last 0.25 s",
            sum(lost),
            "words",
            f"of {KILL_WORDS} shown, in {len(lost)} kills; lost within the last 0.25 s: {', '.join(map(str, late))}",
        )
    ]
