"""Fairness: flows are served round robin, whenever they come or leave; ageing; bounded memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.priority import DEFAULT, HIGHEST, LOWEST
from batchpool.core.scheduler.fair_order import AGE_NS, FairOrder, first_key, priority_of
from batchpool.core.scheduler.queue import Queue, QueueColumn
from tests.unit.core.scheduler.queued import (
    NEVER,
    flows,
    front,
    names,
    positions,
    queue_of,
    rows_of,
)

often = settings(max_examples=100, deadline=None)
MOST_RISE_NS = (LOWEST - HIGHEST) * AGE_NS


def drained(queue: Queue) -> list[int]:
    """The flows of all rows, in the order of service."""
    return flows(queue.take(front(len(queue))))


def gap(served: Counter[int], among: range) -> int:
    counts = [served[flow] for flow in among]
    return max(counts) - min(counts)


# -- tags -----------------------------------------------------------------------------------


@often
@given(
    many=st.integers(2, 6),
    sends=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=12),
    takes=st.lists(st.integers(1, 7), min_size=1, max_size=30),
)
def test_flows_that_always_wait_are_served_alike(
    many: int, sends: list[tuple[int, int]], takes: list[int]
) -> None:
    """At any moment two of them differ by one row at most, whoever sends more, and when."""
    queue = queue_of(*(rows_of(2, flow=flow) for flow in range(many)))
    waiting, served = Counter(dict.fromkeys(range(many), 2)), Counter[int]()
    for take in takes:
        for flow, n in sends:
            queue.append(rows_of(n, flow=flow % many))
            waiting[flow % many] += n
        for flow in flows(queue.take(front(take))):
            if min(waiting.values()) == 0:
                return
            served[flow] += 1
            waiting[flow] -= 1
            assert gap(served, range(many)) <= 1


@often
@given(
    others=st.integers(1, 6),
    served=st.integers(0, 40),
    known=st.booleans(),
)
def test_a_flow_that_was_quiet_comes_next(others: int, served: int, known: bool) -> None:
    """After what is left of the turn being served and the next one: of every other flow two
    rows at most, however many wait."""
    queue = queue_of(*(rows_of(100, flow=flow) for flow in range(others)))
    if known:
        queue.append(rows_of(1, flow=99))
        queue.take(front(others + 1))
    queue.take(front(served))
    queue.append(rows_of(1, flow=99))
    before = flows(queue.view()).index(99)
    assert before == others + -served % others
    assert max(Counter(flows(queue.view()[:, :before])).values()) <= 2


def test_a_bulk_sender_delays_a_lone_row_by_one_round() -> None:
    """C67: it stands second at most, whatever waits."""
    queue = queue_of(rows_of(10_000, flow=7))
    for _ in range(100):
        queue.append(rows_of(1, flow=8))
        assert 8 in flows(queue.view())[:2]
        queue.take(front(64))
    assert len(queue) == 10_000 + 100 - 100 * 64


def test_a_crowd_of_lone_rows_is_not_delayed_by_a_bulk_sender_either() -> None:
    queue = queue_of(rows_of(1000, flow=0), rows_of(50, flow=range(1, 51)))
    assert Counter(flows(queue.view()[:, :51])) == Counter(range(51))


def test_a_row_gets_no_second_turn_in_one_round_by_coming_alone() -> None:
    """One row at a time or all at once: a flow's share is the same."""
    queue = queue_of(rows_of(50, flow=1), rows_of(1, flow=2))
    served = Counter[int]()
    for _ in range(40):
        flow = flows(queue.take(front(1)))[0]
        served[flow] += 1
        if flow == 2:
            queue.append(rows_of(1, flow=2))
        assert gap(served, range(1, 3)) <= 1


def test_a_quiet_time_earns_nothing() -> None:
    queue = queue_of(rows_of(100, flow=1))
    queue.take(front(60))
    queue.append(rows_of(40, flow=2))
    assert Counter(flows(queue.view()[:, :20])) == {1: 10, 2: 10}


def test_an_empty_queue_starts_anew() -> None:
    queue = queue_of(rows_of(60, flow=1))
    queue.take(front(60))
    queue.append(rows_of(3, flow=1))
    queue.append(rows_of(3, flow=2))
    assert drained(queue) == [1, 2, 1, 2, 1, 2]


