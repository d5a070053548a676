"""The check of the files with secrets that a configuration names, before any process needs them."""

from __future__ import annotations

from batchpool.core.config.schema import ServerConfig
from batchpool.credentials.api_keys import read_api_keys


def check_credentials(server: ServerConfig) -> None:
    """Raise ConfigError for a file that the front ends could not use."""
    if server.api_keys_file:
        read_api_keys(server.api_keys_file)
