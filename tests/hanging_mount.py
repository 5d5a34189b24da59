"""A real FUSE directory that can stop answering, as a dead NFS or sshfs mount does.

    with hanging_mount(tmp_path / "mount") as mount:
        ...           # shows the files of mount.source
        mount.hang()  # from here on every file system call below mount.path waits
        mount.answer()  # the waiting calls return
        mount.calls()  # the calls so far, with the threads that made them

The file system is served by a process of its own, which speaks the protocol of /dev/fuse. Nothing is cached in the
kernel: each call reaches that process. To hang, the process is stopped (SIGSTOP). Waiting threads can still be killed
with their process, as with NFS. At the end the process is killed: the kernel then aborts the waiting calls (ENOTCONN),
and the mount is detached. Needs root and /dev/fuse; tests are skipped elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

#: Time for the file system process to mount: it imports Python first. Seconds.
MOUNT_S = 30.0
#: The largest message: a write of 128 KiB and its headers. Bytes.
MESSAGE_BYTES_MAX = 256 * 1024
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
#: The root of every FUSE file system.
ROOT_NODE = 1
#: Open flag of a reply: no page cache, so that each read reaches this process.
DIRECT_IO = 1

_REQUEST = struct.Struct("<IIQQIIIHH")
_REPLY = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_libc = ctypes.CDLL(None, use_errno=True)


class HangingMount:
    """A mounted FUSE directory that passes calls through to `source`."""

    def __init__(self, path: Path, source: Path, process: subprocess.Popen[bytes]) -> None:
        self.path = path
        self.source = source
        self._process = process

    def hang(self) -> None:
        """Stop answering. Returns when the process is stopped, so that no later call is answered."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def answer(self) -> None:
        """Answer again, the waiting calls first."""
        self._process.send_signal(signal.SIGCONT)

    def calls(self) -> dict[int, list[str]]:
        """Return the calls of each thread: "OPCODE PATH". The id of a process is that of its first thread."""
        calls: dict[int, list[str]] = {}
        for line in _log_of(self.source).read_text().splitlines():
            thread, _, call = line.partition(" ")
            calls.setdefault(int(thread), []).append(call)
        return calls

    def give_up(self) -> None:
        """End the file system: waiting calls fail, and the directory is an empty one again. May be repeated."""
        self._process.kill()
        self._process.wait()
        _unmount(self.path)


