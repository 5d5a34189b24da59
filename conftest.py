"""Hooks for all tests and proofs."""

from __future__ import annotations

import gc
import signal
from functools import cache
from pathlib import Path

from kedge.struct_types import build_struct_types
from tests.hanging import pytest_timeout_set_timer  # noqa: F401 -- a hook of pytest

# A shell starts background commands with SIGINT ignored, and child processes inherit that: no test could send Ctrl-C.
# So the tests always start with the default handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Build types before tests decode in threads, and keep the garbage collector away from modules and collected tests:
    it used half the CPU time of short tests."""
    build_struct_types()
    gc.collect()
    gc.freeze()


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Set the profile of Hypothesis before a module that uses it is loaded."""
    if "hypothesis" in module_path.read_text():
        _disable_deadlines()


@cache
def _disable_deadlines() -> None:
    """Disable the deadlines of Hypothesis: on a busy machine any example may take long."""
    # Imported late: most of the many processes that run tests do not need it.
    from hypothesis import settings

    settings.register_profile("kedge", deadline=None)
    settings.load_profile("kedge")
