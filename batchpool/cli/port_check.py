"""The availability of the port that a plan asks for, as `batchpool check` prints it."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing, suppress

from batchpool.supervisor.host.listen import PortTaken, try_port

_TIMEOUT_S = 2.0


def port_state(host: str, port: int, *, tls: bool = False) -> str:
    """The state of a port in words; StartError if another program listens on it. tls: spoken there.

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
        if not taken.by and _answers_as_batchpool(host, port, tls=tls):
            return "in use (by a running batchpool)"
        raise
    return "free"


def _answers_as_batchpool(host: str, port: int, *, tls: bool) -> bool:
    """True when a batchpool replies on the port, as one that /proc does not show."""
    to = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(to, port, timeout=_TIMEOUT_S)
    if tls:  # nothing is told to the other side, so that its name does not matter
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(to, port, timeout=_TIMEOUT_S, context=context)
    with suppress(OSError, http.client.HTTPException, ValueError), closing(connection):
        connection.request("GET", "/v2")
        response = connection.getresponse()
        if 'realm="batchpool"' in response.getheader("WWW-Authenticate", ""):  # it wants a key
            return True
        found = json.loads(response.read(65536))
        return isinstance(found, dict) and found.get("name") == "batchpool"
    return False
