"""A worker runs no row of a batch record that was overwritten since the batcher wrote it."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.core.layout.states import DispatchReason
from batchpool.shm.batch_record import DamagedSegment, read_record, write_record
from batchpool.worker.device_errors import MustRestart
from tests.unit.lanes import new_worker_segment
from tests.unit.worker.worker_bench import Bench

COLUMNS = ["token", "freed", "n", "reason", "attempt", "tokens", "due_ns", "bucket", "cancels"]


@pytest.mark.parametrize("column", [*COLUMNS, "check"])
@pytest.mark.parametrize("value", [0, 1, 2**31 - 1])
def test_no_row_of_an_overwritten_record_is_run(column: str, value: int) -> None:
    bench = Bench()
    batch = bench.send((1, 2), (1, 3), (4, 0))
    cells = bench.worker_segment.memory.scalars(bench.worker_segment.layout.columns[column])
    if cells[batch.record] == value:
        return
    cells[batch.record] = value
    before = [lane.status.tolist() for lane in bench.lanes.values()]
    with pytest.raises(MustRestart, match="batch record 0 was overwritten"):
        bench.run()
    assert bench.backend.launched == []
    assert [lane.status.tolist() for lane in bench.lanes.values()] == before


@pytest.mark.parametrize("which", [0, 1, 2])
def test_no_slot_is_written_that_the_batcher_did_not_name(which: int) -> None:
    """It may be a row of another caller, or one that its caller reads."""
    bench = Bench()
    batch = bench.send((1, 2), (1, 3), (4, 0))
    bench.worker_segment.tickets[batch.record, which, 1] += 1
    with pytest.raises(MustRestart):
        bench.run()
    assert bench.backend.launched == []


def test_an_entry_of_a_record_that_is_not_there_ends_the_worker() -> None:
    bench = Bench()
    bench.worker_segment.sq_producer().push_few([77 | 1 << 32])
    with pytest.raises(MustRestart, match="record 77 of 4"):
        bench.run()


def test_a_record_reads_as_it_was_written() -> None:
    segment = new_worker_segment(4)
    tickets = np.array([[1, 1, 2], [4, 5, 6], [7, 8, 2**32 - 1]], dtype=np.int64)
    full = int(DispatchReason.FULL)
    write_record(segment, 2, tickets, 9, full, 1, 0, 10**15, 2**40, cancels=5)
    segment.token_of[2] = 9
    found = read_record(segment, 2)
    assert found[:-1] == (9, 3, full, 1, 0, 10**15, 2**40, 5)
    assert found.tickets.tolist() == tickets.tolist()
    segment.tickets[2, 0, 3] = 1  # behind its rows
    assert read_record(segment, 2).n == 3
    segment.n_of[2] = 2**32 - 1
    with pytest.raises(DamagedSegment):
        read_record(segment, 2)
