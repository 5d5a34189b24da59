"""The pure core: values in, values out. No clock, id, random number, logger, lock or await; of others only `Struct`."""
