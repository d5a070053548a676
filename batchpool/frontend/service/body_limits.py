"""Sizes that bound the request bodies of one front end, in bytes, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What helps whose body is too large.
ADVICE = "send fewer rows at a time, or raise max_body_mib"
_MIB = 2**20
_DEFAULT_BODIES = 8  # bodies of the largest size may arrive at the same time by default
_LEAST_DISCARD_BYTES = 256 * _MIB


def max_body_bytes(server: Mapping[str, Any]) -> int:
    """The largest body of one request. server: the configuration's [server]."""
    most_mib: int = server["max_body_mib"]
    return most_mib * _MIB


def max_held_bytes(server: Mapping[str, Any]) -> int:
    """The most that all arriving bodies together may hold. server: the configuration's [server]."""
    most_mib: int = server["max_bodies_mib"] or _DEFAULT_BODIES * server["max_body_mib"]
    return most_mib * _MIB


def discard_bytes(body_bytes: int) -> int:
    """The most that is taken and dropped of a refused body, so that its caller reads the response.

    body_bytes: the largest body of one request.

    Dropping costs no memory. A caller that goes on sending beyond that loses its connection.
    """
    return max(_LEAST_DISCARD_BYTES, 4 * body_bytes)
