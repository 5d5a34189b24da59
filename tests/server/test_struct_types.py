"""Types that several threads decode at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: `gate` is called while msgspec builds the description of Outer. Until `gate` returns, it is half-built.
PROGRAM = """
import msgspec, sys, threading
from kedge.server import startup

building, decoded = threading.Event(), threading.Event()

def gate():
    building.set()
    if threading.current_thread() is not threading.main_thread():
        decoded.wait(10)
    return int

class Inner(msgspec.Struct):
    value: "gate()" = 0

class Outer(msgspec.Struct):
    inner: Inner

def decode():
    msgspec.convert({"inner": {}}, Outer)

async def serve_nothing(*options):
    first = threading.Thread(target=decode)
    first.start()
    building.wait()
    decode()
    decoded.set()
    first.join()

Inner.__module__ = Outer.__module__ = "kedge.example"
sys.modules["kedge.example"] = sys.modules["__main__"]
startup._serve = serve_nothing
sys.exit(startup.serve())
"""


@pytest.mark.found(
    "a run of CI",
    "the server died of a segmentation fault when two threads decoded a type for the first time at the same moment; a "
    "server now builds the descriptions of all its types before it starts a thread",
)
def test_first_use_of_a_type_by_two_threads_is_safe() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
