"""Rows that the batcher takes from a lane: one alone and many give equal results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.batcher.lane import AdmittedLane
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.stages import Stage
from tests.unit.batcher.lane_road import SERIAL, SLOTS, Road
from tests.unit.lanes import other_side


@pytest.fixture(
    autouse=True,
    scope="module",
    params=[(0, False), (0, True), (8, True)],
    ids=["arrays", "runs", "numbers"],
)
def _few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with arrays alone, with slices for neighbours, and with plain numbers for few
    rows."""
    Road.few, Road.runs = request.param
    yield
    Road.few, Road.runs = 8, True


ROW = st.tuples(
    st.integers(1, 100), st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**62)
)


@given(rows=st.lists(ROW, min_size=2, max_size=8), own_flow=st.booleans())
def test_rows_one_by_one_are_what_they_are_together(
    rows: list[tuple[int, int, int, int]], own_flow: bool
) -> None:
    alone, together, plain = (Road(own_flow=own_flow, few=few, runs=False) for few in (8, 0, 8))
    run = Road(own_flow=own_flow, few=0, runs=True)
    for row in rows:
        together.send(*row)
        plain.send(*row)
        run.send(*row)
    singles = []
    for row in rows:
        alone.send(*row)
        singles.append(alone.take())
    found = together.take()
    assert found.shape[1] == len(rows)
    assert found[QueueColumn.FLOW].tolist() == [
        -SERIAL if own_flow else flow for _, _, flow, _ in rows
    ]
    assert found[QueueColumn.DEADLINE_NS].tolist() == [deadline_ns for *_, deadline_ns in rows]
    assert found.tolist() == np.concatenate(singles, axis=1).tolist()
    assert found.tolist() == plain.take().tolist()
    assert found.tolist() == run.take().tolist()
    states = [lane.side.lane.state[:].tolist() for lane in (together, alone, plain, run)]
    assert states[0] == states[1] == states[2] == states[3]
    assert states[0].count(SlotState.QUEUED) == len(rows)


def test_an_attempt_of_an_earlier_use_is_forgotten() -> None:
    road = Road()
    slot = road.send().slots[0]
    road.side.lane.attempt[slot] = 2
    assert road.take()[QueueColumn.ATTEMPT].tolist() == [0]
    assert road.side.lane.attempt[slot] == 0


def test_the_attempts_of_earlier_uses_of_several_slots_are_forgotten() -> None:
    road = Road()
    for _ in range(3):
        road.send()
    road.side.lane.attempt[:] = 2
    assert road.take()[QueueColumn.ATTEMPT].tolist() == [0] * 3
    assert road.side.lane.attempt[:4].tolist() == [0, 0, 0, 2]


def test_every_stale_entry_is_counted() -> None:
    road = Road()
    kept, *gone = [road.send() for _ in range(4)]
    for pending in gone:
        road.lane_client.lane.state[pending.slots[0]] = SlotState.FREE
    assert road.take()[QueueColumn.SLOT].tolist() == [kept.slots[0]]
    assert road.side.lane.stale.get() == 3


@pytest.mark.parametrize("again", [0, 1])
def test_the_second_entry_of_one_use_is_stale(again: int) -> None:
    road = Road()
    pending = [road.send() for _ in range(2)]
    road.lane_client.flush()
    road.lane_client.lane.sq_producer().push_few([pending[again].slots[0] | 1 << 32])
    assert road.side.admit()[QueueColumn.SLOT].tolist() == [p.slots[0] for p in pending]
    assert (road.side.lane.stale.get(), road.side.admitted) == (1, 2)


@pytest.mark.parametrize("others", [0, 2])
def test_a_stale_entry_is_counted_and_takes_no_row(others: int) -> None:
    road = Road()
    pending = [road.send() for _ in range(others)]
    gone = road.send()
    road.lane_client.lane.state[gone.slots[0]] = SlotState.FREE
    assert road.take()[QueueColumn.SLOT].tolist() == [p.slots[0] for p in pending]
    assert road.side.lane.stale.get() == 1
    assert road.side.lane.sq_consumer().pending() == 0
    assert not road.side.broken


@pytest.mark.parametrize("others", [0, 2])
def test_an_entry_of_another_use_is_counted_and_takes_no_row(others: int) -> None:
    road = Road()
    for _ in range(others):
        road.send()
    slot = road.send().slots[0]
    road.lane_client.lane.sequence[slot] += 1
    assert slot not in road.take()[QueueColumn.SLOT]
    assert road.side.lane.stale.get() == 1
    assert road.side.lane.state[slot] == SlotState.SUBMITTED


