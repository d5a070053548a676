"""The memory that request bodies may take in one front end while they arrive.

Bytes count when they have come, not when they are announced: a caller that announces much and sends
nothing does not exclude others. A body that comes whole in one read never counts: it is freed with
that read.
"""

from __future__ import annotations

from batchpool.core.errors import Overloaded

_RETRY_AFTER_MS = 1000


class BodyBudget:
    """The bytes held of all arriving bodies. max_bytes: the most that may be held."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0


class BodyReservation:
    """The bytes held of one arriving body. size: in bytes."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Record that `size` bytes have come by now.

        Raises Overloaded where all bodies together would exceed the budget; the earlier
        reservation is kept then.
        """
        budget = self._budget
        held_bytes = budget.held_bytes + size - self.size
        if held_bytes > budget.max_bytes:
            raise Overloaded(
                f"too many request bodies arrive at the same time: {budget.max_bytes} bytes are"
                " held already",
                _RETRY_AFTER_MS,
            )
        budget.held_bytes = held_bytes
        self.size = size

    def release(self) -> None:
        """Give the whole reservation back."""
        self._budget.held_bytes -= self.size
        self.size = 0
