"""Reply: a completion listener that a coroutine awaits.

It is a file of its own since `client/loop.py` may be compiled, and a compiled subclass of
asyncio.Future, which is a C type, corrupts memory.
"""

from __future__ import annotations

import asyncio

from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import PoolError


class Reply(asyncio.Future[PendingRequest]):
    """A future of one finished request, whose slots belong to whoever awaits it."""

    def finished(self, pending: PendingRequest) -> bool:
        """Resolve the future; False if it was cancelled, and the slots are nobody's."""
        if self.done():
            return False
        self.set_result(pending)
        return True

    def failed(self, error: PoolError) -> None:
        """Fail the future, unless it was cancelled."""
        if not self.done():
            self.set_exception(error)
