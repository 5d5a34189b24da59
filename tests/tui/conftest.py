from tests.client.fixtures import client, endpoint, home, in_home, own_client, own_server, server, shared_server

__all__ = ["client", "endpoint", "home", "in_home", "own_client", "own_server", "server", "shared_server"]
