"""The benchmark suite. `python -m bench` from the root of the repository; README.md says what each line means."""
