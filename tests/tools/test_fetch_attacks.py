"""fetch with servers that attack the parsers, and with addresses of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import pytest

from kedge.core.approvals import Confinement
from kedge.tools.addresses import own_networks
from kedge.tools.base import ToolContext, ToolFailed
from kedge.tools.file_threads import FileThreads
from kedge.tools.process_port import Process
from tests.tools.contexts import PlainProcesses, call, make_context
from tests.tools.test_fetch import Site, fetched, here, site

__all__ = ["site"]


class WatchedProcesses(PlainProcesses):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[Process] = []
        self.is_started = asyncio.Event()

    async def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        stdin: BinaryIO | None = None,
        confinement: Confinement = "configured",
    ) -> Process:
        process = await super().start(argv, cwd, stdin=stdin)
        self.all.append(process)
        self.is_started.set()
        return process


@pytest.mark.found(
    "attack 5",
    "a page of 72 kB held a thread of the server for a minute after the call had ended, and six of them held all "
    "threads; pages are fetched and made into text in a process that limits itself and is killed with the call",
)
@pytest.mark.timeout(20)
@pytest.mark.parametrize("page", ["<a ", '<a b="', "<!--"])
async def test_page_that_takes_hours_ends_with_its_call(site: Site, tmp_path: Path, page: str) -> None:
    processes = WatchedProcesses()
    context = make_context(tmp_path, processes=processes)
    site.put("/", page * 300_000, "Content-Type: text/html")
    fetching = asyncio.create_task(fetched(site, context))
    await asyncio.wait({asyncio.create_task(processes.is_started.wait()), fetching}, return_when="FIRST_COMPLETED")
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert [await process.alive() for process in processes.all] == [0]
    assert context.threads.busy == 0
    # Nothing of it is left in the threads that everything else uses either.
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.timeout(20)
async def test_page_over_its_time_is_reported_in_one_line(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.tools.fetch.FETCH_S_MAX", 1.0)
    processes = WatchedProcesses()
    site.put("/", "<a " * 300_000, "Content-Type: text/html")
    with pytest.raises(ToolFailed, match=r"^site\.example took longer than 1 s$"):
        await fetched(site, make_context(tmp_path, processes=processes))
    assert [await process.alive() for process in processes.all] == [0]


def _calls_of(work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        loop.run_until_complete(work())
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.found(
    "attack 5, other parsers",
    "a server that sent its page in chunks of one byte, or thousands of interim responses, held the event loop for "
    "most of a second at a time; nothing that a foreign server sends is parsed in the server's process",
)
@pytest.mark.parametrize(
    "answer",
    [
        lambda count: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * count + b"0\r\n\r\n",
        lambda count: b"HTTP/1.1 103 x\r\n\r\n" * count + b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
    ],
)
def test_work_of_the_loop_does_not_grow_with_pieces(tmp_path: Path, answer: Callable[[int], bytes]) -> None:
    async def fetch(count: int) -> None:
        site = Site()
        site.answers["/"] = answer(count)
        server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
        site.port = server.sockets[0].getsockname()[1]
        async with server:
            assert "x" in (await fetched(site, make_context(tmp_path))).content

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        few, many = (_calls_of(lambda count=count: fetch(count), loop) for count in (10, 20_000))  # type: ignore[misc]
    assert many - few < 20_000


async def test_long_headers_do_not_reach_the_model(site: Site, tmp_path: Path) -> None:
    context = make_context(tmp_path)
    site.put("/", "x", status="404 " + "A" * 80_000)
    with pytest.raises(ToolFailed) as failed:
        await fetched(site, context)
    assert len(str(failed.value)) < 300
    site.put("/", "x", "Content-Type: text/" + "a" * 80_000)
    assert len((await fetched(site, context)).metadata["content_type"]) < 300
    site.redirect("/", "/" + "a" * 60_000)
    with pytest.raises(ToolFailed, match="longer than 2000 characters"):
        await fetched(site, context)


async def test_code_of_the_workspace_is_not_imported(site: Site, tmp_path: Path) -> None:
    for name in ("bs4", "markdownify", "httpx2", "json", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'trap')!r}, 'w')")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "json.py")}
    context = make_context(tmp_path, processes=PlainProcesses(environment))
    site.put("/", "<h1>Hello</h1>", "Content-Type: text/html")
    assert (await fetched(site, context)).content == "# Hello"
    assert not (tmp_path / "trap").exists()


# --- this machine by its public addresses ---


OWN = """
import asyncio, sys
from pathlib import Path
from kedge.tools.base import ToolFailed
from kedge.tools.fetch import FetchTool
from tests.tools.contexts import call, make_context

