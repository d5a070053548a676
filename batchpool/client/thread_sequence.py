"""One sequence of a generator, whose tokens threads wait for."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.published_tokens import PublishedTokens
from batchpool.client.reaper import Reaper
from batchpool.client.running_sequence import late_error
from batchpool.core.errors import PoolError, PoolStopped
from batchpool.core.tensors.dtypes import Array


class ThreadSequence:
    """The tokens of a request of one row, which was claimed under the lock of its client and is not
    published yet.

    drop: cancels the request, or frees it if it is finished; called without the lock, or by garbage
    collection amid another call. finish_reason: as of `SequenceTokens`.
    """

    def __init__(
        self,
        reaper: Reaper,
        lane_client: LaneClient,
        pending: PendingRequest,
        drop: Callable[[LaneClient, list[PendingRequest]], None],
    ) -> None:
        self.finish_reason: str | None = None
        self._reaper = reaper
        self._lane_client = lane_client
        self._pending: PendingRequest | None = pending  # while it runs
        self._drop = drop
        self._published = PublishedTokens(lane_client.lane, pending.slots[0])
        self._error: PoolError | None = None

    def tokens(self) -> Array:
        """All tokens so far; a copy [n, *token shape]."""
        with self._reaper.lock:
            return self._published.all()

    def next_tokens(self) -> Array | None:
        """Wait for new tokens, [k, *token shape]; None at the end. Raises, once, the error that
        ended it, when all tokens before were given."""
        with self._reaper.lock:
            new = self._published.new()
            if new is None and self._pending is not None:
                self._await_news(self._pending)
                new = self._published.new()
        if self._error is not None:
            self.cancel()  # it is late: it still has its slot
        if new is not None:
            return new
        error, self._error = self._error, None
        if error is None:
            return None
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def cancel(self) -> None:
        """Take the sequence back, unless it has ended; its tokens so far can still be read."""
        with self._reaper.lock:
            pending, self._pending = self._pending, None
            self._published.leave()
        if pending is not None:
            self._drop(self._lane_client, [pending])

    def forsake(self) -> None:
        """As `cancel`, when nobody will read its tokens any more."""
        if self._pending is not None:
            self._drop(self._lane_client, [self._pending])

    def _await_news(self, pending: PendingRequest) -> None:
        """Until there are tokens, or it has ended. Needs the lock."""
        reaper = self._reaper
        if reaper.torn:
            reaper.mend()
        reaper.wait(self._lane_client, lambda: self._has_news(pending), pending.deadline_ns)
        if self._pending is None or self._published.length > self._published.taken:
            return
        if pending.remaining == 0 and not pending.abandoned:
            self._finish(pending)
        elif monotonic_ns() >= pending.deadline_ns:
            self._error = late_error(self._lane_client.spec.name, self._published.length)
        else:
            self._error = PoolStopped(
                f"the session with the pool has ended; the sequence had"
                f" {self._published.length} tokens"
            )
            self._pending = None
            self._published.leave()

    def _has_news(self, pending: PendingRequest) -> bool:
        """True if there are tokens, if it has ended, and if another thread took it back."""
        return (
            self._published.length > self._published.taken
            or pending.remaining == 0
            or pending.abandoned
            or self._pending is None
        )

    def _finish(self, pending: PendingRequest) -> None:
        """Take what the row left, and free its slot."""
        reaper = self._reaper
        reaper.torn = True
        self._error = self._lane_client.failure(pending)
        if self._error is None:
            self.finish_reason = self._published.finish_reason()
        self._pending = None
        self._published.leave()
        self._lane_client.release(pending)
        reaper.torn = False
        reaper.made_room()