@contextmanager
def hanging_mount(path: Path, source: Path | None = None) -> Iterator[HangingMount]:
    """Mount a directory at `path`, which is created. `source`: the directory with its files, default: PATH.source."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting FUSE needs root and /dev/fuse")
    source = source or path.with_name(f"{path.name}.source")
    for directory in (path, source):
        directory.mkdir(exist_ok=True)
    # Not through pytest's environment: the process must start fast, and load nothing but this file.
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM.format(file=__file__), str(path), str(source)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    mount = HangingMount(path, source, process)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode().strip()
        process.stdout.close()
        if line == f"error {errno.EPERM}":
            pytest.skip("this machine does not permit FUSE mounts")
        assert line == "mounted", line
        yield mount
    finally:
        mount.give_up()


def _log_of(source: Path) -> Path:
    return source.with_name(f"{source.name}.callers")


def _unmount(path: Path) -> None:
    while _libc.umount2(os.fsencode(path), MNT_DETACH) == 0:
        pass  # until nothing is mounted there


# --- the file system process ------------------------------------------------------------------------------------------

#: Loads this file without pytest, which is not on the path of an isolated interpreter.
_PROGRAM = """
import sys, types
sys.modules["pytest"] = types.ModuleType("pytest")
module = types.ModuleType("hanging_mount")
module.__file__ = {file!r}
exec(compile(open({file!r}).read(), {file!r}, "exec"), module.__dict__)
module.main(sys.argv[1], sys.argv[2])
"""


def main(path: str, source: str) -> NoReturn:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    if _libc.mount(b"kedge-test", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
        print(f"error {ctypes.get_errno()}", flush=True)
        sys.exit(1)
    print("mounted", flush=True)
    log = os.open(_log_of(Path(source)), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    with suppress(OSError):  # ENODEV: unmounted
        FileSystem(device, source, log).run()
    sys.exit(0)


class FileSystem:
    """Answers the requests of the kernel, one at a time, from the files of `source`."""

    def __init__(self, device: int, source: str, log: int) -> None:
        self._device = device
        #: A line for each request that a thread waits for.
        self._log = log
        #: Node id -> path, and the reverse. Nodes are never forgotten: a test has few files.
        self._paths = {ROOT_NODE: source}
        self._nodes = {source: ROOT_NODE}
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup,
            3: lambda node, data: self._attributes_reply(self._paths[node]),
            4: self._set_attributes,
            5: lambda node, data: os.fsencode(os.readlink(self._paths[node])),
            6: self._symlink,
            9: self._make_directory,
            10: self._unlink,
            11: self._remove_directory,
            12: lambda node, data: self._rename(node, data, 8),
            14: self._open,
            15: self._read,
            16: self._write,
            17: self._statistics,
            18: self._release,
            20: lambda node, data: b"",
            25: lambda node, data: b"",
            26: self._init,
            27: lambda node, data: struct.pack("<QIi", 0, 0, 0),
            28: self._list,
            29: lambda node, data: b"",
            30: lambda node, data: b"",
            35: self._create,
            45: lambda node, data: self._rename(node, data, 16),
        }

    def run(self) -> None:
        """Serve until the directory is unmounted, which reading reports as ENODEV."""
        while True:
            message = os.read(self._device, MESSAGE_BYTES_MAX)
            _, opcode, unique, node, _, _, thread, *_ = _REQUEST.unpack_from(message)
            if opcode in (2, 36, 42):  # forget, interrupt, batch forget: no reply
                continue
            if opcode not in (18, 26, 29):  # release, init, release of a directory: no thread waits
                os.write(self._log, f"{thread} {opcode} {self._paths[node]}\n".encode(errors="replace"))
            data, error = b"", 0
            try:
                answer = self._answers.get(opcode)
                if answer is None:
                    error = errno.ENOSYS
                else:
                    data = answer(node, message[_REQUEST.size :])
            except OSError as failed:
                error = failed.errno or errno.EIO
            with suppress(FileNotFoundError):  # the caller was killed meanwhile
                os.write(self._device, _REPLY.pack(_REPLY.size + len(data), -error, unique) + data)

    def _path(self, parent: int, name: bytes) -> str:
        return f"{self._paths[parent]}/{os.fsdecode(name)}"

    def _init(self, node: int, data: bytes) -> bytes:
        # Version 7.31, no optional features, writes of up to 128 KiB.
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 128 * 1024, 1, 32, 0, 0)

    def _attributes(self, path: str) -> bytes:
        status = os.lstat(path)
        times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
        return _ATTRIBUTES.pack(
            status.st_ino,
            status.st_size,
            status.st_blocks,
            *(time // 10**9 for time in times),
            *(time % 10**9 for time in times),
            status.st_mode,
            status.st_nlink,
            status.st_uid,
            status.st_gid,
            0,
            4096,
            0,
        )

    def _attributes_reply(self, path: str) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(path)

    def _entry(self, path: str) -> bytes:
        attributes = self._attributes(path)
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = len(self._paths) + ROOT_NODE
            self._paths[node] = path
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + attributes

    def _lookup(self, node: int, data: bytes) -> bytes:
        return self._entry(self._path(node, data.rstrip(b"\0")))

    def _set_attributes(self, node: int, data: bytes) -> bytes:
        path = self._paths[node]
        valid, _, _, size, _, _, mtime, _, _, mtime_ns, _, mode = struct.unpack_from("<IIQQQQQQIIII", data)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(path, size)
        if valid & 32 and not valid & 256:
            os.utime(path, ns=(mtime * 10**9 + mtime_ns,) * 2)
        return self._attributes_reply(path)

    def _symlink(self, node: int, data: bytes) -> bytes:
        name, target, _ = data.split(b"\0", 2)
        os.symlink(os.fsdecode(target), self._path(node, name))
        return self._entry(self._path(node, name))

    def _make_directory(self, node: int, data: bytes) -> bytes:
        mode, _ = struct.unpack_from("<II", data)
        path = self._path(node, data[8:].rstrip(b"\0"))
        os.mkdir(path, mode)
        return self._entry(path)

    def _unlink(self, node: int, data: bytes) -> bytes:
        os.unlink(path := self._path(node, data.rstrip(b"\0")))
        self._nodes.pop(path, None)
        return b""

    def _remove_directory(self, node: int, data: bytes) -> bytes:
        os.rmdir(path := self._path(node, data.rstrip(b"\0")))
        self._nodes.pop(path, None)
        return b""

    def _rename(self, node: int, data: bytes, head_bytes: int) -> bytes:
        (other,) = struct.unpack_from("<Q", data)
        name, new_name, _ = data[head_bytes:].split(b"\0", 2)
        path, new_path = self._path(node, name), self._path(other, new_name)
        os.rename(path, new_path)
        if moved := self._nodes.pop(path, None):
            self._nodes[new_path], self._paths[moved] = moved, new_path
        return b""

    def _open(self, node: int, data: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", data)
        handle = os.open(self._paths[node], flags & ~os.O_NOFOLLOW)
        return struct.pack("<QIi", handle, DIRECT_IO, 0)

    def _create(self, node: int, data: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", data)
        path = self._path(node, data[16:].rstrip(b"\0"))
        handle = os.open(path, flags | os.O_CREAT, stat.S_IMODE(mode))
        return self._entry(path) + struct.pack("<QIi", handle, DIRECT_IO, 0)

    def _read(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return os.pread(handle, size, offset)

    def _write(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return struct.pack("<II", os.pwrite(handle, data[40 : 40 + size], offset), 0)

    def _release(self, node: int, data: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", data)
        os.close(handle)
        return b""

    def _statistics(self, node: int, data: bytes) -> bytes:
        return struct.pack("<QQQQQIIII24x", 10**6, 10**6, 10**6, 10**6, 10**6, 4096, 255, 4096, 0)

    def _list(self, node: int, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        reply = b""
        with os.scandir(self._paths[node]) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for index, entry in enumerate(listed[offset:], offset + 1):
            name = os.fsencode(entry.name)
            kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) >> 12
            record = struct.pack("<QQII", entry.inode(), index, len(name), kind) + name
            record += bytes(-len(record) % 8)
            if len(reply) + len(record) > size:
                break
            reply += record
        return reply
