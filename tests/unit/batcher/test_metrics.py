"""The batcher's counts: by few steps or by arrays the same, and no row is missed."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.batcher.metrics import END_OF, BatcherMetrics, End, Retry
from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.metrics.segments import counters_layout
from batchpool.core.metrics.table import BLOCKS, metric_of
from batchpool.core.metrics.totals import Histogram, Totals
from batchpool.core.scheduler.queue import FEW
from tests.unit.counters import new_counters

NOW = 10**15
DAY_NS = 86_400 * 10**9
TIMES = metric_of("queue_seconds").bounds
S = 10**9


def totals_of(metrics: BatcherMetrics) -> Totals:
    totals = Totals()
    block = BLOCKS["batcher"]
    words = [metrics._cells[i] for i in range(block.used)]
    totals.add("batcher", ("m", "infer"), words)
    return totals


def histogram(metrics: BatcherMetrics, name: str) -> Histogram:
    return totals_of(metrics).histogram(name)


# What a client wrote as its time of submission may be nonsense.
SUBMITTED = st.one_of(
    st.integers(NOW - 100 * S, NOW),
    st.sampled_from([NOW - bound for bound in TIMES]),
    st.sampled_from([NOW - bound - 1 for bound in TIMES]),
    st.integers(-(2**63), 2**63 - 1),
)


@settings(deadline=None)
@given(st.lists(st.lists(SUBMITTED, min_size=1, max_size=70), max_size=6))
def test_every_row_is_in_the_bucket_of_its_time_in_the_queue(batches: list[list[int]]) -> None:
    metrics = BatcherMetrics()
    counts, total = [0] * (len(TIMES) + 1), 0
    for submits in batches:
        # An honest clock never makes the difference overflow; a liar's is cut as any nonsense.
        wraps = [(NOW - at + 2**63) % 2**64 - 2**63 if len(submits) > FEW else NOW - at
                 for at in submits]  # fmt: skip
        waits = [min(max(wait, 0), DAY_NS) for wait in wraps]
        longest = metrics.dispatch(np.array(submits, dtype=np.int64), DispatchReason.FULL, NOW)
        assert longest == max(waits)
        for wait in waits:
            counts[bisect_left(TIMES, wait)] += 1
        total += sum(waits)
    found = histogram(metrics, "queue_seconds")
    assert list(found.counts) == counts
    assert found.total == pytest.approx(total / S)
    sizes = [len(batch) for batch in batches]
    assert (metrics.rows, histogram(metrics, "batch_rows").count) == (sum(sizes), len(sizes))


@pytest.mark.parametrize("spread_ns", [0, 1000, 10**6, 10**9])
@pytest.mark.parametrize("rows", [1, 4, 16, 17, 64, 257])
def test_a_batch_of_like_rows_counts_as_one_of_unlike_rows(rows: int, spread_ns: int) -> None:
    random = np.random.default_rng(rows)
    submits = NOW - 3_000_000 - random.integers(0, spread_ns + 1, rows)
    whole, single = BatcherMetrics(), BatcherMetrics()
    whole.dispatch(submits, DispatchReason.IDLE, NOW)
    for i in range(rows):
        single.dispatch(submits[i : i + 1], DispatchReason.IDLE, NOW)
    assert histogram(whole, "queue_seconds") == histogram(single, "queue_seconds")


def test_reasons_are_counted_by_name() -> None:
    metrics = BatcherMetrics()
    for reason in (
        DispatchReason.FULL,
        DispatchReason.APART,
        DispatchReason.FULL,
        DispatchReason.WAIT,
    ):
        metrics.dispatch(np.array([NOW]), reason, NOW)
    assert metrics.reasons == {"FULL": 2, "WAIT": 1, "APART": 1}
    assert totals_of(metrics).values("batches_total", "reason") == {
        "full": 2,
        "wait": 1,
        "apart": 1,
    }


def test_batches_that_came_back_and_those_that_did_not() -> None:
    metrics = BatcherMetrics()
    metrics.finish(BatchOutcome.OK, 3, 2_000_000)
    metrics.finish(BatchOutcome.FAILED, 1, 0)
    metrics.finish(BatchOutcome.NO_MEMORY, 1, 5)
    metrics.finish(BatchOutcome.INVALID_INPUT, 0, 0)
    metrics.finish(BatchOutcome.RETURNED, 0, 0)
    metrics.lose()
    totals = totals_of(metrics)
    assert totals.values("batches_finished_total", "outcome") == {
        "ok": 1, "failed": 1, "no_memory": 1, "invalid_input": 1, "returned": 1,
        "lost": 1,
    }  # fmt: skip
    assert totals.value("batch_extents_total") == 5
    # One that an earlier batcher sent took nobody knows how long.
    assert histogram(metrics, "batch_seconds").count == 2


def test_rows_end_once_for_one_reason() -> None:
    metrics = BatcherMetrics()
    metrics.admit(100)
    for n, end in enumerate(End, 1):
        metrics.end(end, n)
    for n, retry in enumerate(Retry, 1):
        metrics.retry(retry, n)
    totals = totals_of(metrics)
    assert totals.values("rows_ended_total", "reason") == {
        "ok": 1, "model_error": 2, "worker_lost": 3, "deadline_exceeded": 4, "cancelled": 5,
        "overloaded": 6, "client_gone": 7, "not_ready": 8, "invalid_input": 9,
        "too_large": 10,
    }  # fmt: skip
    assert totals.values("rows_retried_total", "reason") == {
        "model_error": 1, "worker_lost": 2, "no_memory": 3, "not_started": 4,
        "invalid_input": 5, "returned": 6,
    }  # fmt: skip
    assert (metrics.admitted, metrics.completed, metrics.cancelled) == (100, 48, 5)


def test_every_status_that_the_batcher_gives_is_an_end() -> None:
    given = {Status.WORKER_LOST, Status.DEADLINE, Status.CANCELLED, Status.OVERLOADED,
             Status.NOT_READY}  # fmt: skip
    assert given <= END_OF.keys()
    assert END_OF[Status.OK] is End.OK


def test_a_successor_counts_on_in_the_same_words_and_in_no_others() -> None:
    counters = new_counters(1, "a", "b", "c")
    before = bytes(counters.cells)
    size, at = BLOCKS["batcher"].size, counters.place("batcher", 1)
    for n in (1, 2):
        metrics = BatcherMetrics(counters.cells, at)
        metrics.admit(10)
        metrics.dispatch(np.full(n * 30, NOW - 1000), DispatchReason.FULL, NOW)
        metrics.finish(BatchOutcome.OK, n, 1000)
        metrics.end(End.OK, 7)
        metrics.show(3)
        metrics.limit(64)
    assert counters.totals().value("rows_admitted_total", model="b") == 20
    assert counters.totals().histogram("batch_rows", model="b").total == 90
    after = bytes(counters.cells)
    changed = [i for i in range(len(after)) if after[i] != before[i]]
    assert 8 * at <= changed[0]
    assert changed[-1] < 8 * (at + size) <= counters_layout(1).total_bytes


def test_the_last_good_batch_is_known_by_its_unix_time() -> None:
    cells = memoryview(bytearray(8 * BLOCKS["batcher"].size)).cast("Q")
    metrics = BatcherMetrics(cells, 0, epoch_ns=1_000)
    last = BLOCKS["batcher"].word("last_inference_timestamp_seconds")
    metrics.finish(BatchOutcome.FAILED, 1, 5, done_ns=30)
    assert cells[last] == 0
    metrics.finish(BatchOutcome.OK, 1, 5, done_ns=70)
    metrics.finish(BatchOutcome.FAILED, 1, 5, done_ns=90)
    assert cells[last] == 1_070
