"""The keeper: the process that starts and kills process trees for the server. It does not outlive the server.

    python -I -S -X utf8 -c BOOTSTRAP <directory of the package> <descriptor of its socket> <mechanism or "any">

It forks one overseer per tree, forwards messages between server and overseers, and reports when a tree is gone. Output
does not pass through it. One thread, one loop, standard library only.
"""

from __future__ import annotations

import array
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from kedge.warden import landlock, libc, namespace, overseer
from kedge.warden.keeper_protocol import (
    DESCRIPTORS_MAX,
    RECEIVE_BYTES,
    WIRE_VERSION,
    KeeperMessage,
    MessageReader,
    encode,
)
from kedge.warden.overseer import Containment, wake_on_signals
from kedge.warden.proc_fs import children, descendants, kill_all, send_signal
from kedge.warden.subreaper import Subreaper

#: The code that the keeper's interpreter runs. Our directory is last on its path: only `kedge` is found there.
BOOTSTRAP = "import sys; sys.path.append(sys.argv[1]); from kedge.warden.keeper import main; main()"

#: Time that an overseer has to kill its tree before the keeper does it. Seconds.
OVERSEER_S = 5.0

#: Time until the remaining processes of a killed tree (stuck in the kernel, or of another user) are reported. Seconds.
LEFT_S = 1.0

#: Interval of the checks whether the server is alive. A timer of the kernel does not count the time of a suspended
#: machine. Seconds.
ALIVE_CHECK_S = 1.0

#: Interval of the sweeps for processes whose overseer was killed. Seconds.
SWEEP_S = 0.005


class Tree:
    def __init__(self, key: int, child: int, control: socket.socket) -> None:
        self.key = key
        #: Our child: the overseer, or the process that waits for it outside its namespace.
        self.child = child
        self.overseer = child
        self.control = control
        self.lines = MessageReader()
        #: Deadlines of the overseer, and then of the kernel.
        self.kill_at: float | None = None
        self.give_up_at: float | None = None


