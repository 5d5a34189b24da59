"""The Python client: routes (`client`), the resuming stream, finding a server, and the facade without `async`."""
