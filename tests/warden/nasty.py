"""Processes that do not want to go. Each prints "ready" when it has become what its name says."""

from __future__ import annotations

from kedge.warden.warden import Warden
from kedge.warden.warden_process import WardenProcess
from tests.warden.support import PYTHON, read_until, spec

_FOREVER = "while True: signal.pause()"
_BEGIN = "import ctypes, os, signal, sys, threading, time; rest = time.sleep; ready = lambda: os.write(1, b'ready')\n"


def _shell(script: str) -> tuple[str, ...]:
    return ("bash", "-c", script)


def _python(program: str) -> tuple[str, ...]:
    return (*PYTHON, _BEGIN + program)


KINDS: dict[str, tuple[str, ...]] = {
    "ignores SIGTERM": _shell("trap '' TERM; sleep 1000 & echo ready; while :; do wait; sleep 1000; done"),
    "starts a new one on SIGTERM": _shell("trap 'sleep 1000 &' TERM; echo ready; while :; do sleep 1000 & wait; done"),
    "new session": _python(f"if os.fork() == 0:\n os.setsid()\n ready()\n{_FOREVER}"),
    "daemon": _python(
        "if os.fork() == 0:\n"
        " os.setsid()\n"
        " if os.fork(): os._exit(0)\n"
        " ready()\n"
        " [os.close(fd) for fd in (0, 1, 2)]\n"
        f" {_FOREVER}"
    ),
    "nohup": _shell("nohup sleep 1000 >/dev/null 2>&1 & echo ready"),
    "stopped child": _shell("sleep 1000 & kill -STOP $!; echo ready; wait"),
    "stopped as a whole": _shell("sleep 1000 & (sleep 1000 & kill -STOP $BASHPID) & echo ready; kill -STOP $$"),
    "closed streams": _shell("echo ready; exec <&- >&- 2>&-; sleep 1000 & sleep 1000"),
    "child holds the pipes": _shell("sleep 1000 & echo ready"),
    "respawner": _python("ready()\nwhile True:\n if os.fork(): os._exit(0)\n"),
    "supervisor that restarts": _python(
        "def work():\n"
        " signal.pause()\n"
        " os._exit(0)\n"
        "ready()\n"
        "while True:\n"
        " if os.fork() == 0: work()\n"
        " if os.fork() == 0:\n"
        "  while True:\n"
        "   if os.fork() == 0: work()\n"
        "   os.wait()\n"
        " os.wait()\n"
    ),
    "fork bomb": _python(f"ready()\nfor _ in range(8): os.fork()\n{_FOREVER}"),
    "bomb of respawners": _python(
        "ready()\nfor _ in range(4): os.fork()\nwhile True:\n if os.fork(): os._exit(0)\n rest(0.001)\n"
    ),
    "zombie maker": _python(f"for _ in range(50):\n if os.fork() == 0: os._exit(0)\nready()\n{_FOREVER}"),
    "other process group": _python(
        f"for _ in range(3):\n if os.fork() == 0:\n  os.setpgid(0, 0)\n  break\nready()\n{_FOREVER}"
    ),
    "renamed": _shell("(exec -a '[kworker/0:0] (x) Z' sleep 1000) & echo ready; exec -a init sleep 1000"),
    "tracer": _python(
        "child = os.fork()\n"
        "libc = ctypes.CDLL(None)\n"
        "if child: libc.ptrace(0x4206, child, 0, 0)\n"  # PTRACE_SEIZE
        "ready()\n"
        f"{_FOREVER}"
    ),
    "namespace of its own": _python(
        "ctypes.CDLL(None).unshare(0x30000000)\n"  # user and pid, where that is allowed
        f"if os.fork() == 0:\n os.fork()\n ready()\n{_FOREVER}"
    ),
    "child of a thread": _python(
        "def work():\n"
        " if os.fork() == 0:\n"
        "  signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "  ready()\n"
        "  while True: rest(1000)\n"
        " rest(1000)\n"
        f"threading.Thread(target=work).start()\n{_FOREVER}"
    ),
    "subreaper of its own": _python(
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "if os.fork() == 0:\n if os.fork(): os._exit(0)\n os.setsid()\n ready()\n"
        f"{_FOREVER}"
    ),
    "stops its overseer": _shell("read go; sleep 1000 & kill -STOP $PPID; echo ready; wait"),
    "kills its overseer": _shell("read go; setsid sleep 1000 & echo ready; kill -KILL $PPID; sleep 1000"),
    "stops its overseer for ever": _shell("read go; echo ready; while :; do kill -STOP $PPID; done"),
    "endless output": _shell("echo ready; yes & yes"),
    "ignores all it can": _python(
        "for number in signal.valid_signals() - {9, 19}: signal.signal(number, signal.SIG_IGN)\n"
        "os.fork()\nready()\nwhile True: rest(1000)"
    ),
}

#: A scan of /proc may find no process of these: it is dead already, or lives too briefly.
HARD_TO_SEE = {"kills its overseer", "respawner", "bomb of respawners"}


async def start(warden: Warden, kind: str, mark: str) -> WardenProcess:
    process = await warden.run(spec(*KINDS[kind], mark=mark, stdin="pipe"))
    if "overseer" in kind:
        await process.write(b"go\n")  # an overseer attacked earlier could not report the start of the process
    await read_until(process, b"ready")
    return process
