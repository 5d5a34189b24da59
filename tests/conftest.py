"""For all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# A shell starts background commands with interrupts ignored, and what we start inherits that: then no test could send
# Ctrl-C to anything. Whoever starts the tests, they begin with the usual handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test looks at a clock: on a busy machine anything may take long.
settings.register_profile("kedge", deadline=None)
settings.load_profile("kedge")
