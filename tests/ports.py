"""Ports for servers under test.

A port that the kernel picks may be picked again, for any connection of a test that runs at the
same time, before the server under test has bound it. So each process of the suite takes its
ports in turns from a range of its own, below those that the kernel picks from.
"""

from __future__ import annotations

import itertools
import os
import random
import socket

_FIRST, _RANGE, _RANGES = 10_000, 1_000, 22  # up to 32,000; Linux picks from 32,768 on
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw21").removeprefix("gw"))
_MINE = _FIRST + _RANGE * (_WORKER % _RANGES)
# Another run of the suite on this machine begins somewhere else.
_turns = itertools.count(random.SystemRandom().randrange(_RANGE))


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has."""
    for _ in range(_RANGE):
        port = _MINE + next(_turns) % _RANGE
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"every port from {_MINE} to {_MINE + _RANGE - 1} is taken")
