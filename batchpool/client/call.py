"""What the sync and the async client do alike with one call's arguments."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batchpool.client.port import Port
from batchpool.client.session import ModelFacts
from batchpool.core.config import ServerConfig
from batchpool.core.errors import InvalidRequest
from batchpool.core.places import socket_path
from batchpool.core.tensors import Rows, check_rows

_LONGEST_S = 1e9  # over thirty years; infinity has no whole number of ns


@dataclass(frozen=True, slots=True)
class Call:
    """One checked call: rows, times (CLOCK_MONOTONIC ns), the outputs asked for."""

    rows: Rows
    start_ns: int
    deadline_ns: int
    timeout_s: float
    outputs: tuple[str, ...] | None
    priority: int

    @classmethod
    def of(
        cls,
        port: Port,
        facts: ModelFacts,
        tensors: Mapping[str, Any],
        parameters: Mapping[str, Any] | None,
        outputs: Iterable[str] | None,
        timeout_s: float | None,
        priority: int,
    ) -> Call:
        """Check one call's arguments; InvalidRequest or TooLarge say what is wrong."""
        rows = check_rows(port.spec, tensors, parameters)
        if timeout_s is None:
            timeout_s = facts.request_timeout_s
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s is {timeout_s!r}; a positive number was expected")
        if not 0 <= priority <= 255:
            raise InvalidRequest(f"priority is {priority!r}; 0 to 255 was expected")
        names = None if outputs is None else tuple(outputs)
        for name in names or ():
            if name not in port.lane.outputs:
                known = ", ".join(map(repr, port.lane.outputs))
                raise InvalidRequest(
                    f"model {port.spec.name!r} has no output {name!r}; it has {known}"
                )
        now_ns = time.monotonic_ns()
        deadline_ns = now_ns + int(min(timeout_s, _LONGEST_S) * 1e9)
        return cls(rows, now_ns, deadline_ns, timeout_s, names, priority)

    def late_text(self, model: str) -> str:
        return f"model {model!r} did not answer within {self.timeout_s:g} s"


def default_socket() -> str:
    """Where `batchpool serve` listens for local clients unless it is told otherwise."""
    return socket_path(ServerConfig(), os.environ, os.getuid())
