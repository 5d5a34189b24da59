"""Exit codes of `kedge`. Scripts rely on them; `kedge run --help` and docs/command-line.md list them."""

from __future__ import annotations

EXIT_COMPLETED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_APPROVAL = 3
EXIT_UNREACHABLE = 4
EXIT_TIMEOUT = 124
EXIT_CANCELLED = 130
