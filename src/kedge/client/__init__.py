"""The Python client: one method per route, the resuming event stream, the local server, the synchronous client."""
