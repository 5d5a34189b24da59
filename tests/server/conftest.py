from tests.client.fixtures import endpoint, home

__all__ = ["endpoint", "home"]
