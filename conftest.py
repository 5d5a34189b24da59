"""For all tests."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path

from tests.hanging import pytest_timeout_set_timer  # noqa: F401 -- a hook of pytest

# A shell starts background commands with interrupts ignored, and what we start inherits that: then no test could send
# Ctrl-C to anything. Whoever starts the tests, they begin with the usual handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Before the module is loaded: what it says of its tests begins with the settings there are then."""
    if "hypothesis" in module_path.read_text():
        _look_at_no_clock()


@cache
def _look_at_no_clock() -> None:
    """No test looks at a clock: on a busy machine anything may take long."""
    # Here and not above: most of the hundred processes that tests start to run tests in have no use for it.
    from hypothesis import settings

    settings.register_profile("kedge", deadline=None)
    settings.load_profile("kedge")
