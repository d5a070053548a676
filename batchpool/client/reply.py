"""Reply: a listener of rows that a coroutine waits for."""

from __future__ import annotations

import asyncio

from batchpool.client.lane_client import PendingRequest
from batchpool.core.errors import PoolError


class Reply(asyncio.Future[PendingRequest]):
    """A listener to wait for."""

    def finished(self, pending: PendingRequest) -> bool:
        if self.done():
            return False
        self.set_result(pending)
        return True

    def failed(self, error: PoolError) -> None:
        if not self.done():
            self.set_exception(error)
