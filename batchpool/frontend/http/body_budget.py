"""Bodies: how much of request bodies one front end holds while they arrive, and its bound.

Counted is what has come, not what was announced: callers that announce much and send nothing keep
nobody out. A body that comes whole in one read is never counted; it is gone with that read.
"""

from __future__ import annotations

from batchpool.core.errors import Overloaded

_COME_BACK_MS = 1000


class BodyBudget:
    """All bodies that are arriving. most_bytes: may be held of them."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0


class BodyReservation:
    """What is held of one of them. size: in bytes."""

    __slots__ = ("_bodies", "size")

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        self.size = 0

    def grow_to(self, size: int) -> None:
        """So many bytes have come by now. Overloaded where that is more than may be held of all;
        what was held of it before still is."""
        bodies = self._bodies
        held_bytes = bodies.held_bytes + size - self.size
        if held_bytes > bodies.most_bytes:
            raise Overloaded(
                f"too many request bodies arrive at the same time: {bodies.most_bytes} bytes are"
                " held already",
                _COME_BACK_MS,
            )
        bodies.held_bytes = held_bytes
        self.size = size

    def release(self) -> None:
        """Nothing is held any more."""
        self._bodies.held_bytes -= self.size
        self.size = 0
