"""Restrictions of the sandbox beyond file contents: attributes, sockets of other programs, and kedge's own files."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kedge.warden.base import Sandbox
from kedge.warden.landlock import SCOPES_ABI_MIN
from kedge.warden.warden import Warden
from tests.warden.support import PYTHON, new_mark, read_all, spec

#: Runs each function named by the arguments and prints which of them worked.
ATTEMPTS = """
import array, ctypes, fcntl, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result == -1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def unix(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        return client.recv(10).decode()
def flags(path):
    fd = os.open(path, os.O_RDONLY)
    fcntl.ioctl(fd, 0x40086602, array.array("i", [0x40]))  # FS_IOC_SETFLAGS, no dump
def mount(*args): checked(libc.mount(*args))
def remount(path, flags=0x1000 | 0x20): mount(b"none", path.encode(), None, flags, None)  # bind, remount
def umount(path, flags=2): checked(libc.umount2(path.encode(), flags))
def setattr(path):
    attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
    checked(libc.syscall(442, -100, path.encode(), 0x8000, attributes, 32))
def detached(path, then):  # a clone of the mount, writable again, is reached through its descriptor alone
    tree = libc.syscall(428, -100, path.encode(), 1 | 0x8000)
    checked(tree)
    attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
    checked(libc.syscall(442, tree, b"", 0x1000 | 0x8000, attributes, 32))
    os.chmod(f"/proc/self/fd/{tree}/{then}", 0o777)
def by_handle(path):  # past the mount: found by its number in the file system that the workspace is on
    handle, number = (ctypes.c_char * 136)(), ctypes.c_int()
    ctypes.cast(handle, ctypes.POINTER(ctypes.c_uint))[0] = 128
    checked(libc.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(number), 0))
    fd = libc.open_by_handle_at(os.open('.', os.O_RDONLY), handle, os.O_RDONLY)
    checked(fd)
    os.fchmod(fd, 0o777)
def nested(): checked(libc.unshare(0x10000000 | 0x20000))  # user and mount namespace
def write(path, text="evil"):
    with open(path, "w") as file: file.write(text)
worked = {}
for name, text in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        try: result = eval(text)
        except BaseException: os._exit(1)
        os._exit(0 if result in (None, "hello") else 1)
    if os.waitpid(child, 0)[1] == 0: worked[name] = True
print(json.dumps(sorted(worked)))
"""


async def worked(warden: Warden, home: Path, attempts: list[str] | dict[str, str], **more: Any) -> list[str]:
    """Return the names of the Python expressions that succeeded inside the sandbox."""
    named = attempts if isinstance(attempts, dict) else {text: text for text in attempts}
    env = {"PATH": "/usr/bin:/bin"}
    process = await warden.run(spec(*PYTHON, ATTEMPTS, json.dumps(named), cwd=str(home), env=env, **more))
    seen = await read_all(process)
    await process.end(0)
    result: list[str] = json.loads(seen)
    return result


@asynccontextmanager
async def daemon(address: str) -> AsyncIterator[None]:
    """A program outside of the tree that greets who connects to its Unix socket."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_unix_server(greet, address):
        yield


@pytest.mark.found(
    "attack 21",
    "in the sandbox a command could set modes (set-user-id among them), times, extended attributes and inode flags of "
    "every file outside; everything outside of the writable places is mounted read-only for it now",
)
async def test_attributes_outside_cannot_be_changed(subtracting: Warden, tmp_path: Path) -> None:
    work, victim = tmp_path / "work", tmp_path / "victim"
    work.mkdir()
    victim.write_text("")
    (work / "own").write_text("")
    before = victim.stat()
    deeds = ("os.chmod({}, 0o4777)", "os.utime({}, (1, 1))", "os.setxattr({}, 'user.x', b'y')", "flags({})")
    attempts = [deed.format(repr(str(victim))) for deed in (*deeds, "os.chown({}, 0, 0)", "write({})")]
    if not subtracting.sandbox.bubblewrap:
        # A descriptor from outside would lie on a mount from outside. (This is the mode it has already.)
        attempts.append("os.chmod('/proc/self/fd/0', 0o666)")
    allowed = [deed.format(repr(str(work / "own"))) for deed in deeds[:2]]
    assert await worked(subtracting, work, [*attempts, *allowed], writable=(str(work),)) == sorted(allowed)
    assert victim.stat() == before
    assert stat.S_IMODE((work / "own").stat().st_mode) == 0o4777