@often
@given(
    sent=st.integers(1, 30),
    gone=st.sets(st.integers(0, 29)),
    served=st.integers(0, 20),
    more=st.integers(0, 20),
)
def test_cancelled_rows_are_as_if_they_had_never_come(
    sent: int, gone: set[int], served: int, more: int
) -> None:
    """Whichever of a flow's rows they are, and when nothing of it has run yet."""
    gone = {i for i in gone if i < sent}
    queue, never = queue_of(rows_of(40, flow=2)), queue_of(rows_of(40, flow=2))
    for each in (queue, never):
        each.take(front(served))
    queue.append(rows_of(sent, flow=1))
    mine = np.flatnonzero(queue.view()[QueueColumn.FLOW] == 1)
    queue.drop(mine[sorted(gone)])
    never.append(rows_of(sent - len(gone), flow=1))
    for each in (queue, never):
        each.append(rows_of(more, flow=1))
    assert drained(queue) == drained(never)


def test_who_cancels_its_first_rows_keeps_no_late_turn() -> None:
    queue = queue_of(rows_of(20, flow=1), rows_of(20, flow=2))
    queue.drop(np.flatnonzero(queue.view()[QueueColumn.FLOW] == 1)[:19])
    assert flows(queue.view()[:, :3]) == [2, 1, 2]
    queue.append(rows_of(1, name=77, flow=1))
    assert drained(queue)[:4] == [2, 1, 2, 1]


def test_the_late_of_a_flow_leave_their_turns_to_the_others() -> None:
    """Also where rows of several flows and priorities leave at once."""
    queue = queue_of(
        rows_of(12, flow=[1, 2] * 6, priority=[5] * 6 + [9] * 6),
        rows_of(4, name=range(20, 24), flow=3, priority=9),
    )
    assert names(queue.view()) == [*range(8), 20, 8, 9, 21, 10, 11, 22, 23]
    queue.drop(positions(0, 2, 6, 7, 8))
    assert names(queue.view()) == [1, 4, 3, 5, 8, 9, 21, 10, 11, 22, 23]


def test_a_flow_moves_up_by_turns_of_its_own() -> None:
    queue = queue_of(rows_of(4, flow=1), rows_of(4, name=range(4, 8), flow=2))
    assert names(queue.view()) == [0, 4, 1, 5, 2, 6, 3, 7]
    queue.drop(positions(0, 2, 7))
    assert names(queue.view()) == [4, 2, 5, 3, 6]


def test_who_came_back_and_is_cancelled_leaves_nobody_a_turn() -> None:
    """It has had its turn, and the place at the front was its own."""
    queue = queue_of(rows_of(3, flow=1), rows_of(3, name=range(3, 6), flow=2))
    queue.prepend(queue.take(front(1)), 1)
    queue.drop(positions(0))
    assert names(queue.view()) == [3, 1, 4, 2, 5]


def test_rows_that_run_out_of_turn_are_charged() -> None:
    """A worker may take rows that are not at the front: their flow has had them."""
    queue = queue_of(rows_of(4, flow=1), rows_of(4, flow=2))
    queue.take(np.flatnonzero(queue.view()[QueueColumn.FLOW] == 1))
    queue.append(rows_of(1, flow=1))
    assert drained(queue) == [2, 2, 2, 2, 1]


def test_the_turn_that_is_served_never_goes_back() -> None:
    queue = queue_of(rows_of(4, flow=1))
    queue.take(positions(3))
    queue.take(front(1))
    queue.append(rows_of(1, flow=2))
    assert drained(queue) == [1, 1, 2]


def test_turns_are_within_a_priority() -> None:
    queue = queue_of(
        rows_of(6, flow=1, priority=5), rows_of(3, flow=1, priority=9), rows_of(3, flow=2)
    )
    queue.append(rows_of(2, flow=2, priority=9))
    queue.append(rows_of(2, flow=2, priority=5))
    view = queue.view()
    assert view[QueueColumn.PRIORITY].tolist() == [5] * 8 + [9] * 5 + [DEFAULT] * 3
    assert flows(view) == [1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 2, 1, 2, 2, 2]


