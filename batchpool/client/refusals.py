"""Why a lane takes no claim now, in words, and when to come back."""

from __future__ import annotations

from batchpool.client.backpressure import DrainRate, OutageBackoff
from batchpool.core.errors import Draining, InternalError, Moved, NotReady, Overloaded, PoolError
from batchpool.core.layout.slots import Cause, Refusal, SlotAllocator
from batchpool.core.layout.states import LaneGate


class Rejections:
    """Of one lane to this model. pace: how fast it drains. outage: None while somebody serves."""

    __slots__ = ("_drain_rate", "_map", "_model", "backoff")

    def __init__(self, model: str, slots: SlotAllocator, drain_rate: DrainRate) -> None:
        self._model = model
        self._map = slots
        self._drain_rate = drain_rate
        self.backoff: OutageBackoff | None = None

    def shut(self, gate: int, now_ns: int) -> PoolError:
        """What a gate that is not open means."""
        if gate in (LaneGate.MOVED, LaneGate.GONE):
            return Moved(f"model {self._model!r} was replaced just now; send it again")
        if gate == LaneGate.DRAINING:
            return Draining("the pool takes no new requests")
        if gate == LaneGate.BROKEN:
            return InternalError(
                f"this client's lane to model {self._model!r} was closed as broken"
            )
        return self._not_ready(f"model {self._model!r} is not open for requests yet", now_ns)

    def unserved(self, now_ns: int) -> NotReady:
        """There is no worker."""
        return self._not_ready(f"no worker serves model {self._model!r} now", now_ns)

    def _not_ready(self, text: str, now_ns: int) -> NotReady:
        if self.backoff is None:
            self.backoff = OutageBackoff(now_ns)
        return NotReady(text, self.backoff.wait_ms(now_ns))

    def overloaded(self, refusal: Refusal) -> Overloaded:
        """There is no room in the lane, or no more of it for this flow."""
        head = f"model {self._model!r} is overloaded:"
        if refusal.cause is Cause.LANE:
            text = f"{head} {refusal.held} of {self._map.slots} slots are in use"
            return Overloaded(text, self._drain_rate.wait_ms(refusal.over))
        text = (
            f"{head} this flow holds {refusal.held} of {self._map.slots} slots, and half"
            f" ({self._map.share}) is its share while others are active"
        )
        # While its own slots drain, those of the others drain too.
        return Overloaded(
            text, self._drain_rate.wait_ms(refusal.over * self._map.claimed // refusal.held)
        )
