"""Turns of reading among the connections of one front end whose bodies arrive.

In one turn the event loop reads every socket that has bytes, and up to 32 times in a row one that
always has more: some callers who send as fast as they can would have a request of another one wait
while megabytes are copied for each of them. So the bytes of bodies that are read in one turn have a
bound. Beyond it a connection is read no more and stands in a queue; each turn reads the first few
of the queue, once each, so that all get the same number of reads.

    a read beyond the bound        joins the end of the queue
    a read while others wait       the same, whatever is left of the bound
    a turn                         resumes the first connections, as many as their reads fit in
    a body that is dropped         joins a queue of its own, of which one is read every `DROP_S`

The rest of a refused body is taken only so that its caller gets to read the response, and whoever
does not look at it sends at the cost of everybody else: so it is read slowly, 128 MB a second for
all such connections together.

Short reads are neither counted nor paused: taking them costs less than pausing does. A request that
comes whole in one read never meets any of this.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from batchpool.frontend.http.read_flow import ReadFlow

READ_BYTES = 256_000  # the most that uvloop reads at once
TURN_READS = 4
TURN_BYTES = TURN_READS * READ_BYTES
SHORT_BYTES = 4096
DROP_S = 0.002


class ReadTurns:
    """The queues of one front end. `took` is called after each read, `leave` at the end."""

    def __init__(self) -> None:
        self._turn_bytes = 0  # read in this turn
        self._turn_ends = False  # `_next_turn` will be called
        self._waiting: dict[ReadFlow, None] = {}
        self._dropping: dict[ReadFlow, None] = {}
        self._drop_is_due = False  # `_next_drop` will be called

    def took(
        self, loop: asyncio.AbstractEventLoop, flow: ReadFlow, size: int, *, is_dropped: bool
    ) -> None:
        """Count a read of a body that has not ended, and pause its connection if others are next.

        size: in bytes. is_dropped: the body was refused, so that what comes of it is dropped.
        """
        if size < SHORT_BYTES:
            return
        if is_dropped:
            flow.await_turn()
            self._dropping[flow] = None
            if not self._drop_is_due:
                self._drop_is_due = True
                loop.call_later(DROP_S, self._next_drop, loop)
            return
        self._turn_bytes += size
        if self._waiting or self._turn_bytes >= TURN_BYTES:
            flow.await_turn()
            self._waiting[flow] = None
        if not self._turn_ends:
            self._turn_ends = True
            loop.call_soon(self._next_turn, loop)

    def leave(self, flow: ReadFlow) -> None:
        """Forget a connection that has ended."""
        self._waiting.pop(flow, None)
        self._dropping.pop(flow, None)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_bytes = 0
        for flow in list(islice(self._waiting, TURN_READS)):
            del self._waiting[flow]
            flow.take_turn()
        self._turn_ends = bool(self._waiting)
        if self._turn_ends:
            loop.call_soon(self._next_turn, loop)

    def _next_drop(self, loop: asyncio.AbstractEventLoop) -> None:
        for flow in list(islice(self._dropping, 1)):
            del self._dropping[flow]
            flow.take_turn()
        self._drop_is_due = bool(self._dropping)
        if self._drop_is_due:
            loop.call_later(DROP_S, self._next_drop, loop)
