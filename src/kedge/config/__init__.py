"""Configuration: schema, files in layers, trust, secrets, providers."""
