"""Seeded faults in the rest of the system, and the proof that each is found. (Those of the Lane alone: tests/core.)"""
