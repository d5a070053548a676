"""Unix time that never goes back, for whatever waits until a time.

A machine's clock may be set back by hours. What was to be tried again in a second would then wait
for hours, and a model that was busy for a moment would stand still as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_NS_IN_MS = 1_000_000


class ForwardClock:
    """Unix time in ms: as the machine's clock says, or later by what that one was set back since.
    wall_ns, elapsed_ns: that clock, and one that nobody sets."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        elapsed_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._elapsed_ns = elapsed_ns
        self._ahead_ns = wall_ns() - elapsed_ns()

    def __call__(self) -> int:
        elapsed_ns = self._elapsed_ns()
        self._ahead_ns = max(self._ahead_ns, self._wall_ns() - elapsed_ns)
        return (elapsed_ns + self._ahead_ns) // _NS_IN_MS