def test_rows_served_at_several_priorities_move_each_of_them_on() -> None:
    """Else a flow that comes late would get all the turns the others have had."""
    queue = queue_of(
        rows_of(10, flow=1, priority=5),
        rows_of(10, flow=1, priority=9),
        rows_of(10, flow=1, priority=7),
    )
    queue.take(positions(*range(6), *range(10, 16), *range(20, 26)))
    for priority in (9, 5, 7):
        queue.append(rows_of(4, flow=2, priority=priority))
    assert Counter(flows(queue.view()[:, :6])) == {1: 3, 2: 3}
    assert Counter(flows(queue.view()[:, 8:14])) == {1: 3, 2: 3}
    assert Counter(flows(queue.view()[:, 16:22])) == {1: 3, 2: 3}


# -- ageing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "best"), [(255, 1), (255, 128), (129, 128), (2, 1)])
def test_a_row_rises_by_one_priority_for_every_age(asked: int, best: int) -> None:
    now = 10**15
    queue = queue_of(rows_of(2, name=[0, 1], flow=1, priority=best, submit=now))
    queue.append(rows_of(1, name=2, flow=2, priority=asked, submit=now))
    queue.age(now + (asked - best) * AGE_NS - 1)
    assert names(queue.view()) == [0, 1, 2]
    queue.age(now + (asked - best) * AGE_NS)
    assert names(queue.view()) == [0, 2, 1]


@pytest.mark.parametrize("others", [1, 5])
def test_a_flood_of_the_highest_priority_starves_nobody(others: int) -> None:
    """Endless, from several flows and faster than it is served."""
    now, step_ns = 10**15, AGE_NS
    queue = queue_of(rows_of(40, flow=[i % others for i in range(40)], priority=1, submit=now))
    queue.append(rows_of(1, flow=99, priority=LOWEST, submit=now))
    waited, after = 0, 0
    while True:
        queue.append(rows_of(2 * others, flow=[*range(others)] * 2, priority=1, submit=now))
        queue.age(now)
        served = flows(queue.take(front(others)))
        if 99 in served:
            break
        after += waited >= MOST_RISE_NS
        assert after <= 3, "three rounds after it has risen to the top"
        now += step_ns
        waited += step_ns
    assert waited >= MOST_RISE_NS


def test_a_crowd_of_aged_rows_takes_turns_with_the_others() -> None:
    now = 10**15
    queue = queue_of(rows_of(1000, flow=1, priority=LOWEST, submit=now))
    now += MOST_RISE_NS
    queue.append(rows_of(100, flow=2, priority=1, submit=now))
    queue.age(now)
    assert Counter(flows(queue.view()[:, :40])) == {1: 20, 2: 20}


def test_aged_rows_of_several_flows_take_turns_among_themselves() -> None:
    now = 10**15
    queue = queue_of(rows_of(300, flow=[1] * 298 + [2, 3], priority=200, submit=now))
    now += 199 * AGE_NS
    queue.append(rows_of(3, flow=4, priority=1, submit=now))
    queue.age(now)
    assert sorted(flows(queue.view()[:, :4])) == [1, 2, 3, 4]


def test_a_row_does_not_rise_twice_for_the_same_waiting() -> None:
    """Risen to 128 by half of what 1 takes, it is no better than that when 1 comes."""
    now = 10**15
    queue = queue_of(rows_of(1, name=0, flow=1, priority=LOWEST, submit=now))
    now += 127 * AGE_NS
    queue.append(rows_of(2, name=[1, 2], flow=2, priority=128, submit=now + AGE_NS))
    queue.age(now)
    assert names(queue.view()) == [1, 0, 2]
    now += 1
    queue.append(rows_of(3, name=[3, 4, 5], flow=3, priority=1, submit=now))
    queue.age(now)
    assert names(queue.view()) == [3, 4, 5, 1, 0, 2]
    queue.age(now + 127 * AGE_NS - 2)
    assert names(queue.view()) == [3, 4, 5, 1, 0, 2]
    queue.age(now + 127 * AGE_NS - 1)
    assert names(queue.view()) == [3, 0, 4, 5, 1, 2]