@pytest.mark.parametrize("others", [0, 2])
def test_a_slot_that_there_is_not_closes_the_lane(others: int) -> None:
    road = Road()
    for _ in range(others):
        road.send()
    road.lane_client.flush()
    road.lane_client.lane.sq_producer().push_few([SLOTS | 1 << 32])
    assert road.side.admit().shape[1] == 0
    assert road.side.broken
    assert road.side.lane.gate.get() == LaneGate.BROKEN
    assert road.rings == 1


def test_every_admitted_row_is_counted_and_no_stale_one() -> None:
    road = Road()
    for n in (1, 3):
        for _ in range(n):
            road.send()
        road.take()
    gone = road.send()
    road.lane_client.lane.state[gone.slots[0]] = SlotState.FREE
    road.take()
    assert road.side.admitted == 4


def test_a_completion_is_in_the_queue_before_the_client_is_rung() -> None:
    for n in (1, 3):
        road = Road()
        seen: list[tuple[list[int], int]] = []
        lane = road.lane_client.lane
        road.side.ring_client = lambda lane=lane, seen=seen: seen.append(
            (lane.state[:3].tolist(), len(lane.cq_consumer().peek()))
        )
        pending = [road.send() for _ in range(n)]
        rows = road.take()
        road.side.complete(rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE])
        assert seen == [([SlotState.DONE] * n + [SlotState.FREE] * (3 - n), n)]
        assert road.lane_client.reap(0) == pending


def test_a_shut_gate_is_stored_before_the_client_is_rung() -> None:
    road = Road()
    seen: list[tuple[int, int]] = []
    lane = road.lane_client.lane
    road.side.ring_client = lambda: seen.append((lane.gate.get(), lane.generation.get()))
    road.side.close_gate(LaneGate.MOVED)
    assert seen == [(LaneGate.MOVED, 1)]


# -- quiet lanes ----------------------------------------------------------------------------


def test_a_lane_is_quiet_until_rows_come_and_again_once_they_are_admitted() -> None:
    road = Road()
    road.side.has_new_cancels()
    assert road.side.is_quiet()
    for n in (1, 3):
        for _ in range(n):
            road.send()
        road.lane_client.flush()
        assert not road.side.is_quiet()
        assert road.side.admit().shape[1] == n
        assert road.side.is_quiet()


def test_a_lane_is_not_quiet_while_cancel_words_were_not_looked_at() -> None:
    road = Road()
    assert not road.side.is_quiet(), "those that stand there when it is mapped"
    assert road.side.has_new_cancels()
    pending = road.send()
    road.take()
    road.lane_client.abandon(pending)
    assert not road.side.is_quiet()
    assert road.side.has_new_cancels()
    assert road.side.is_quiet()
    road.side.recheck_cancels()
    assert not road.side.is_quiet()


def test_rows_that_an_earlier_batcher_left_in_the_ring_are_noticed() -> None:
    road = Road()
    road.send()
    road.lane_client.flush()
    later = AdmittedLane(3, SERIAL, 0, other_side(road.lane_client.lane), road.ring)
    later.has_new_cancels()
    assert not later.is_quiet()
    assert later.admit().shape[1] == 1
    assert later.is_quiet()


def test_a_counter_that_no_right_client_writes_is_not_taken_for_quiet() -> None:
    road = Road()
    road.side.has_new_cancels()
    cells = road.lane_client.lane.memory.cells()
    at = road.lane_client.lane.layout.words["sq_tail"] // 8
    cells[at] += 10**6
    assert not road.side.is_quiet()
    assert road.side.admit().shape[1] == 0
    assert road.side.broken


# -- words that a client overwrites --------------------------------------------------------------

LARGEST = 2**64 - 1
SECOND = 10**9


def overwrite(road: Road, name: str, value: int) -> None:
    cells = road.lane_client.lane.memory.cells()
    cells[road.lane_client.lane.layout.words[name] // 8] = value


def test_a_generation_that_cannot_be_raised_starts_anew() -> None:
    road = Road()
    overwrite(road, "generation", LARGEST)
    road.side.close_gate(LaneGate.MOVED)
    assert road.side.lane.generation.get() == 0


def test_a_count_of_stale_entries_that_cannot_be_raised_starts_anew() -> None:
    road = Road()
    gone = road.send()
    road.lane_client.lane.state[gone.slots[0]] = SlotState.FREE
    overwrite(road, "stale", LARGEST)
    assert road.take().shape[1] == 0
    assert road.side.lane.stale.get() == 0


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("head", "tail", "breaks"),
    [(0, LARGEST, True), (LARGEST, LARGEST, True), (0, 4 * SLOTS, True), (2**63, 0, False)],
)
def test_completion_counters_that_cannot_be_end_the_lane_at_most(
    n: int, head: int, tail: int, breaks: bool
) -> None:
    """The tail is read by a batcher that takes over, the head with every completion."""
    road = Road()
    for _ in range(n):
        road.send()
    rows = road.take()
    overwrite(road, "cq_head", head)
    overwrite(road, "cq_tail", tail)
    damage: list[tuple[int, str]] = []
    later = AdmittedLane(
        3, SERIAL, 0, road.side.lane, road.ring,
        report_damage=lambda number, text: damage.append((number, text)),
    )  # fmt: skip
    for _ in range(3):
        later.complete(rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE])
    expected = [(3, f"the completion queue has no room for {n} entries")]
    assert (later.broken, damage) == (breaks, expected if breaks else [])
    assert (later.lane.gate.get() == LaneGate.BROKEN) == breaks
    assert later.lane.state[rows[QueueColumn.SLOT]].tolist() == [SlotState.DONE] * n


