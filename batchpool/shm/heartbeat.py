"""The heartbeats: each watched process stamps the time while its loop turns; the supervisor reads.

A process that is stopped, in an endless loop or deadlocked stamps no more. Nothing is asked of
it, so it can be found by somebody who does not wait for it. The clock is CLOCK_MONOTONIC, the
same for every process.
"""

from __future__ import annotations

from batchpool.core.layout.segments import heartbeats_layout
from batchpool.shm.segment import map_checked

BATCHER = 0
_SLOWEST_NS = 250_000_000


def frontend_word(i: int) -> int:
    """The word of front end i; that of the batcher is BATCHER."""
    return 1 + i


def beat_interval_ns(stall_timeout_s: float) -> int:
    """Intervals of stamping and of checking that suit a limit; 0 is no limit.

    A quarter of the limit, so that one late stamp is no alarm, but at most 0.25 s.
    """
    return min(_SLOWEST_NS, int(stall_timeout_s * 1e9) // 4) or _SLOWEST_NS


class Heartbeats:
    """The heartbeats of `words` processes; each writes its own word, the supervisor none."""

    def __init__(self, fd: int, words: int, *, writable: bool = True) -> None:
        layout = heartbeats_layout(words)
        segment = map_checked(fd, layout, writable=writable)
        self._progress_ns = segment.scalars(layout.columns["progress_ns"])

    def beat(self, word: int, now_ns: int) -> None:
        """Only the word's process calls this, from the loop that does its work."""
        self._progress_ns[word] = now_ns

    def last_ns(self, word: int, started_ns: int) -> int | None:
        """When the process that was started then last stamped; None before it has.

        A stamp from before the start is that of a process that had the word earlier.
        """
        last_ns = self._progress_ns[word]
        return last_ns if last_ns >= started_ns else None
