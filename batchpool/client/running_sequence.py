"""One sequence of a generator, followed while it runs, on one event loop.

Nothing is kept for a reader that is slow: its tokens stand in the slot until the row ends, and then
in one copy, so that no slot waits for a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batchpool.client.lane_client import LaneClient
from batchpool.client.loop import ClientLoop
from batchpool.client.pending_request import PendingRequest
from batchpool.client.published_tokens import PublishedTokens
from batchpool.core.errors import DeadlineExceeded, PoolError
from batchpool.core.tensors.dtypes import Array


class RunningSequence:
    """The listener of a request of one row, and its tokens, as of `SequenceTokens`.

    It is the tag of a request that is submitted; `follow` comes next, before the loop runs on.
    """

    def __init__(self, client_loop: ClientLoop, lane_client: LaneClient) -> None:
        self.finish_reason: str | None = None
        self._client_loop = client_loop
        self._lane_client = lane_client
        self._pending: PendingRequest | None = None  # while it runs
        self._error: PoolError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._may_push: Callable[[int], bool] | None = None
        self._push: Callable[[Array], None] | None = None

    def follow(self, pending: PendingRequest) -> None:
        """Read the row of this request, which was submitted just now."""
        slot = pending.slots[0]
        self._published = PublishedTokens(self._lane_client.lane, slot)
        self._pending = pending
        self._client_loop.watch(self._lane_client, slot, self._grew)

    @property
    def tokens(self) -> Array:
        """All tokens so far; a copy [n, *token shape]."""
        return self._published.all()

    @property
    def runs(self) -> bool:
        """False once it has ended, for whatever reason."""
        return self._pending is not None

    @property
    def n_tokens(self) -> int:
        """The number of all so far."""
        return self._published.length

    async def next_tokens(self) -> Array | None:
        """As of `SequenceTokens`."""
        while (new := self._published.new()) is None:
            if self._pending is None:
                error, self._error = self._error, None
                if error is None:
                    return None
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame
            if self._waiter is not None:
                raise RuntimeError("next_tokens was called while another call of it waits")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return new

    def push_to(self, may_push: Callable[[int], bool], push: Callable[[Array], None]) -> None:
        """As of `SequenceTokens`."""
        self._may_push, self._push = may_push, push

    def cancel(self) -> None:
        """Take the sequence back; as of `SequenceTokens`."""
        pending = self._pending
        if pending is not None:
            self._end()
            self._client_loop.abandon(self._lane_client, pending)

    # -- as the listener of its request -------------------------------------------------

    def finished(self, pending: PendingRequest) -> bool:
        """The row is done. Keeps the tokens, so that the slot is nobody's: False."""
        if self._pending is not None:
            self._error = self._lane_client.failure(pending)
            if self._error is None:
                self.finish_reason = self._published.finish_reason()
            self._end()
        return False

    def failed(self, error: PoolError) -> None:
        """The row's time is up, or the pool has gone."""
        if self._pending is not None:
            if isinstance(error, DeadlineExceeded):
                error = late_error(self._lane_client.spec.name, self._published.length)
            self._error = error
            self._end()

    def _end(self) -> None:
        assert self._pending is not None, "it ends once"
        self._client_loop.unwatch(self._lane_client, self._pending.slots[0])
        self._pending = None
        self._may_push = self._push = None  # which may refer to this object
        self._published.leave()
        self._wake()

    def _grew(self) -> None:
        """The row has new tokens."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return  # whoever reads them is not done with those before
        push, may_push, n = self._push, self._may_push, self._published.waiting
        if push is None or may_push is None or n <= 0 or not may_push(n):
            waiter.set_result(None)
            return
        try:
            push(self._published.take(n))
        except Exception as exc:  # of one caller, not of the lane
            if not waiter.done():
                waiter.set_exception(exc)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def late_error(model: str, n_tokens: int) -> DeadlineExceeded:
    """The error of a sequence whose deadline came before its end."""
    return DeadlineExceeded(
        f"model {model!r} was not done before the deadline; it had made {n_tokens} tokens"
    )
