"""The tools a model may call: the port (`base`), the registry, and one file per family."""
