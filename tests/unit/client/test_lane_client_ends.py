"""How a client's request ends: results, errors, lateness, cancelling, a lost batcher."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.batcher.lane import AdmittedLane
from batchpool.client.call import Call
from batchpool.client.futures import RowsFuture, outcomes_of, resolve
from batchpool.client.lane_client import LaneClient
from batchpool.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    InternalError,
    ModelError,
    Overloaded,
    Status,
    WorkerLost,
)
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.queue import Field
from tests.unit.client.lane_clients import LATER, MS, NOW, Pool, S, answer, new_port, rows_of, send
from tests.unit.lanes import new_lane, other_side
from tests.unit.specs import AFFINE

# -- results --------------------------------------------------------------------------------


def test_one_bad_row_fails_its_request_and_no_other() -> None:
    port = new_port(10)
    pool = Pool(port)
    good, bad = send(port, 3, 1), send(port, 3, 9)
    pool.admit()
    pool.finish(*pool.rows[:4], pool.rows[5])
    pool.finish(pool.rows[4], status=Status.MODEL_ERROR, text="ValueError: row is odd")
    assert port.reap(NOW) == [good, bad]
    assert port.failure(good) is None
    assert port.result(good)["y"].tolist() == answer(3, 1)
    with pytest.raises(ModelError, match="ValueError: row is odd"):
        port.result(bad)
    assert port.map.claimed == port.lane.claimed.get() == 0


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
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_every_status_is_raised_as_its_error(status: Status, kind: type[Exception], n: int) -> None:
    port = new_port()
    pool = Pool(port)
    pending = send(port, n)
    pool.admit()
    pool.finish(*pool.rows, status=status)
    port.reap(NOW)
    with pytest.raises(kind) as caught:
        port.result(pending)
    assert type(caught.value) is kind
    assert port.map.claimed == 0


@pytest.mark.parametrize("n", [1, 2])
def test_a_row_refused_in_the_queue_says_when_to_come_back(n: int) -> None:
    port = new_port(20)
    pool = Pool(port)
    refused, waiting = send(port, n), send(port, 5 - n)
    pool.admit()
    pool.finish(*pool.rows[:n], status=Status.OVERLOADED)
    port.reap(NOW)
    error = port.failure(refused)
    assert isinstance(error, Overloaded)
    assert error.message == "the request could not be answered in time; come back after Retry-After"
    assert error.retry_after_ms == 1000, "no pace was measured yet"
    port.pace.count(20, NOW + S)
    error = port.failure(refused)
    assert isinstance(error, Overloaded)
    # Five rows are in the lane, and 20 a second leave it.
    assert error.retry_after_ms == error.body()["retry_after_ms"] == 250
    assert error.headers() == {"Retry-After": "1"}
    port.pace.count(10**6, NOW + 2 * S)
    with pytest.raises(Overloaded) as caught:
        port.result(refused)
    assert caught.value.retry_after_ms == 1
    pool.finish(*pool.rows[n:], status=Status.OVERLOADED, text="a longer story")
    assert port.reap(NOW) == [waiting]
    with pytest.raises(Overloaded, match="a longer story"):
        port.result(waiting)
    assert port.map.claimed == 0


def test_futures_of_rows_refused_in_the_queue_fail_as_overloaded() -> None:
    port = new_port(20)
    pool = Pool(port)
    future = RowsFuture(lambda _: True, port)
    call = Call(rows_of(1), NOW, LATER, 30.0, None, 0)
    port.submit(call.rows, NOW, LATER, tag=(future, call))
    port.flush()
    pool.admit()
    pool.finish(*pool.rows, status=Status.OVERLOADED)
    for found, outcome in outcomes_of((port, pending) for pending in port.reap(NOW)):
        resolve(found, outcome)
    with pytest.raises(Overloaded, match="could not be answered in time"):
        future.result(0)
    assert port.map.claimed == 0


def test_views_stay_valid_until_they_are_released() -> None:
    port = new_port(10)
    pool = Pool(port)
    pending = send(port, 2, 5)
    pool.finish_all()
    port.reap(NOW)
    y = port.result(pending, copy=False)["y"]
    assert np.shares_memory(y, port.lane.outputs["y"].values)
    assert port.map.claimed == 2
    assert y.tolist() == answer(2, 5)
    port.release(pending)
    assert port.map.claimed == 0
    with pytest.raises(AssertionError):
        port.release(pending)


def test_copies_do_not_change_with_the_lane() -> None:
    port = new_port(10)
    pool = Pool(port)
    pending = send(port, 2, 5)
    pool.finish_all()
    port.reap(NOW)
    y = port.result(pending)["y"]
    assert not np.shares_memory(y, port.lane.outputs["y"].values)
    assert y.flags.writeable


def test_only_the_outputs_asked_for_are_read() -> None:
    port = new_port()
    pool = Pool(port)
    pending = send(port)
    pool.finish_all()
    port.reap(NOW)
    assert port.result(pending, ()) == {}
    again = send(port)
    pool.finish_all()
    port.reap(NOW)
    with pytest.raises(KeyError):
        port.result(again, ["z"])
    assert port.map.claimed == 0, "the slots are free all the same"


def test_a_finished_request_nobody_wants_is_discarded() -> None:
    port = new_port()
    pool = Pool(port)
    pending = send(port, 3)
    pool.finish_all()
    assert port.reap(NOW) == [pending]
    port.release(pending)
    assert port.map.claimed == 0


# -- time is up -----------------------------------------------------------------------------


def test_an_overdue_request_is_answered_and_its_slots_stay_claimed_until_done() -> None:
    port = new_port()
    pool = Pool(port)
    late, fine = send(port, 2, 1, NOW + 5 * MS), send(port, 1, 2, NOW + 9 * MS)
    pool.admit()
    assert port.next_deadline_ns() == NOW + 5 * MS
    assert port.expire(NOW + 5 * MS - 1) == []
    assert port.expire(NOW + 5 * MS) == [late]
    assert port.expire(NOW + 6 * MS) == [], "once"
    assert port.next_deadline_ns() == NOW + 9 * MS
    assert port.in_flight() == [fine]
    assert port.map.claimed == port.lane.claimed.get() == 3
    pool.finish(*pool.rows)
    assert port.reap(NOW) == [fine], "the late one was answered already"
    assert port.map.claimed == 1
    port.result(fine)
    assert port.next_deadline_ns() == 2**63 - 1


def test_a_request_whose_first_row_is_done_expires_too() -> None:
    port = new_port()
    pool = Pool(port)
    pending = send(port, 3, 1, NOW + 5 * MS)
    pool.admit()
    pool.finish(pool.rows[0], pool.rows[2])
    assert port.reap(NOW) == []
    assert port.expire(NOW + 5 * MS) == [pending]
    assert port.lane.cancel.tolist()[:3] == [0, 1, 0], "only the row that is not done"
    pool.finish(pool.rows[1])
    assert port.reap(NOW) == []
    assert port.map.claimed == 0


def test_abandoning_cancels_what_is_under_way() -> None:
    port = new_port()
    pool = Pool(port)
    pool.lane.cancels_came()
    assert not pool.lane.cancels_came()
    pending = send(port, 2)
    other = send(port, 1, 7)
    port.abandon(pending)
    port.abandon(pending)
    assert port.lane.cancels.get() == 1
    rows = pool.admit()
    assert pool.lane.cancels_came()
    cancelled = pool.lane.cancelled(rows[Field.SLOT], rows[Field.SEQUENCE])
    assert cancelled.tolist() == [True, True, False]
    pool.finish(*pool.rows)
    assert port.reap(NOW) == [other]
    port.result(other)
    again = send(port, 9)
    pool.rows.clear()
    rows = pool.admit()
    assert not pool.lane.cancelled(rows[Field.SLOT], rows[Field.SEQUENCE]).any(), (
        "a cancel word is for one use of the slot"
    )
    assert port.in_flight() == [again]
    # A later use of a slot is cancelled by its own number.
    port.abandon(again)
    assert pool.lane.cancelled(rows[Field.SLOT], rows[Field.SEQUENCE]).all()
    assert sorted(set(rows[Field.SEQUENCE].tolist())) == [1, 2]


def test_a_cancelled_row_is_never_published_after_its_cancel_word() -> None:
    port = new_port()
    pool = Pool(port)
    pending = port.submit(rows_of(1), NOW, LATER)
    port.abandon(pending)
    assert pool.admit().shape[1] == 1, "abandon flushes first"


def test_abandoning_what_is_finished_leaves_the_result_to_be_taken() -> None:
    port = new_port()
    pool = Pool(port)
    pending = send(port)
    pool.finish_all()
    assert port.reap(NOW) == [pending]
    port.abandon(pending)
    assert port.lane.cancels.get() == 0
    assert port.result(pending)["y"].tolist() == answer(1)


def test_the_pool_is_gone() -> None:
    port = new_port()
    pool = Pool(port)
    sent = [send(port, 2, 1), send(port, 1, 2), send(port, 3, 3)]
    port.abandon(sent[1])
    pool.admit()
    pool.finish(pool.rows[0])
    port.reap(NOW)
    assert port.fail_all() == [sent[0], sent[2]]
    assert port.fail_all() == []


# -- stale tickets, takeovers ---------------------------------------------------------------


def entries(port: LaneClient, *tickets: tuple[int, int]) -> None:
    port.lane.cq_producer().push_few([slot | use << 32 for slot, use in tickets])


def test_stale_completions_are_counted_and_ignored() -> None:
    port = new_port(10)
    pool = Pool(port)
    first = send(port, 1, 1)
    pool.finish_all()
    port.reap(NOW)
    port.result(first)
    for _ in range(10):  # round the slots: slot 0 is used again
        pending = send(port, 1, 3)
        if pending.slots[0] == 0:
            break
        pool.finish_all()
        port.result(port.reap(NOW)[0])
    pool.admit()
    entries(port, (0, 1), (5, 1), (9, 77), (10, 1), (2**32 - 1, 2**32 - 1))
    assert port.reap(NOW) == []
    assert port.stale == 5
    entries(port, (0, 2))
    assert port.reap(NOW) == [], "the right use, but the slot is not DONE"
    assert port.stale == 6
    pool.lane = AdmittedLane(0, 1, 0, other_side(port.lane), lambda: None)
    pool.finish((0, 2))
    assert port.reap(NOW) == [pending]
    assert port.result(pending)["y"].tolist() == answer(1, 3)


def test_the_same_completion_twice_is_harmless() -> None:
    port = new_port()
    pool = Pool(port)
    pending = send(port, 2, 4)
    pool.finish_all()
    entries(port, (0, 1), (1, 1))
    assert port.reap(NOW) == [pending]
    assert port.stale == 2
    assert port.result(pending)["y"].tolist() == answer(2, 4)
    assert port.map.claimed == 0


def test_after_a_takeover_the_client_finds_what_is_done_by_itself() -> None:
    """The old batcher died between DONE and the completion entry."""
    port = new_port()
    pool = Pool(port)
    lost, queued, abandoned = send(port, 2, 1), send(port, 1, 2), send(port, 1, 3)
    port.abandon(abandoned)
    pool.admit()
    values = port.lane.outputs["y"].values
    values[:2] = answer(2, 1)
    port.lane.state[[0, 1, 3]] = SlotState.DONE
    assert port.reap(NOW) == [], "no entry, no new generation: nothing to see"
    port.lane.generation.set(1)
    assert port.reap(NOW) == [lost]
    assert port.result(lost)["y"].tolist() == answer(2, 1)
    assert port.map.claimed == 1, "the abandoned one is free too"
    assert port.in_flight() == [queued]
    assert port.reap(NOW) == []
    pool.finish(pool.rows[2])
    assert port.reap(NOW) == [queued]


def test_entries_that_come_after_the_scan_are_stale() -> None:
    port = new_port()
    pool = Pool(port)
    pending = send(port, 1, 1)
    pool.admit()
    port.lane.state[0] = SlotState.DONE
    port.lane.generation.set(1)
    assert port.reap(NOW) == [pending]
    entries(port, (0, 1))
    assert port.reap(NOW) == []
    assert port.stale == 1


def test_a_takeover_before_the_port_was_made_is_no_news() -> None:
    lane = new_lane(AFFINE, 4)
    lane.generation.set(9)
    port = LaneClient(lane)
    lane.state[2] = SlotState.DONE
    assert port.reap(NOW) == []
    assert port.stale == 0
