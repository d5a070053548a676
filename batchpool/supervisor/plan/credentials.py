"""The check of the files with secrets that a configuration names, before any process needs them."""

from __future__ import annotations

from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError
from batchpool.credentials.api_keys import read_api_keys


def check_credentials(server: ServerConfig) -> None:
    """Raise ConfigError for a file that the front ends could not use."""
    if server.api_keys_file:
        read_api_keys(server.api_keys_file)
    if server.ssl_keyfile and not server.ssl_certfile:
        raise ConfigError(f"ssl_keyfile = {server.ssl_keyfile!r}: expected ssl_certfile beside it")
    if server.ssl_certfile:
        # Not every process of a pool needs it, and it takes a while to import.
        from batchpool.credentials.tls import server_context

        server_context(server.ssl_certfile, server.ssl_keyfile)
