"""The limits on time and size of one connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SWEEP_LEAST_S = 0.1  # sweeping ten thousand connections takes milliseconds


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection. head_bytes: of the request line and all headers. fields: number of
    headers."""

    stall_s: float = 30.0
    arrival_s: float = 120.0
    keep_alive_s: float = 75.0
    head_bytes: int = 64 * 1024
    fields: int = 256

    @classmethod
    def of(cls, server: Mapping[str, Any]) -> ConnectionLimits:
        """The limits that the configuration's [server] sets."""
        return cls(arrival_s=server["receive_timeout_s"])

    @property
    def sweep_s(self) -> float:
        """The interval between sweeps.

        A wait exceeds its limit by at most a tenth of a stall, a fifth of an arrival, or a tenth of
        a second.
        """
        return min(self.stall_s / 10, max(self.arrival_s / 5, _SWEEP_LEAST_S))
