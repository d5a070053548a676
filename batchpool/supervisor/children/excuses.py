"""What is not the fault of a process that makes no progress, as Linux tells it.

A debugger may hold it. And on a machine with too much to do it may want a processor and get none:
that time is in schedstat, and it is no exemption for one that is stopped, waits for a lock that
nobody will release, or has the processor and runs in circles.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def is_traced(pid: int) -> bool:
    """Whether a debugger holds the process; False when there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)


def waited_ns(pid: int) -> int:
    """How long the threads of a process have waited for a processor, added up.

    0 when there is no such process, or where the kernel does not count it.
    """
    total_ns = 0
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    for thread in threads:
        try:
            total_ns += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
        except (OSError, IndexError):
            continue  # this thread has ended
    return total_ns


@dataclass
class Exemption:
    """Time that is not held against one process: all up to until_ns (CLOCK_MONOTONIC)."""

    until_ns: int = 0
    _waited_ns: int = 0
    _read_ns: int = 0

    def starve(self, since_ns: int, waited_ns: int, now_ns: int) -> None:
        """Excuse the wait for a processor between two readings that are both after since_ns.

        since_ns: when it last made progress. waited_ns: `waited_ns` of now. Of several threads
        that wait at the same time no more counts than the time itself.
        """
        if self._read_ns > since_ns:
            starved_ns = min(max(0, waited_ns - self._waited_ns), now_ns - self._read_ns)
            self.until_ns = max(since_ns, self.until_ns) + starved_ns
        self._waited_ns, self._read_ns = waited_ns, now_ns
