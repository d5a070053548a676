"""Rows that are late or cancelled when the worker comes to their batch."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.worker.padding import Padding
from tests.unit.specs import AFFINE
from tests.unit.worker.worker_bench import ROWS, Bench

DUE = 5000


def behind_a_running_batch(bench: Bench, due_ns: tuple[int, ...] = ()) -> DispatchedBatch:
    """ROWS as a batch that is dispatched, and stands behind one that runs until DUE."""
    bench.send((4, 7))
    batch = bench.send(*ROWS, due_ns=due_ns)
    bench.fill(*ROWS)
    bench.worker.step()
    assert len(bench.backend.launched) == 1
    bench.now_ns = DUE
    return batch


def counts(bench: Bench, batch: DispatchedBatch) -> tuple[int, int]:
    """(expired, cancelled) of the batch's record."""
    segment = bench.worker_segment
    return segment.expired_of[batch.record], segment.cancelled_of[batch.record]


def test_a_batch_all_of_whose_rows_are_late_is_not_executed() -> None:
    bench = Bench()
    batch = behind_a_running_batch(bench, (DUE, DUE - 1, 1001))
    bench.run()
    assert len(bench.backend.launched) == 1, "only the one in front of it"
    assert bench.statuses(*ROWS) == [(Status.DEADLINE, "")] * 3
    assert (bench.outcome(batch), counts(bench, batch)) == (BatchOutcome.OK, (3, 0))
    assert bench.worker_segment.rows.get() == 1
    assert bench.worker_segment.good.get() == 1
    assert bench.proxy.finished()[-1] is batch


@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_other_rows_of_a_batch_run_without_the_late_one(late: int) -> None:
    bench = Bench()
    dues = [NEVER_NS, DUE + 1, NEVER_NS]
    dues[late] = DUE
    batch = behind_a_running_batch(bench, tuple(dues))
    bench.run()
    n, inputs, _ = bench.backend.launched[-1]
    others = [row for i, row in enumerate(ROWS) if i != late]
    assert (n, inputs["x"][:, 0].tolist()) == (2, [10 * lane + slot for lane, slot in others])
    assert bench.y(*others) == [[2 * (10 * lane + slot) + 1] * 4 for lane, slot in others]
    assert bench.statuses(*others) == [(Status.OK, "")] * 2
    assert bench.statuses(ROWS[late]) == [(Status.DEADLINE, "")]
    assert counts(bench, batch) == (1, 0)
    assert bench.worker_segment.rows.get() == 3


def test_cancelled_rows_are_not_executed() -> None:
    bench = Bench()
    batch = behind_a_running_batch(bench, (DUE, NEVER_NS, NEVER_NS))
    bench.cancel(*ROWS[0])  # late as well
    bench.cancel(*ROWS[2])
    bench.run()
    assert bench.backend.launched[-1][0] == 1
    statuses = [status for status, _ in bench.statuses(*ROWS)]
    assert statuses == [Status.DEADLINE, Status.OK, Status.CANCELLED]
    assert counts(bench, batch) == (1, 1)


def test_the_cancel_word_of_an_earlier_use_of_the_slot_ends_nothing() -> None:
    bench = Bench()
    batch = behind_a_running_batch(bench)
    bench.cancel(1, 6)  # of no row of the batch
    bench.lanes[1].cancel[ROWS[0][1]] = 2
    bench.run()
    assert bench.backend.launched[-1][0] == 3
    assert counts(bench, batch) == (0, 0)


def test_rows_without_a_new_cancel_or_a_passed_deadline_are_not_looked_at_again() -> None:
    """A client that stores a deadline after its row was dispatched changes nothing."""
    bench = Bench()
    batch = behind_a_running_batch(bench, (DUE + 1,) * 3)
    bench.lanes[1].deadline_ns[:] = 1
    bench.lanes[1].cancel[:] = 1
    bench.run()
    assert bench.backend.launched[-1][0] == 3
    assert counts(bench, batch) == (0, 0)


def test_any_count_of_cancels_is_only_a_reason_to_look() -> None:
    bench = Bench()
    batch = behind_a_running_batch(bench)
    bench.lanes[4].cancels.set(2**63 - 1)
    bench.lanes[1].cancels.set(2**63 - 1)
    bench.run()
    assert bench.backend.launched[-1][0] == 3
    assert counts(bench, batch) == (0, 0)


def test_late_rows_are_padding_where_batch_sizes_are_fixed() -> None:
    default = {"x": np.full(4, 9, np.float32)}
    bench = Bench(padding=Padding(AFFINE, (1, 4), default))
    behind_a_running_batch(bench, (DUE, NEVER_NS, NEVER_NS))
    bench.run()
    _, inputs, _ = bench.backend.launched[-1]
    assert inputs["x"][:, 0].tolist() == [13, 40, 9, 9]
    assert bench.y(*ROWS[1:]) == [[27] * 4, [81] * 4]


def test_the_counts_of_a_record_are_those_of_its_last_batch() -> None:
    bench = Bench()
    batch = behind_a_running_batch(bench, (DUE,) * 3)
    bench.run()
    for done in bench.proxy.finished():
        bench.proxy.free(done)
    bench.proxy.advance()
    batches = [bench.send(*ROWS) for _ in range(2)]
    bench.run()
    (again,) = (sent for sent in batches if sent.record == batch.record)
    assert counts(bench, again) == (0, 0)


def test_a_failed_batch_leaves_the_statuses_of_the_ended_rows() -> None:
    def fails(*_: object) -> object:
        raise RuntimeError("no")

    bench = Bench(infer=fails)
    behind_a_running_batch(bench, (DUE, NEVER_NS, NEVER_NS))
    bench.run()
    statuses = [status for status, _ in bench.statuses(*ROWS)]
    assert statuses == [Status.DEADLINE, Status.MODEL_ERROR, Status.MODEL_ERROR]
