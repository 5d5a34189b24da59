"""The proofs of what kedge promises: the walk of the Lane, the simulator, the mutants, the TLA+ specification.

Not part of the wheel. `scripts/prove` runs all proofs in their small size, `scripts/long` in their large one.
"""
