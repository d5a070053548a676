"""The number of front ends: as configured, else one for each four cores, at most four."""

from __future__ import annotations

from batchpool.core.config.server_table import ServerConfig

_CORES_OF_ONE = 4
_MOST = 4


def frontends_of(server: ServerConfig, cores: int) -> int:
    """The number of front ends of a pool that may use so many cores."""
    return server.frontends or max(1, min(_MOST, cores // _CORES_OF_ONE))
