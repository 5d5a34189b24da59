"""The pure core: values in, values out. Standard library only; no clock, id, random number, logger, lock or await."""
