"""The benchmark suite. Run `python -m bench` from the repository root; README.md explains each row."""