class Keeper:
    def __init__(self, server: socket.socket, containment: Containment) -> None:
        self._server = server
        self._parent = os.getppid()
        self._containment = containment
        self._lines = MessageReader()
        self._descriptors: list[int] = []
        self._trees: dict[int, Tree] = {}
        #: Trees whose overseer was killed: they are gone when no stray process remains.
        self._sweeping: list[Tree] = []
        self._closing = False
        #: The time at which the server counts as dead if it does not report again; None: it need not report.
        self._dead_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._wake = wake_on_signals()

    def run(self) -> None:
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        while not self._closing or self._trees or self._sweeping:
            for key, _ in self._selector.select(self._timeout_s()):
                if key.fileobj is self._server:
                    self._receive()
                elif key.fileobj == self._wake:
                    os.read(self._wake, RECEIVE_BYTES)
                elif key.data.key in self._trees:
                    self._receive_from(key.data)
            if os.getppid() != self._parent:
                self._close()
            self._reap()
            self._sweep()
            self._enforce_deadlines()

    def _timeout_s(self) -> float | None:
        if self._sweeping:
            return SWEEP_S
        times = [at for tree in self._trees.values() for at in (tree.kill_at, tree.give_up_at) if at is not None]
        rest_s = max(min(times) - time.monotonic(), 0) if times else None
        if self._dead_at is None or not self._trees:
            return rest_s
        check_s = min(max(self._dead_at - _boot_time(), 0), ALIVE_CHECK_S)
        return check_s if rest_s is None else min(rest_s, check_s)

    # --- the server

    def _receive(self) -> None:
        space = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = self._server.recvmsg(RECEIVE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            data, ancillary = b"", []  # the server died with unread messages from us
        for level, kind, raw in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(raw)
                self._descriptors.extend(received)
        if not data:
            self._close()
        for line in self._lines.feed(data):
            if "run" in line:
                # Descriptors arrive with the first byte of their message: the oldest belong to this one.
                number = 1 + line["stdin"] + line["stderr"]
                streams, self._descriptors = self._descriptors[:number], self._descriptors[number:]
                self._start(line, streams)
            elif "end" in line:
                self._end(line)
            elif "ping" in line:
                self._report({"pong": line["ping"]})
            elif "alive_until" in line:
                # A server that was dead stays dead: its node has lost its leases.
                if not self._is_server_dead:
                    self._dead_at = line["alive_until"]
            elif (tree := self._trees.get(line["count"])) is not None:
                self._forward(tree, line)

    @property
    def _is_server_dead(self) -> bool:
        return self._dead_at is not None and _boot_time() >= self._dead_at

    def _start(self, order: KeeperMessage, streams: list[int]) -> None:
        # Before the fork: a server that does not find this among our last messages starts the program elsewhere.
        self._report({"accepted": order["run"]})
        try:
            if self._is_server_dead:
                raise OSError(None, "the server did not renew its lease in time")
            ours, its = socket.socketpair()
            with ours, its:
                child = os.fork()
                if child == 0:
                    try:
                        _close_all_but(its.fileno(), *streams)
                        overseer.begin(self._containment, its, order, streams)
                    finally:
                        os._exit(1)
                tree = Tree(order["run"], child, socket.socket(fileno=ours.detach()))
        except OSError as error:
            self._report({"failed": order["run"], "error": f"no process could be started: {error.strerror}"})
            self._report({"gone": order["run"], "left": []})
        else:
            self._trees[tree.key] = tree
            self._selector.register(tree.control, selectors.EVENT_READ, tree)
        for descriptor in streams:
            os.close(descriptor)

    def _end(self, line: KeeperMessage) -> None:
        tree = self._trees.get(line["end"])
        if tree is None:
            return  # the tree has ended, and the server was notified
        kill_at = time.monotonic() + line["grace_s"] + OVERSEER_S
        tree.kill_at = kill_at if tree.kill_at is None else min(kill_at, tree.kill_at)
        self._forward(tree, line)

    def _forward(self, tree: Tree, line: KeeperMessage) -> None:
        with suppress(OSError):  # the overseer is exiting
            tree.control.sendall(encode(line))

    def _report(self, line: KeeperMessage) -> None:
        with suppress(OSError):  # the server is gone; `_receive` sees the end of its socket
            self._server.sendall(encode(line))

    def _close(self) -> None:
        """Kill all trees: the server is gone, or closed the connection."""
        if self._closing:
            return
        self._closing = True
        self._selector.unregister(self._server)
        for tree in self._trees.values():
            tree.kill_at = time.monotonic() + OVERSEER_S
            with suppress(OSError):
                tree.control.shutdown(socket.SHUT_WR)

    # --- the overseers

    def _receive_from(self, tree: Tree) -> None:
        try:
            data = tree.control.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            for line in tree.lines.feed(data):
                if "started" in line:
                    tree.overseer = int(line["overseer"])
                self._report(line)
        except OSError:
            data = b""  # the overseer was killed
        except (ValueError, KeyError, TypeError):
            data = b""  # not a valid message: the overseer was taken over
            send_signal(tree.overseer, signal.SIGKILL)
        if not data:
            with suppress(KeyError):
                self._selector.unregister(tree.control)

    def _reap(self) -> None:
        by_child = {tree.child: tree for tree in self._trees.values()}
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return
                if pid in by_child and os.WIFSTOPPED(status):
                    # Without a namespace a tree can stop its overseer, but not for long.
                    send_signal(pid, signal.SIGCONT)
                elif pid in by_child:
                    self._overseer_ended(by_child[pid], status)

    def _overseer_ended(self, tree: Tree, status: int) -> None:
        del self._trees[tree.key]
        while tree.control in self._selector.get_map():
            self._receive_from(tree)  # its last messages come before "gone"
        tree.control.close()
        if status == 0:
            self._gone(tree, [])
        else:
            self._sweeping.append(tree)

    def _gone(self, tree: Tree, left: list[int]) -> None:
        self._report({"gone": tree.key, "left": left})

    # --- trees without an overseer

    def _sweep(self) -> None:
        """Kill the orphans of killed overseers, which are now our children, like the other overseers."""
        if not self._sweeping:
            return
        spared = {tree.child for tree in self._trees.values()}

        def strays() -> Iterator[int]:
            for pid in children(os.getpid()):
                if pid not in spared:
                    yield pid
                    yield from descendants(pid)

        kill_all(strays)
        self._reap()
        left = list(strays())
        for tree in list(self._sweeping):
            give_up = tree.give_up_at is not None and tree.give_up_at <= time.monotonic()
            if not left or give_up:
                self._sweeping.remove(tree)
                self._gone(tree, left)
            elif tree.give_up_at is None:
                tree.give_up_at = time.monotonic() + OVERSEER_S

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        if self._is_server_dead:
            for tree in [tree for tree in self._trees.values() if tree.kill_at is None and tree.give_up_at is None]:
                self._end({"end": tree.key, "grace_s": 0.0})
        for tree in list(self._trees.values()):
            if tree.kill_at is not None and tree.kill_at <= now:
                tree.kill_at, tree.give_up_at = None, now + LEFT_S
                send_signal(tree.overseer, signal.SIGKILL)
            elif tree.give_up_at is not None and tree.give_up_at <= now:
                tree.give_up_at = None
                self._gone(tree, list(descendants(tree.child)))
                if self._closing:
                    del self._trees[tree.key]


def _boot_time() -> float:
    """Return the seconds since the boot, with those in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _close_all_but(*exempt: int) -> None:
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in exempt:
            with suppress(OSError):  # the descriptor of the listing
                os.close(descriptor)


def _containment(choice: str) -> Containment | None:
    """Return the chosen mechanism, or for "any" the best that works on this machine."""
    if choice == "subreaper":
        return Subreaper()
    result = namespace.detect(own_users=choice == "user namespace")
    return Subreaper() if result is None and choice == "any" else result


def main() -> None:
    descriptor, choice = int(sys.argv[2]), sys.argv[3]
    with socket.socket(fileno=descriptor) as server:
        os.set_inheritable(descriptor, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the keeper lives as long as the server
        try:
            libc.name_process("kedge-keeper")
            libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
            containment = _containment(choice)
            if containment is None:
                raise OSError(f"this machine has no {choice}")
            if isinstance(containment, Subreaper):
                # Tools can see the keeper: with a debugger they could make it report that a tree is gone. (Not from a
                # namespace, and a process that is not dumpable cannot write the maps of a user namespace.)
                libc.prctl(libc.PR_SET_DUMPABLE, 0)
            keeper = Keeper(server, containment)
            # Wakes the keeper even if it is stopped when the server dies: overseers wait for it.
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGCONT)
            server.sendall(encode({"hello": WIRE_VERSION, "mechanism": containment.name, "landlock": landlock.abi()}))
            keeper.run()
        except Exception as error:
            # Overseers see the end of their sockets and kill their trees.
            with suppress(OSError):
                server.sendall(encode({"broken": f"{type(error).__name__}: {error}"}))
            sys.exit(1)
