"""Ends of a client's request: results, errors, lateness, cancelling, a lost batcher."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.batcher.lane import AdmittedLane
from batchpool.client.call import Call
from batchpool.client.futures import RowsFuture, outcomes_of, resolve
from batchpool.client.lane_client import LaneClient
from batchpool.core.errors import (
    OF_A_ROW,
    Cancelled,
    DeadlineExceeded,
    Draining,
    InternalError,
    InvalidInput,
    ModelError,
    Overloaded,
    Status,
    WorkerLost,
)
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.client.lane_clients import (
    LATER,
    MS,
    NOW,
    Pool,
    S,
    answer,
    new_lane_client,
    rows_of,
    send,
)
from tests.unit.lanes import new_lane, other_side
from tests.unit.specs import AFFINE

# -- results --------------------------------------------------------------------------------


def test_one_bad_row_fails_its_request_and_no_other() -> None:
    lane_client = new_lane_client(10)
    pool = Pool(lane_client)
    good, bad = send(lane_client, 3, 1), send(lane_client, 3, 9)
    pool.admit()
    pool.finish(*pool.rows[:4], pool.rows[5])
    pool.finish(pool.rows[4], status=Status.MODEL_ERROR, text="ValueError: row is odd")
    assert lane_client.reap(NOW) == [good, bad]
    assert lane_client.failure(good) is None
    assert lane_client.result(good)["y"].tolist() == answer(3, 1)
    with pytest.raises(ModelError, match="ValueError: row is odd"):
        lane_client.result(bad)
    assert lane_client.allocator.claimed == lane_client.lane.claimed.get() == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.MODEL_ERROR, ModelError),
        (Status.WORKER_LOST, WorkerLost),
        (Status.DEADLINE, DeadlineExceeded),
        (Status.CANCELLED, Cancelled),
        (Status.DRAINING, Draining),
        (Status.INTERNAL, InternalError),
        (Status.OVERLOADED, Overloaded),
        (Status.INVALID_INPUT, InvalidInput),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_every_status_is_raised_as_its_error(status: Status, kind: type[Exception], n: int) -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = send(lane_client, n)
    pool.admit()
    pool.finish(*pool.rows, status=status)
    lane_client.reap(NOW)
    with pytest.raises(kind) as caught:
        lane_client.result(pending)
    assert type(caught.value) is kind
    assert caught.value.row == (0 if n > 1 and kind in OF_A_ROW else None)
    assert lane_client.allocator.claimed == 0


def test_a_refused_row_brings_its_details_and_its_place_in_the_request() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    lone, several = send(lane_client, 1), send(lane_client, 3)
    pool.admit()
    pool.finish(*pool.rows[:3])
    for slot, details in ((0, b'{"offset":3}'), (3, b'{"offset":17}')):
        pool.finish(pool.rows[slot])
        lane_client.lane.write_status(
            np.array([slot]), Status.INVALID_INPUT, "no UTF-8", details=details
        )
    lane_client.reap(NOW)
    for pending, row, offset in ((lone, None, 3), (several, 2, 17)):
        with pytest.raises(InvalidInput, match=r"^no UTF-8$") as caught:
            lane_client.result(pending)
        assert (caught.value.row, caught.value.details) == (row, {"offset": offset})
    assert lane_client.allocator.claimed == 0


@pytest.mark.parametrize("details", [b"", b"{", b"[1]", b"7", b"\xff"])
def test_details_that_somebody_wrote_over_are_none(details: bytes) -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = send(lane_client, 1)
    pool.finish_all()
    lane_client.lane.write_status(np.array([0]), Status.INVALID_INPUT, "no", details=details)
    lane_client.reap(NOW)
    error = lane_client.failure(pending)
    assert isinstance(error, InvalidInput)
    assert (error.message, error.details) == ("no", {})


@pytest.mark.parametrize("n", [1, 2])
def test_a_row_refused_in_the_queue_says_when_to_come_back(n: int) -> None:
    lane_client = new_lane_client(20)
    pool = Pool(lane_client)
    refused, waiting = send(lane_client, n), send(lane_client, 5 - n)
    pool.admit()
    pool.finish(*pool.rows[:n], status=Status.OVERLOADED)
    lane_client.reap(NOW)
    error = lane_client.failure(refused)
    assert isinstance(error, Overloaded)
    assert error.message == "the request could not be answered in time; come back after Retry-After"
    assert error.retry_after_ms == 1000, "no drain rate was measured yet"
    lane_client.drain_rate.count(20, NOW + S)
    error = lane_client.failure(refused)
    assert isinstance(error, Overloaded)
    # Five rows are in the lane, and 20 a second leave it.
    assert error.retry_after_ms == error.body()["retry_after_ms"] == 250
    assert error.headers() == {"Retry-After": "1"}
    lane_client.drain_rate.count(10**6, NOW + 2 * S)
    with pytest.raises(Overloaded) as caught:
        lane_client.result(refused)
    assert caught.value.retry_after_ms == 1
    pool.finish(*pool.rows[n:], status=Status.OVERLOADED, text="a longer story")
    assert lane_client.reap(NOW) == [waiting]
    with pytest.raises(Overloaded, match="a longer story"):
        lane_client.result(waiting)
    assert lane_client.allocator.claimed == 0


def test_futures_of_rows_refused_in_the_queue_fail_as_overloaded() -> None:
    lane_client = new_lane_client(20)
    pool = Pool(lane_client)
    future = RowsFuture(lambda _: True, lane_client)
    call = Call({"x": rows_of(1).tensors["x"]})
    lane_client.submit(rows_of(1), NOW, LATER, tag=(future, call))
    lane_client.flush()
    pool.admit()
    pool.finish(*pool.rows, status=Status.OVERLOADED)
    for found, outcome in outcomes_of((lane_client, pending) for pending in lane_client.reap(NOW)):
        resolve(found, outcome)
    with pytest.raises(Overloaded, match="could not be answered in time"):
        future.result(0)
    assert lane_client.allocator.claimed == 0


def test_views_stay_valid_until_they_are_released() -> None:
    lane_client = new_lane_client(10)
    pool = Pool(lane_client)
    pending = send(lane_client, 2, 5)
    pool.finish_all()
    lane_client.reap(NOW)
    y = lane_client.result(pending, copy=False)["y"]
    assert np.shares_memory(y, lane_client.lane.outputs["y"].values)
    assert lane_client.allocator.claimed == 2
    assert y.tolist() == answer(2, 5)
    lane_client.release(pending)
    assert lane_client.allocator.claimed == 0
    with pytest.raises(AssertionError):
        lane_client.release(pending)


def test_copies_do_not_change_with_the_lane() -> None:
    lane_client = new_lane_client(10)
    pool = Pool(lane_client)
    pending = send(lane_client, 2, 5)
    pool.finish_all()
    lane_client.reap(NOW)
    y = lane_client.result(pending)["y"]
    assert not np.shares_memory(y, lane_client.lane.outputs["y"].values)
    assert y.flags.writeable


def test_only_the_outputs_asked_for_are_read() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = send(lane_client)
    pool.finish_all()
    lane_client.reap(NOW)
    assert lane_client.result(pending, ()) == {}
    again = send(lane_client)
    pool.finish_all()
    lane_client.reap(NOW)
    with pytest.raises(KeyError):
        lane_client.result(again, ["z"])
    assert lane_client.allocator.claimed == 0, "the slots are free all the same"


def test_a_finished_request_nobody_wants_is_discarded() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = send(lane_client, 3)
    pool.finish_all()
    assert lane_client.reap(NOW) == [pending]
    lane_client.release(pending)
    assert lane_client.allocator.claimed == 0


# -- time is up -----------------------------------------------------------------------------


def test_an_overdue_request_is_answered_and_its_slots_stay_claimed_until_done() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    late, fine = send(lane_client, 2, 1, NOW + 5 * MS), send(lane_client, 1, 2, NOW + 9 * MS)
    pool.admit()
    assert lane_client.next_deadline_ns() == NOW + 5 * MS
    assert lane_client.expire(NOW + 5 * MS - 1) == []
    assert lane_client.expire(NOW + 5 * MS) == [late]
    assert lane_client.expire(NOW + 6 * MS) == [], "once"
    assert lane_client.next_deadline_ns() == NOW + 9 * MS
    assert lane_client.in_flight() == [fine]
    assert lane_client.allocator.claimed == lane_client.lane.claimed.get() == 3
    pool.finish(*pool.rows)
    assert lane_client.reap(NOW) == [fine], "the late one was answered already"
    assert lane_client.allocator.claimed == 1
    lane_client.result(fine)
    assert lane_client.next_deadline_ns() == 2**63 - 1


def test_a_request_whose_first_row_is_done_expires_too() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = send(lane_client, 3, 1, NOW + 5 * MS)
    pool.admit()
    pool.finish(pool.rows[0], pool.rows[2])
    assert lane_client.reap(NOW) == []
    assert lane_client.expire(NOW + 5 * MS) == [pending]
    assert lane_client.lane.cancel.tolist()[:3] == [0, 1, 0], "only the row that is not done"
    pool.finish(pool.rows[1])
    assert lane_client.reap(NOW) == []
    assert lane_client.allocator.claimed == 0


def test_abandoning_cancels_what_is_under_way() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pool.lane.has_new_cancels()
    assert not pool.lane.has_new_cancels()
    pending = send(lane_client, 2)
    other = send(lane_client, 1, 7)
    lane_client.abandon(pending)
    lane_client.abandon(pending)
    assert lane_client.lane.cancels.get() == 1
    rows = pool.admit()
    assert pool.lane.has_new_cancels()
    cancelled = pool.lane.cancelled(rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE])
    assert cancelled.tolist() == [True, True, False]
    pool.finish(*pool.rows)
    assert lane_client.reap(NOW) == [other]
    lane_client.result(other)
    again = send(lane_client, 9)
    pool.rows.clear()
    rows = pool.admit()
    assert not pool.lane.cancelled(rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE]).any(), (
        "a cancel word is for one use of the slot"
    )
    assert lane_client.in_flight() == [again]
    # A later use of a slot is cancelled by its own number.
    lane_client.abandon(again)
    assert pool.lane.cancelled(rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE]).all()
    assert sorted(set(rows[QueueColumn.SEQUENCE].tolist())) == [1, 2]


def test_a_cancelled_row_is_never_published_after_its_cancel_word() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = lane_client.submit(rows_of(1), NOW, LATER)
    lane_client.abandon(pending)
    assert pool.admit().shape[1] == 1, "abandon flushes first"


def test_abandoning_what_is_finished_leaves_the_result_to_be_taken() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = send(lane_client)
    pool.finish_all()
    assert lane_client.reap(NOW) == [pending]
    lane_client.abandon(pending)
    assert lane_client.lane.cancels.get() == 0
    assert lane_client.result(pending)["y"].tolist() == answer(1)


# -- stale tickets, takeovers ---------------------------------------------------------------


def entries(lane_client: LaneClient, *tickets: tuple[int, int]) -> None:
    lane_client.lane.cq_producer().push_few([slot | use << 32 for slot, use in tickets])


def test_stale_completions_are_counted_and_ignored() -> None:
    lane_client = new_lane_client(10)
    pool = Pool(lane_client)
    first = send(lane_client, 1, 1)
    pool.finish_all()
    lane_client.reap(NOW)
    lane_client.result(first)
    for _ in range(10):  # round the slots: slot 0 is used again
        pending = send(lane_client, 1, 3)
        if pending.slots[0] == 0:
            break
        pool.finish_all()
        lane_client.result(lane_client.reap(NOW)[0])
    pool.admit()
    entries(lane_client, (0, 1), (5, 1), (9, 77), (10, 1), (2**32 - 1, 2**32 - 1))
    assert lane_client.reap(NOW) == []
    assert lane_client.stale == 5
    entries(lane_client, (0, 2))
    assert lane_client.reap(NOW) == [], "the right use, but the slot is not DONE"
    assert lane_client.stale == 6
    pool.lane = AdmittedLane(0, 1, 0, other_side(lane_client.lane), lambda: None)
    pool.finish((0, 2))
    assert lane_client.reap(NOW) == [pending]
    assert lane_client.result(pending)["y"].tolist() == answer(1, 3)


def test_the_same_completion_twice_is_harmless() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = send(lane_client, 2, 4)
    pool.finish_all()
    entries(lane_client, (0, 1), (1, 1))
    assert lane_client.reap(NOW) == [pending]
    assert lane_client.stale == 2
    assert lane_client.result(pending)["y"].tolist() == answer(2, 4)
    assert lane_client.allocator.claimed == 0


def test_after_a_takeover_the_client_finds_what_is_done_by_itself() -> None:
    """The old batcher died between DONE and the completion entry."""
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    lost, queued, abandoned = (
        send(lane_client, 2, 1),
        send(lane_client, 1, 2),
        send(lane_client, 1, 3),
    )
    lane_client.abandon(abandoned)
    pool.admit()
    values = lane_client.lane.outputs["y"].values
    values[:2] = answer(2, 1)
    lane_client.lane.state[[0, 1, 3]] = SlotState.DONE
    assert lane_client.reap(NOW) == [], "no entry, no new generation: nothing to see"
    lane_client.lane.generation.set(1)
    assert lane_client.reap(NOW) == [lost]
    assert lane_client.result(lost)["y"].tolist() == answer(2, 1)
    assert lane_client.allocator.claimed == 1, "the abandoned one is free too"
    assert lane_client.in_flight() == [queued]
    assert lane_client.reap(NOW) == []
    pool.finish(pool.rows[2])
    assert lane_client.reap(NOW) == [queued]


def test_entries_that_come_after_the_scan_are_stale() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    pending = send(lane_client, 1, 1)
    pool.admit()
    lane_client.lane.state[0] = SlotState.DONE
    lane_client.lane.generation.set(1)
    assert lane_client.reap(NOW) == [pending]
    entries(lane_client, (0, 1))
    assert lane_client.reap(NOW) == []
    assert lane_client.stale == 1


def test_a_takeover_before_the_lane_client_was_made_is_no_news() -> None:
    lane = new_lane(AFFINE, 4)
    lane.generation.set(9)
    lane_client = LaneClient(lane)
    lane.state[2] = SlotState.DONE
    assert lane_client.reap(NOW) == []
    assert lane_client.stale == 0