def test_a_flow_is_not_charged_for_turns_its_aged_rows_left() -> None:
    """Nor is it ahead for them: what it sends next takes turns with those who waited there."""
    now, below = 10**15, DEFAULT + 1
    queue = queue_of(rows_of(1, flow=3, priority=DEFAULT, submit=now))
    queue.append(rows_of(50, flow=1, priority=below, submit=now - AGE_NS))
    queue.append(rows_of(50, flow=2, priority=below, submit=now))
    queue.age(now)
    assert Counter(flows(queue.view()[:, :51])) == {3: 1, 1: 50}
    queue.append(rows_of(50, flow=1, priority=below, submit=now))
    assert Counter(flows(queue.view()[:, 51:71])) == {1: 10, 2: 10}


# -- numbers --------------------------------------------------------------------------------


@given(st.integers(HIGHEST, LOWEST), st.integers(1, 50))
def test_a_key_is_a_priority_and_then_a_tag(priority: int, n: int) -> None:
    order = FairOrder()
    first = [order.assign(priority, 1, np.full(n, NEVER))[0] for _ in range(3)]
    assert [key - first[0] for key in first] == [0, n, 2 * n]
    before, after = first_key(np.array([priority, priority + 1])).tolist()
    assert first[0] == before + 1
    for key in (before, first[2], after - 1):
        assert priority_of(key) == priority


def test_assign_says_whether_a_deadline_is_earlier_than_one_before_it() -> None:
    def in_order(*groups: list[int]) -> list[bool]:
        order = FairOrder()
        return [order.assign(5, 1, np.array(group))[1] for group in groups]

    assert in_order([7], [7], [8], [7]) == [True, True, True, False]
    assert in_order([7, 7, 9], [9, 9], [9, 10, 10], [10]) == [True] * 4
    assert in_order([7, 9, 8]) == [False]
    assert in_order([9, 7], [8]) == [False, False]
    assert in_order([7, 9], [8, 10]) == [True, False]
    assert in_order([3], [9, 4, 5], [8]) == [True, False, False]


def held(order: FairOrder) -> int:
    return sum(len(table) for table in vars(order).values() if isinstance(table, dict))


@pytest.mark.interpreted
@pytest.mark.parametrize("each", [1, 100])
def test_memory_stays_bounded_over_many_flows(each: int) -> None:
    """A hundred thousand flows with a row each, in a queue that never empties."""
    queue = queue_of(rows_of(50, flow=-1, priority=LOWEST))
    most = 0
    for start in range(0, 100_000 if each > 1 else 12_000, each):
        queue.append(rows_of(each, flow=range(start, start + each)))
        assert queue.take(front(each)).shape[1] == each
        most = max(most, held(queue._order))
    assert most < 6000
    assert len(queue) == 50


@pytest.mark.interpreted
def test_memory_stays_bounded_where_every_row_is_cancelled() -> None:
    queue = queue_of(rows_of(50, flow=-1, priority=LOWEST))
    for start in range(0, 15_000, 100):
        queue.append(rows_of(100, flow=range(start, start + 100)))
        queue.drop(np.arange(100))
    assert held(queue._order) < 6000


@pytest.mark.interpreted
def test_memory_stays_bounded_where_every_row_ages() -> None:
    """Their own priority is never served: they leave it upwards."""
    now = 10**15
    queue = queue_of(rows_of(50, flow=-1, priority=1, submit=now))
    for start in range(0, 15_000, 100):
        queue.append(rows_of(100, flow=range(start, start + 100), priority=LOWEST))
        queue.age(now)
        queue.append(rows_of(1, flow=-1, priority=1, submit=now))
        queue.take(front(101))
    assert len(queue) == 50
    assert held(queue._order) < 6000


def test_pruning_forgets_no_tag_that_is_still_to_come() -> None:
    queue = queue_of(rows_of(20, flow=1), rows_of(40, flow=2))
    for start in range(100, 10_100, 100):
        queue.append(rows_of(100, flow=range(start, start + 100), priority=1))
        queue.take(front(100))
    queue.append(rows_of(20, flow=1))
    assert drained(queue) == [1, 2] * 20 + [2, 1] * 20
