"""The simulator: whole runs of the real engine, server and client in made-up time, decided by a seed."""
