"""The numbers of slots that are chosen automatically, by the bytes that a lane may take."""

from __future__ import annotations

from collections.abc import Callable

from batchpool.core.errors import StartError
from batchpool.core.layout.arena import arena_for
from batchpool.core.layout.segments import Layout, lane_layout
from batchpool.core.tensors.spec import ModelSpec
from batchpool.shm.memory_limits import size_text

AUTO_SLOTS_MOST = 4096
# Of a generator, for each sequence that runs at once. A row of another model waits milliseconds for
# those before it, a sequence seconds: the last of very many would come after its deadline.
_SLOTS_EACH_SEQUENCE = 16
AUTO_LANE_BYTES_MOST = 1 << 30
CLIENT_LANE_BYTES_MOST = 256 << 20


def auto_slots(spec: ModelSpec, max_batch: int, arena_bytes: int = 0) -> int:
    """The largest power of two up to 4096 whose lane takes at most 1 GiB; at least max_batch. Of a
    generator no more than the first one from 16 x max_batch on.

    arena_bytes: of its arena as configured, of which only the least then counts; 0 for the
    default. Raises StartError when not even a lane of max_batch slots stays within 1 GiB.
    """

    def lane_bytes(slots: int) -> int:
        arena = arena_for(spec, slots, 1 if arena_bytes else 0)
        return lane_layout(spec, slots, arena).total_bytes

    least = lane_bytes(max_batch)
    if least > AUTO_LANE_BYTES_MOST:
        tensors = (*spec.inputs, *spec.features, *spec.predictions, *spec.outputs, *spec.parameters)
        row = sum(t.row_bytes for t in tensors)
        raise StartError(
            f"model {spec.name}: a row takes {size_text(row)}, so the max_batch = {max_batch} slots"
            f" of one lane take {size_text(least)}; slots are chosen automatically up to"
            f" {size_text(AUTO_LANE_BYTES_MOST)}; lower max_batch or the tensors' maxima, or set"
            " slots"
        )
    slots = AUTO_SLOTS_MOST
    while spec.generates and slots // 2 >= _SLOTS_EACH_SEQUENCE * max_batch:
        slots //= 2
    while slots > 1 and lane_bytes(slots) > AUTO_LANE_BYTES_MOST:
        slots //= 2
    return max(slots, max_batch)


def client_lane(spec: ModelSpec, most: int, arena_bytes: int = 0) -> Layout:
    """The lane of the largest number of slots up to `most` that takes at most 256 MiB; of one slot
    at least. arena_bytes: the most that its arena takes, if there is a limit."""

    def lane(slots: int) -> Layout:
        arena = arena_for(spec, slots)
        if 0 < arena_bytes < arena.nbytes:
            arena = arena_for(spec, slots, arena_bytes)
        return lane_layout(spec, slots, arena)

    return lane(_largest(most, lambda n: lane(n).total_bytes <= CLIENT_LANE_BYTES_MOST))


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 1..most that fits, where whatever is below a fitting n fits; at least 1."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
