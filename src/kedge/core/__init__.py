"""The pure core: values in, values out. No clock, ids, randomness, logging, locks or await."""
