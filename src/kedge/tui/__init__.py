"""The terminal: `kedge` as the place where people work."""
