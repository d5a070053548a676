"""The availability of the port that a plan asks for, as `batchpool check` prints it."""

from __future__ import annotations

import http.client
import json
from contextlib import suppress

from batchpool.supervisor.host.listen import PortTaken, try_port

_TIMEOUT_S = 2.0


def port_state(host: str, port: int) -> str:
    """The state of a port in words; StartError if another program listens on it.

    A running batchpool, and a socket that systemd holds, are no error: `check` may run beside them.
    """
    try:
        try_port(host, port)
    except PortTaken as taken:
        for one in taken.by:
            if one.is_batchpool:
                return f"in use (by a running batchpool, pid {one.pid})"
            if one.is_init:
                return "in use (held by systemd)"
        if not taken.by and _answers_as_batchpool(host, port):
            return "in use (by a running batchpool)"
        raise
    return "free"


def _answers_as_batchpool(host: str, port: int) -> bool:
    """True when a batchpool replies on the port, as one that /proc does not show."""
    to = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(to, port, timeout=_TIMEOUT_S)
    with suppress(OSError, http.client.HTTPException, ValueError):
        connection.request("GET", "/v2")
        found = json.loads(connection.getresponse().read(65536))
        return isinstance(found, dict) and found.get("name") == "batchpool"
    return False
