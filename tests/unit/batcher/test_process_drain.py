"""A drain in the batcher's process: what it admits, and when it says that it holds no row."""

from __future__ import annotations

import pytest

from batchpool.control.process_messages import DrainBatcher, Drained
from batchpool.core.layout.states import LaneGate
from tests.unit.batcher.process_bench import Start


def test_a_drain_is_over_when_all_rows_are_answered_and_can_be_taken_back(start: Start) -> None:
    pool = start()
    client = pool.add_lane(1, pool.new_bell().fd)
    pool.begin()
    pool.submit(1)
    pool.claim(1)  # its client publishes it when the drain has begun
    pool.bell.ring()
    pool.send(DrainBatcher(3))
    pool.settle()
    assert client.lane.gate.get() == LaneGate.DRAINING
    worker = pool.add_worker(5)
    worker.run_next(client.lane)
    pool.bell.ring()
    pool.expect(Drained(3, empty=True))
    client.flush()
    pool.bell.ring()
    pool.expect(Drained(3, empty=False))
    worker.run_next(client.lane)
    pool.bell.ring()
    pool.expect(Drained(3, empty=True))
    pool.send(DrainBatcher(0))
    pool.settle()
    assert client.lane.gate.get() == LaneGate.OPEN
    pool.send(DrainBatcher(4))
    pool.expect(Drained(4, empty=True))


@pytest.mark.parametrize("at_start", [False, True])
def test_rows_published_after_the_last_drain_stay_with_their_client(
    start: Start, at_start: bool
) -> None:
    pool = start(draining=3, last=True) if at_start else start()
    client = pool.add_lane(1, pool.new_bell().fd)
    pool.begin()
    client.lane.gate.set(int(LaneGate.OPEN))
    pool.claim(1)
    if not at_start:
        pool.send(DrainBatcher(3, last=True))
    pool.expect(Drained(3, empty=True))
    client.flush()
    pool.bell.ring()
    pool.settle()
    (pending,) = client.fail_all(batcher_ended=True)
    assert not pending.may_have_run


def test_a_batcher_that_starts_during_a_drain_opens_no_lane(start: Start) -> None:
    pool = start(draining=7)
    client = pool.add_lane(1, pool.new_bell().fd)
    pool.begin()
    pool.expect(Drained(7, empty=True))
    assert client.lane.gate.get() == LaneGate.DRAINING
