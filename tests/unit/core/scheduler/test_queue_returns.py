"""The places of rows that come back to the queue of one model."""

from __future__ import annotations

import pytest

from batchpool.core.scheduler.fair_order import priority_of
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.core.scheduler.queued import front, names, positions, queue_of, rows_of


def test_rows_that_came_back_stay_first_whoever_is_more_urgent() -> None:
    """They were about to run once, and others of their flow take turns without them."""
    queue = queue_of(rows_of(4, flow=[1, 1, 2, 2], deadline=[800, 900, 50, 60]))
    queue.prepend(queue.take(front(1)), 1)
    queue.append(rows_of(1, name=9, flow=1, deadline=10))
    assert names(queue.view()) == [0, 2, 9, 3, 1]


def test_rows_that_come_back_are_the_first_of_their_priority() -> None:
    queue = queue_of(rows_of(6, flow=[1, 2, 1, 2, 1, 2], priority=[9, 9, 9, 128, 128, 128]))
    first, second = queue.take(positions(0, 3)), queue.take(positions(0, 2))
    assert (names(first), names(second)) == ([0, 3], [1, 4])
    queue.prepend(second, 2)
    queue.prepend(first, 1)
    assert names(queue.view()) == [0, 1, 2, 3, 4, 5]


def test_rows_of_a_takeover_come_back_to_a_priority_that_there_is() -> None:
    """Their words were read in the lane: no priority, and what a client may have written."""
    queue = queue_of(rows_of(3, name=[10, 11, 12], priority=[1, 128, 255]))
    queue.prepend(rows_of(1, name=1), 1)
    queue.prepend(rows_of(2, name=[2, 3], priority=[2**32 - 1, 1]), 2)
    assert names(queue.view()) == [3, 10, 1, 11, 2, 12]
    assert queue.view()[QueueColumn.PRIORITY].tolist() == [1, 1, 128, 128, 255, 255]
    assert priority_of(int(queue.view()[QueueColumn.KEY, 0])) == 1


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (2, 1, 3)])
@pytest.mark.parametrize("waits", [0, 2])
def test_whichever_batch_comes_back_first_the_rows_are_in_the_order_of_dispatch(
    order: tuple[int, ...], waits: int
) -> None:
    queue = queue_of(rows_of(6 + waits))
    batches = {number: queue.take(front(2)) for number in (1, 2, 3)}
    for number in order:
        queue.prepend(batches[number], number)
    assert names(queue.view()) == [*range(6 + waits)]
    queue.prepend(queue.take(front(3)), 4)
    assert names(queue.view()) == [*range(6 + waits)], "also when they come back again"