async def main():
    async def serve(reader, writer):
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\nConnection: close\\r\\n\\r\\nadmin")
        writer.close()
    server = await asyncio.start_server(serve, None, 8099)
    for address in sys.argv[2:]:
        async def resolver(host, port):
            return [address]
        try:
            said = await call(FetchTool(resolver=resolver), make_context(Path(sys.argv[1])), url="http://me.example:8099/")
            print(address, "reached", said.content)
        except ToolFailed as failed:
            print(address, "refused" if "belongs to this machine" in str(failed) else f"failed: {failed}")

asyncio.run(main())
"""


@pytest.mark.found(
    "attack 22",
    "fetch reached services of this machine by its own public address; addresses of our interfaces are refused, and "
    "with IPv6 the networks they are in",
)
@pytest.mark.timeout(60)
def test_own_public_addresses_are_refused(tmp_path: Path) -> None:
    unshare, ip = shutil.which("unshare"), shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if unshare is None or ip is None:
        pytest.skip("needs unshare and ip")
    setup = "; ".join(
        [
            "set -e",
            f"{ip} link set lo up",
            f"{ip} addr add 45.33.32.156/24 dev lo",
            f"{ip} addr add 45.33.32.157/24 dev lo",  # a secondary one: connections to it come from the first
            f"{ip} route add local 45.79.0.0/16 dev lo",  # all of it is this machine
            f"{ip} addr add 2606:4700:9::5/64 dev lo nodad",
        ]
    )
    own = ["45.33.32.156", "45.33.32.157", "45.79.3.4", "64:ff9b::2d21:209d", "2606:4700:9::5", "2606:4700:9::77"]
    tried = subprocess.run([unshare, "-rn", "sh", "-c", setup], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no network namespace here: {tried.stderr.strip()}")
    arguments = ["sh", sys.executable, "-c", OWN, str(tmp_path), *own, "2606:4700:a::1"]
    done = subprocess.run(
        [unshare, "-rn", "sh", "-c", f'{setup}; exec "$@"', *arguments],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:-1] == [f"{address} refused" for address in own]
    assert lines[-1].startswith("2606:4700:a::1 failed: no connection")  # another network is let through


def test_own_networks_are_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 45.0.0.0\n        /0 universe UNICAST\n        /8 host LOCAL\n"
        "     |-- 45.33.32.255\n        /32 link BROADCAST\n     |-- 8.8.8.8\n        /32 host LOCAL\n"
    )
    (tmp_path / "if_inet6").write_text(
        "26064700000900000000000000000005 02 80 00 80     eth0\n2a000001000000000000000000000001 03 01 00 80     tun0\n"
    )
    expected = ["45.0.0.0/8", "8.8.8.8/32", "2606:4700:9::/64", "2a00:1::/48"]
    assert own_networks(tmp_path) == [ip_network(text) for text in expected]
    assert own_networks(tmp_path / "missing") == []


async def test_context_without_processes_is_reported(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from kedge.config.schema import Config
    from kedge.engine.tool_processes import NoMachine

    context: ToolContext = replace(
        make_context(tmp_path), processes=await NoMachine().processes(Config(), str(tmp_path), FileThreads(""))
    )
    with pytest.raises(ToolFailed, match="cannot start processes"):
        await call(here(), context, url="http://site.example/")
