"""Seeded faults (mutants), and the proof that each is found. Faults of the Lane alone: proof/test_lane_faults.py."""
