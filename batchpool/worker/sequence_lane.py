"""A generator's lane as its worker writes it: tokens, lengths, and how sequences ended.

A row's tokens stand in its slot of the output of tokens, and `size.out` says how many of them are
there. It is raised only after the tokens are written: a reader loads the length first, and finds
all tokens before it. Another worker that goes on with a row does the same, so that prompt and
tokens are the log of a row's recovery.

A worker may die between the last token of a row that stopped by itself and the row's end. So that
nothing is made behind that token, `message_len` says before the length does at which length the
row stops: STOPS_AT and the length in one word. No text is that long, and no row that ran has a
message before its end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import Status
from batchpool.core.tensors.dtypes import Array
from batchpool.generator import FINISH_REASON
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.lane import Lane
from batchpool.shm.ring import fence

STOPS_AT = 1 << 31
STOP, LENGTH = b"stop", b"length"
I64 = npt.NDArray[np.int64]


class SequenceLane:
    """One lane. bell: of its client. seen_cancels: its count of cancel words when they were last
    looked at."""

    def __init__(self, lane: Lane, bell: Doorbell) -> None:
        self.lane = lane
        self.bell = bell
        self.seen_cancels = -1
        column = lane.outputs[lane.spec.outputs[0].name]
        self._tokens = column.values
        self._lengths = column.sizes[:, column.places[0][0]]
        reason = lane.outputs[FINISH_REASON]
        assert reason.lengths is not None
        self._reasons, self._reason_lengths = reason.values, reason.lengths

    def begin(self, slot: int) -> None:
        """A row is begun that has no tokens: forget what an earlier use of the slot left."""
        self.lane.message_len[slot] = 0
        self._reason_lengths[slot] = 0

    def tokens_of(self, slot: int, most: int) -> tuple[Array, bool]:
        """A copy of the tokens that a row has, at most so many, and whether it stopped behind them.

        A local client can have written any length and any tokens; they concern its own row.
        """
        length = int(self._lengths[slot])
        stopped = 0 < length <= most and int(self.lane.message_len[slot]) == STOPS_AT | length
        return self._tokens[slot, : min(length, most)].copy(), stopped

    def write(self, slots: I64, at: I64, tokens: Array) -> None:
        """Write tokens [n, *token shape], each into a slot at a place; nobody sees them yet."""
        self._tokens[slots, at] = tokens

    def mark_stops(self, slots: I64, lengths: I64) -> None:
        """Say at which lengths these rows stop, before `publish` says the lengths."""
        self.lane.message_len[slots] = lengths | STOPS_AT

    def publish(self, slots: I64, lengths: I64) -> None:
        """Show the tokens that were written, and wake the client."""
        fence()
        self._lengths[slots] = lengths
        self.bell.ring()

    def cancelled(self, slots: I64, uses: I64) -> npt.NDArray[np.bool_]:
        """Of these rows, which their client has cancelled: a mask [n]."""
        found: npt.NDArray[np.bool_] = self.lane.cancel[slots] == uses
        return found

    def finish(self, slots: I64, lengths: I64, reason: bytes) -> None:
        """The rows ended well: write their reason, their length and OK. A client may have written
        another length meanwhile."""
        self._reasons[slots, : len(reason)] = np.frombuffer(reason, np.uint8)
        self._reason_lengths[slots] = len(reason)
        self._lengths[slots] = lengths
        self.lane.status[slots] = int(Status.OK)