@pytest.mark.found(
    "attack 14",
    "a sandboxed command could have any program of the user that listens on a Unix socket (tmux, a container engine, "
    "systemd) act for it outside; the sockets of running programs, and the directories of daemons, are covered now",
)
async def test_sockets_of_other_programs_are_out_of_reach(subtracting: Warden, tmp_path: Path) -> None:
    work, temporary, later = tmp_path / "work", tmp_path / "tmp", tmp_path / "later"
    for directory in (work, temporary / "tmux", later):
        directory.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path)
    places = [work / "s", temporary / "tmux" / "s", tmp_path / "link" / "s", tmp_path / "first", later / "s"]
    async with AsyncExitStack() as daemons:
        for place in places:
            await daemons.enter_async_context(daemon(str(place)))
        (tmp_path / "first").rename(tmp_path / "second")
        places += [tmp_path / "s", tmp_path / "second"]
        attempts = {str(place): f"unix({str(place)!r})" for place in places}
        attempts["moved"] = f"os.rename({str(temporary / 'tmux')!r}, 'aside') or unix('aside/s')"
        attempts["linked"] = f"os.link({str(places[1])!r}, 'twin') or unix('twin')"
        writable = (str(work), str(temporary))
        limits: dict[str, Any] = {"writable": writable, "hidden": (str(later),), "reachable": (str(work),)}
        assert await worked(subtracting, work, attempts, **limits) == [str(places[0])]


async def test_a_hidden_directory_is_empty_without_a_sandbox_too(warden: Warden, tmp_path: Path) -> None:
    if not warden.sandbox.mounts:
        pytest.skip("needs mounts of its own")
    (tmp_path / "run").mkdir()
    async with daemon(str(tmp_path / "run" / "s")), daemon(str(tmp_path / "s")):
        attempts = [f"unix({str(tmp_path / name)!r})" for name in ("run/s", "s")]
        assert await worked(warden, tmp_path, attempts, hidden=(str(tmp_path / "run"),)) == attempts[1:]


async def test_abstract_sockets_and_signals_stay_inside(sandboxed: Warden, tmp_path: Path) -> None:
    if sandboxed.sandbox.landlock < SCOPES_ABI_MIN:
        pytest.skip("needs the scopes of Landlock")
    name = new_mark()
    async with daemon(f"\0{name}"):
        attempts = [f"unix('\\0{name}')", "os.kill(os.getppid(), 0)"]
        assert await worked(sandboxed, tmp_path, attempts, writable=(str(tmp_path),)) == attempts[1:]  # its own parent
        outside = {"overseer": f"os.kill({os.getpid()}, 0)", "keeper": f"os.kill({sandboxed.keeper_pid}, 0)"}
        assert await worked(sandboxed, tmp_path, outside, writable=(str(tmp_path),)) == []


@pytest.mark.found(
    "attack 15",
    "a sandbox around kedge's own files let a command write the configuration that turns it off; they are read-only or "
    "empty inside of writable places now, and where the machine cannot do that no command is run there",
)
async def test_protected_files_in_a_writable_place_stay_as_they_are(subtracting: Warden, tmp_path: Path) -> None:
    config, data = tmp_path / "home/.config/kedge", tmp_path / "home/.local/share/kedge"
    for directory in (config, data):
        directory.mkdir(parents=True)
    (config / "config.toml").write_text("mine")
    (data / "token").write_text("secret")
    file, home = f"{str(config)!r} + '/config.toml'", str(tmp_path / "home")
    attempts = {
        "write": f"write({file})",
        "mode": f"os.chmod({file}, 0o777)",
        "remove": f"os.unlink({file})",
        "replace": f"write('new') or os.rename('new', {file})",
        "rename": f"os.rename({str(config)!r}, 'aside')",
        "rename above": "os.rename('.config', 'aside')",
        "link": f"os.link({file}, 'twin') or write('twin')",
        "make": f"write({str(config / 'other')!r})",
        "read data": f"print(open({str(data / 'token')!r}).read())",
        "write data": f"write({str(data / 'trusted.json')!r})",
        "rename data": "os.rename('.local', 'aside')",
        "read": f"None if open({file}).read() == 'mine' else 1",
        "beside": "write('.config/other')",
        "below": "os.mkdir('.local/new')",
    }
    limits: dict[str, Any] = {"writable": (home,), "protected": (str(config),), "hidden": (str(data),)}
    assert await worked(subtracting, Path(home), attempts, **limits) == ["below", "beside", "read"]
    assert (config / "config.toml").read_text() == "mine"
    assert [path.name for path in (*config.iterdir(), *data.iterdir())] == ["config.toml", "token"]