def test_the_damage_is_reported_once_and_says_what_was_found() -> None:
    road = Road()
    damage: list[tuple[int, str]] = []
    side = AdmittedLane(
        3, SERIAL, 0, road.side.lane, road.ring,
        report_damage=lambda number, text: damage.append((number, text)),
    )  # fmt: skip
    overwrite(road, "sq_tail", 10**6)
    for _ in range(3):
        side.admit()
    assert damage == [(3, f"ring counters disagree: {10**6} entries pending of {SLOTS}")]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("said_ns", "taken_ns"),
    [
        (-(2**63), 99 * SECOND),
        (0, 99 * SECOND),
        (2**63 - 1, 100 * SECOND),
        (100 * SECOND - 5, 100 * SECOND - 5),
    ],
)
def test_a_local_client_cannot_say_that_its_rows_waited_for_long(
    n: int, said_ns: int, taken_ns: int
) -> None:
    """Rows that say so would leave before others, and their waits are added up for all."""
    for own_flow in (True, False):
        road = Road(own_flow=own_flow)
        for _ in range(n):
            road.send()
        road.lane_client.lane.submit_ns[:] = said_ns
        road.lane_client.flush()
        rows = road.side.admit()
        road.side.bound_times(rows, 100 * SECOND)
        assert rows[QueueColumn.SUBMIT_NS].tolist() == [taken_ns if own_flow else said_ns] * n


def test_a_batcher_that_takes_over_bounds_the_times_too() -> None:
    road = Road(own_flow=True)
    for _ in range(2):
        road.send()
    road.take()
    road.lane_client.lane.submit_ns[:] = 0
    later = AdmittedLane(3, SERIAL, 0, road.side.lane, road.ring, mapped_ns=100 * SECOND)
    assert later.queued_rows(Stage.INFER)[QueueColumn.SUBMIT_NS].tolist() == [99 * SECOND] * 2


def test_a_batcher_that_takes_over_finds_a_local_lane_without_rows() -> None:
    road = Road(own_flow=True)
    later = AdmittedLane(3, SERIAL, 0, road.side.lane, road.ring, mapped_ns=100 * SECOND)
    assert later.queued_rows(Stage.INFER).shape[1] == 0


def test_a_client_that_submits_its_slots_again_and_again_ends_its_lane() -> None:
    """Its rows are in the queue already, which would have no end."""
    road = Road()
    found: list[str] = []
    road.side = AdmittedLane(
        3, SERIAL, 0, road.side.lane, road.ring, own_flow=False,
        report_damage=lambda number, damage: found.append(damage),
    )  # fmt: skip
    requests = [road.send(priority=1) for _ in range(SLOTS)]
    assert road.take().shape[1] == SLOTS
    assert not road.side.broken
    slot = requests[0].slots[0]
    sequence = road.lane_client.lane.sequence[slot]
    road.lane_client.lane.state[slot] = SlotState.SUBMITTED
    again = road.lane_client.lane.sq_producer()
    again.push_few([int(slot) | int(sequence) << 32])
    assert road.side.admit().shape[1] == 0
    assert found == [f"more rows are under way than its {SLOTS} slots hold"]


def test_slots_that_were_completed_may_be_submitted_again() -> None:
    road = Road()
    for _ in range(3):
        requests = [road.send(priority=1) for _ in range(SLOTS)]
        rows = road.take()
        assert rows.shape[1] == SLOTS
        road.side.complete(rows[QueueColumn.SLOT, :1], rows[QueueColumn.SEQUENCE, :1])
        road.side.complete(rows[QueueColumn.SLOT, 1:], rows[QueueColumn.SEQUENCE, 1:])
        assert len(road.lane_client.reap(8)) == SLOTS
        for pending in requests:
            road.lane_client.release(pending)
    assert not road.side.broken
