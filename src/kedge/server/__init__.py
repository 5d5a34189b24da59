"""The HTTP server: authenticates, decodes, calls the engine, and encodes. It has no rules of its own."""
