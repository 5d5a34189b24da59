"""`python -m kedge` is the `kedge` command."""

from __future__ import annotations

from kedge.cli.main import main

if __name__ == "__main__":
    main()