async def test_a_single_protected_file_cannot_be_replaced(subtracting: Warden, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("mine")
    attempts = ["write('config.toml')", "os.unlink('config.toml')", "write('a') or os.rename('a', 'config.toml')"]
    limits: dict[str, Any] = {"writable": (str(tmp_path),), "protected": (str(tmp_path / "config.toml"),)}
    assert await worked(subtracting, tmp_path, attempts, **limits) == []
    assert (tmp_path / "config.toml").read_text() == "mine"


async def test_a_workspace_in_a_hidden_directory_can_be_used(subtracting: Warden, tmp_path: Path) -> None:
    work = tmp_path / "run" / "a" / "work"
    work.mkdir(parents=True)
    (tmp_path / "run" / "secret").write_text("")
    attempts = ["write('new')", "write('../new')", "os.stat('../../secret')"]
    limits: dict[str, Any] = {"writable": (str(work),), "hidden": (str(tmp_path / "run"),)}
    assert await worked(subtracting, work, attempts, **limits) == attempts[:1]
    assert (work / "new").exists()


async def test_the_mounts_of_the_sandbox_cannot_be_undone(subtracting: Warden, tmp_path: Path) -> None:
    """Root has every capability in the namespace of its mounts unless they are taken away."""
    work, outside = tmp_path / "work", tmp_path / "outside"
    (work / "protected").mkdir(parents=True)
    (work / "own").mkdir()
    outside.mkdir()
    protected = str(work / "protected")
    undo = {
        "remount": "remount('/')",
        "remount protected": f"remount({protected!r})",
        "umount": f"umount({str(work)!r})",
        "umount protected": f"umount({protected!r})",
        "setattr": "setattr('/')",
        "setattr protected": f"setattr({protected!r})",
        "detached": f"detached('/', {str(outside)[1:]!r})",
        "detached part": f"detached({str(tmp_path)!r}, 'outside')",
        "device": "os.mknod('disk', 0o60600, os.stat('/').st_dev)",
        "terminal": "os.close(os.open('/dev/ptmx', os.O_RDWR))",
        "handle": f"by_handle({str(outside)!r})",
        "unnamed file": f"os.close(os.open({str(outside)!r}, os.O_TMPFILE | os.O_WRONLY))",
        "exchange": f"checked(libc.renameat2(-100, b'own', -100, {protected.encode()!r}, 2))",
        "kernel": "write('/proc/sys/kernel/domainname', 'x')",
        "overseer's root": "os.stat('/proc/1/root/etc')",
        "overseer's files": "os.listdir('/proc/1/fd')",
    }
    if subtracting.sandbox.bubblewrap:
        del undo["terminal"]  # it makes terminals of its own
    nested = {f"nested {name}": f"nested() or {text}" for name, text in undo.items()}
    chroot = {"chroot": f"os.chroot('/') or os.chmod({str(outside)!r}, 0o777)"}
    limits: dict[str, Any] = {"writable": (str(work),), "protected": (protected,)}
    assert await worked(subtracting, work, {**undo, **nested, **chroot}, **limits) == []
    assert stat.S_IMODE(outside.stat().st_mode) != 0o777


@pytest.mark.found(
    "attack 21",
    "the documents claimed that a sandboxed command writes nowhere else; kedge doctor reports what each sandbox "
    "holds, and what not",
)
@pytest.mark.parametrize(
    ("sandbox", "held", "open_"),
    [
        (Sandbox(landlock=7, mounts=True), "nor their modes", "Unix sockets made later"),
        (Sandbox(mounts=True), "nor their modes", "abstract Unix sockets"),
        (Sandbox(bubblewrap=True), "sockets of running programs are covered", "abstract Unix sockets"),
        (Sandbox(landlock=7), "signals to processes outside are blocked", "modes, owners, times and attributes"),
        (Sandbox(landlock=3), "The contents of files", "Unix sockets of other programs, abstract Unix sockets"),
        (Sandbox(mounts=True, network="filter"), "can be cut off from the network", "by default"),
    ],
)
def test_a_sandbox_claims_what_it_holds(sandbox: Sandbox, held: str, open_: str) -> None:
    claim, _, rest = sandbox.description.partition("Not restricted: reading, the network")
    assert held in claim
    assert open_ in rest
