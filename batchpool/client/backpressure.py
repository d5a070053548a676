"""Backpressure of one lane: the errors of rejected claims, and the Retry-After that they carry.

DrainRate       rows per second that the lane completes -> time until it has room
OutageBackoff   time since the model was last seen served -> time to wait before another try
Rejections      the error of a claim that the lane does not take, built from both
"""

from __future__ import annotations

from batchpool.core.errors import Draining, InternalError, Moved, NotReady, Overloaded, PoolError
from batchpool.core.layout.admission import Cause, Refusal, SlotAllocator
from batchpool.core.layout.arena_admission import ArenaAllocator
from batchpool.core.layout.states import LaneGate
from batchpool.shm.memory_limits import size_text

_WINDOW_NS = 100_000_000
_KEEP = 0.8  # share of the earlier measurement that each new window leaves
# A window this many times as long as the longest recent one is a stall, for example dead or hung
# workers. No rows drained in it, so it says nothing of how fast rows drain.
_STALL_FACTOR = 4
_LONGEST_KEEP = 0.9  # share of the longest window's length that each new window leaves
_LONGEST_FIRST_NS = 1_000_000_000  # taken as the longest window until there are windows
_WAIT_UNKNOWN_MS = 1000
_WAIT_MAX_MS = 30_000
_OUTAGE_FORGET_NS = 2 * _WAIT_MAX_MS * 1_000_000
_NS_PER_MS = 1_000_000


class DrainRate:
    """Completed rows per second, exponentially averaged, without stalls.

    Completions are counted in windows; a window ends with the first completion after 0.1 s. The
    rate is rows divided by time, both of which lose a fifth with each new window. A window far
    longer than the longest recent one is left out as a stall. Each window also lets the limit
    grow, so a real slowdown counts after one or two windows.
    """

    __slots__ = ("_count", "_longest_ns", "_measured_ns", "_rows", "_since_ns")

    def __init__(self) -> None:
        self._count = 0
        self._since_ns = 0
        self._rows = 0.0
        self._measured_ns = 0.0
        self._longest_ns = float(_LONGEST_FIRST_NS)

    def count(self, rows: int, now_ns: int) -> None:
        """Add `rows` completions, seen at now_ns (CLOCK_MONOTONIC)."""
        if not self._since_ns:
            self._since_ns = now_ns
            return
        self._count += rows
        passed_ns = now_ns - self._since_ns
        if passed_ns < _WINDOW_NS:
            return
        max_ns = _STALL_FACTOR * self._longest_ns
        if passed_ns <= max_ns:
            self._rows = _KEEP * self._rows + self._count
            self._measured_ns = _KEEP * self._measured_ns + passed_ns
        self._longest_ns = max(_LONGEST_KEEP * self._longest_ns, min(passed_ns, max_ns))
        self._count = 0
        self._since_ns = now_ns

    def pause(self) -> None:
        """Drop the open window: with no rows claimed, time passes without a drain to measure."""
        self._count = 0
        self._since_ns = 0

    def rows_per_s(self) -> float:
        """The measured rate; 0 before any measurement."""
        return self._rows * 1e9 / self._measured_ns if self._measured_ns else 0.0

    def wait_ms(self, rows: int) -> int:
        """Estimated time until `rows` rows have drained, 1 to 30,000 ms; 1,000 if unmeasured."""
        rate = self.rows_per_s()
        if rate <= 0:
            return _WAIT_UNKNOWN_MS
        return min(_WAIT_MAX_MS, max(1, round(max(rows, 1) * 1000 / rate)))


class OutageBackoff:
    """Time for a caller to wait while no worker serves its model.

    An outage is assumed to last as long again as it has lasted so far. A caller that keeps to it
    returns at most twice as late as possible, and tries only a few times.
    """

    __slots__ = ("_seen_ns", "_since_ns")

    def __init__(self, now_ns: int) -> None:
        self._since_ns = self._seen_ns = now_ns

    def wait_ms(self, now_ns: int) -> int:
        """Time to wait, 1,000 to 30,000 ms, of a call that met the outage at now_ns.

        Where no call has met the outage for a minute, it counts as over, and a new one begins.
        """
        if now_ns - self._seen_ns > _OUTAGE_FORGET_NS:
            self._since_ns = now_ns
        self._seen_ns = now_ns
        passed_ms = (now_ns - self._since_ns) // _NS_PER_MS
        return min(_WAIT_MAX_MS, max(_WAIT_UNKNOWN_MS, passed_ms))


class Rejections:
    """Makes the errors of claims that one lane rejects.

    backoff: the present outage of the model; None while it is served.
    """

    __slots__ = ("_drain_rate", "_map", "_model", "backoff")

    def __init__(self, model: str, slots: SlotAllocator, drain_rate: DrainRate) -> None:
        self._model = model
        self._map = slots
        self._drain_rate = drain_rate
        self.backoff: OutageBackoff | None = None

    def shut(self, gate: int, now_ns: int) -> PoolError:
        """The error of a claim at a gate that is not OPEN."""
        if gate in (LaneGate.MOVED, LaneGate.GONE):
            return Moved.replaced(self._model)
        if gate == LaneGate.DRAINING:
            return Draining("the pool takes no new requests")
        if gate == LaneGate.BROKEN:
            return InternalError(
                f"this client's lane to model {self._model!r} was closed as broken"
            )
        return self._not_ready(f"model {self._model!r} is not open for requests yet", now_ns)

    def unserved(self, now_ns: int) -> NotReady:
        """The error of a claim while no worker serves the model."""
        return self._not_ready(f"no worker serves model {self._model!r} now", now_ns)

    def _not_ready(self, text: str, now_ns: int) -> NotReady:
        if self.backoff is None:
            self.backoff = OutageBackoff(now_ns)
        return NotReady(text, self.backoff.wait_ms(now_ns))

    def overloaded(self, refusal: Refusal) -> Overloaded:
        """The error of a claim for which the lane, or the share of its flow, has no room."""
        head = f"model {self._model!r} is overloaded:"
        if refusal.cause is Cause.LANE:
            text = f"{head} {refusal.held} of {self._map.slots} slots are in use"
            return Overloaded(text, self._drain_rate.wait_ms(refusal.over))
        text = (
            f"{head} this flow holds {refusal.held} of {self._map.slots} slots, and half"
            f" ({self._map.share}) is its share while others are active"
        )
        # The rate is that of all flows, of which this one's rows are only a part.
        rows = refusal.over * self._map.claimed // refusal.held
        return Overloaded(text, self._drain_rate.wait_ms(rows))

    def no_room(self, refusal: Refusal, arena: ArenaAllocator) -> Overloaded:
        """The error of a claim for which the arena, or the share of its flow in it, has no room."""
        head = f"model {self._model!r} is overloaded:"
        held, size = size_text(refusal.held), size_text(arena.nbytes)
        if refusal.cause is Cause.ARENA:
            text = f"{head} {held} of the {size} for its large inputs are in use"
        else:
            text = (
                f"{head} this flow holds {held} of the {size} for its large inputs, and half"
                f" ({size_text(arena.share)}) is its share while others are active"
            )
        rows = -(-refusal.over * self._map.claimed // max(arena.used, 1))
        return Overloaded(text, self._drain_rate.wait_ms(rows))
