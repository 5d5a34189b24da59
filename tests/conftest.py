"""For all tests."""

from __future__ import annotations

import signal

# A shell starts background commands with interrupts ignored, and what we start inherits that: then no test could send
# Ctrl-C to anything. Whoever starts the tests, they begin with the usual handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
