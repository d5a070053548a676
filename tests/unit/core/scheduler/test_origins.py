"""Names of one origin share its turns: made-up names put nobody in front of others."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.flows import ORIGIN_MASK, named_flow, origin_of
from batchpool.core.scheduler.queue import Queue, QueueColumn
from tests.unit.core.scheduler.queued import NEVER, flows, front, names, queue_of, rows_of

often = settings(max_examples=100, deadline=None)
OTHER, MANY = 7, 8  # origins


def named(*numbers: int) -> list[int]:
    return [named_flow(MANY, number) for number in numbers]


def origins(queue: Queue) -> list[int]:
    return [origin_of(flow) for flow in flows(queue.view())]


def test_a_named_flow_tells_its_origin() -> None:
    for origin in (1, 9, ORIGIN_MASK):
        for name in (1, 2**32 - 1):
            flow = named_flow(origin, name)
            assert origin_of(flow) == origin
            assert np.array([flow], np.int64).tolist() == [flow]
    assert [origin_of(flow) for flow in (0, 5, 2**32 - 1, -3)] == [0, 5, 2**32 - 1, -3]


@often
@given(
    sends=st.lists(st.integers(1, 9), max_size=8),
    takes=st.lists(st.integers(1, 7), min_size=1, max_size=20),
    deadlines=st.booleans(),
)
def test_rows_under_new_names_have_the_turns_of_rows_under_one(
    sends: list[int], takes: list[int], deadlines: bool
) -> None:
    """Whatever is sent between two dispatches, and with whatever deadlines."""
    many, one = queue_of(rows_of(40, flow=OTHER)), queue_of(rows_of(40, flow=OTHER))
    fresh = 0
    for at, take in enumerate(takes):
        for n in sends[at : at + 1]:
            fresh += n
            due = [NEVER - (fresh * 7 + i) % 5 for i in range(n)] if deadlines else NEVER
            many.append(rows_of(n, flow=named(*range(fresh - n, fresh)), deadline=due))
            one.append(rows_of(n, flow=MANY))
        assert origins(many) == origins(one)
        for queue in (many, one):
            queue.take(front(take))


def test_rows_with_and_without_a_name_that_come_together_take_turns() -> None:
    (name,) = named(1)
    queue = queue_of(rows_of(4, flow=[MANY, MANY, name, name], priority=[1, 1, 1, 1]))
    assert flows(queue.view()) == [MANY, name, MANY, name]


def test_who_has_a_new_name_for_each_request_is_not_always_first() -> None:
    """It asks again as soon as it is answered, with many requests at a time."""
    queue = queue_of(rows_of(100, flow=OTHER), rows_of(20, flow=named(*range(20))))
    served, fresh = Counter[int](), 20
    for _ in range(60):
        flow = origin_of(flows(queue.take(front(1)))[0])
        served[flow] += 1
        if flow == MANY:
            queue.append(rows_of(1, flow=named(fresh)))
            fresh += 1
    assert served == {OTHER: 30, MANY: 30}


@often
@given(others=st.integers(1, 5), many=st.integers(2, 6), rows=st.integers(1, 20))
def test_names_of_one_origin_are_served_alike_within_its_share(
    others: int, many: int, rows: int
) -> None:
    queue = queue_of(*(rows_of(200, flow=100 + other) for other in range(others)))
    for number in range(many):
        queue.append(rows_of(rows, flow=named(number)[0]))
    order = flows(queue.view())
    theirs = [flow for flow in order if origin_of(flow) == MANY]
    assert theirs == named(*range(many)) * rows
    last = max(i for i, flow in enumerate(order) if origin_of(flow) == MANY)
    served = Counter(map(origin_of, order[: last + 1]))
    assert max(served.values()) - min(served.values()) <= 1


def test_a_bulk_sender_delays_a_lone_row_of_its_origin_by_one_round() -> None:
    queue = queue_of(rows_of(1000, flow=named(1)[0]))
    for _ in range(20):
        queue.append(rows_of(1, flow=named(2)))
        assert named(2)[0] in flows(queue.view())[:2]
        queue.take(front(16))


def test_a_name_that_comes_again_is_served_before_the_rest_of_a_bulk_sender() -> None:
    queue = queue_of(rows_of(1, flow=named(1)), rows_of(5, flow=named(2)[0]))
    queue.append(rows_of(1, flow=named(1)))
    assert flows(queue.view()) == named(1, 2, 2, 1, 2, 2, 2)


def test_requests_without_a_name_are_one_of_the_names() -> None:
    queue = queue_of(rows_of(3, flow=MANY), rows_of(2, flow=OTHER), rows_of(2, flow=named(1)[0]))
    assert flows(queue.view()) == [MANY, OTHER, *named(1), OTHER, MANY, *named(1), MANY]


def test_within_a_name_the_earliest_deadline_is_first() -> None:
    queue = queue_of(
        rows_of(2, name=[0, 1], flow=named(1)[0], deadline=[30, 20]),
        rows_of(2, name=[2, 3], flow=named(2)[0], deadline=[9, 8]),
        rows_of(1, name=4, flow=named(1)[0], deadline=10),
    )
    assert names(queue.view()) == [4, 3, 1, 2, 0]


def test_names_that_came_together_take_turns_in_the_order_of_arrival() -> None:
    queue = queue_of(rows_of(6, flow=named(3, 3, 1, 2, 3, 1)))
    assert flows(queue.view()) == named(3, 1, 2, 3, 1, 3)
    assert (np.diff(queue.view()[QueueColumn.KEY]) == 1).all()


def test_a_name_that_cancels_leaves_its_turns_to_its_origin_alone() -> None:
    queue = queue_of(rows_of(6, flow=named(1, 2, 3, 1, 2, 3)), rows_of(6, flow=OTHER))
    mine = np.flatnonzero(queue.view()[QueueColumn.FLOW] == named(1)[0])
    queue.drop(mine)
    assert origins(queue) == [OTHER, MANY] * 4 + [OTHER] * 2
    assert [flow for flow in flows(queue.view()) if flow != OTHER] == named(2, 3, 2, 3)
    queue.append(rows_of(1, flow=named(4)))
    assert [flow for flow in flows(queue.view()) if flow != OTHER] == named(2, 3, 4, 2, 3)
