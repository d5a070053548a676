"""Rings between two processes: every entry once, whole and in order, round and round.

BATCHPOOL_LITMUS_SCALE multiplies the counts.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from batchpool.core.layout.segments import lane_layout
from batchpool.shm.segment import map_checked, word
from tests.litmus import segments
from tests.litmus.processes import Side, Sides, await_, scaled

# Counters that pass through 32 bits show a tail stored or loaded in halves.
NEAR_32_BITS = 2**32 - 1500
NEAR_63_BITS = 2**63 - 1500


def both(fd: int, capacity: int, start: int, total: int | None, seed: int = 1) -> Sides:
    task: dict[str, Any] = {"fd": fd, "capacity": capacity, "start": start, "total": total}
    return Sides(Side("producer", seed=seed, **task), Side("consumer", seed=seed + 1000, **task))


@pytest.mark.parametrize(
    ("capacity", "start", "total"),
    [
        (1, NEAR_32_BITS, 10_000),
        (2, 0, 20_000),
        (8, NEAR_32_BITS, 100_000),
        (64, NEAR_63_BITS, 500_000),
        (4096, NEAR_32_BITS, 5_000_000),
    ],
)
def test_counts_in_are_counts_out(capacity: int, start: int, total: int) -> None:
    """C21: two processes and a ring that wraps all the time."""
    total = scaled(total)
    fd = segments.new_ring(capacity, start)
    with both(fd, capacity, start, total, seed=capacity) as sides:
        sent, received = sides.finish()
    os.close(fd)
    assert sent["sent"] == received["received"] == total
    assert sent["groups"] >= total / capacity


class Counters:
    """The ring's counters, read by the parent."""

    def __init__(self, fd: int, capacity: int) -> None:
        layout = segments.ring_layout(capacity)
        self._cells = map_checked(fd, layout).cells()
        self._tail, self._head = word(layout, "sq_tail"), word(layout, "sq_head")

    def tail(self) -> int:
        return self._cells[self._tail]

    def head(self) -> int:
        return self._cells[self._head]


def test_either_side_may_stop_anywhere_and_go_on() -> None:
    """A stopped consumer lets the ring fill up, a stopped producer lets it run empty."""
    capacity, start = 16, NEAR_32_BITS
    fd = segments.new_ring(capacity, start)
    counters = Counters(fd, capacity)
    with both(fd, capacity, start, None) as sides:
        producer, consumer = sides.sides
        for _ in range(scaled(10)):
            passed = counters.head() + 2000
            await_(lambda: counters.head() > passed, "entries to pass")  # noqa: B023
            consumer.stop()
            await_(lambda: counters.tail() - counters.head() == capacity, "a full ring")
            consumer.resume()
            producer.stop()
            await_(lambda: counters.tail() == counters.head(), "an empty ring")
            producer.resume()
        sent, received = producer.end(), consumer.end()
    os.close(fd)
    assert sent["sent"] == received["received"] > 2000 * scaled(10)
    assert counters.tail() == counters.head() == start + sent["sent"]


def test_a_lanes_rings_do_not_touch_each_other() -> None:
    layout = lane_layout(segments.echo_spec(10), 12)
    sq, cq = layout.columns["sq"], layout.columns["cq"]
    assert sq.offset + sq.nbytes <= cq.offset
    assert layout.capacity == 16
