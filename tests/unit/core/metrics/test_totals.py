"""Figures from counters: sums over writers, gauges of the dead, histograms and quantiles."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.metrics.table import BLOCKS, metric_of
from batchpool.core.metrics.totals import Histogram, Totals, as_histogram

BATCHER, FRONTEND, PROCESS = BLOCKS["batcher"], BLOCKS["frontend"], BLOCKS["process"]


def words_of(writer: str, **values: int) -> list[int]:
    """A block with these words, by metric's name; the first case of each."""
    block = BLOCKS[writer]
    words = [0] * block.used
    for name, value in values.items():
        words[block.at[metric_of(name).name]] = value
    return words


def test_counters_of_all_writers_are_added_up() -> None:
    totals = Totals()
    for n in (1, 20, 300):
        totals.add("frontend", ("m",), words_of("frontend", http_requests_total=n))
    totals.add("frontend", ("other",), words_of("frontend", http_requests_total=4000))
    assert totals.value("http_requests_total", model="m") == 321
    assert totals.value("http_requests_total") == 4321
    assert totals.values("http_requests_total", "code", model="m") == {"200": 321}
    assert totals.values("http_requests_total", "model") == {"m": 321, "other": 4000}
    assert totals.value("http_requests_total", model="none") == 0


def test_gauges_of_the_dead_are_left_out_and_their_counters_kept() -> None:
    """C68: the dead count on, and are not shown."""
    totals = Totals()
    words = words_of("batcher", rows_admitted_total=5, queue_rows=7)
    totals.add("batcher", ("m", "infer"), words, alive=False)
    assert totals.value("rows_admitted_total") == 5
    assert list(totals.series(metric_of("queue_rows"))) == []


def test_whether_a_process_is_up_is_told_of_the_dead_too() -> None:
    totals = Totals()
    totals.add("process", ("batcher",), words_of("process", process_pid=7), alive=False)
    assert dict(totals.series(metric_of("process_up"))) == {("batcher",): [0]}
    assert list(totals.series(metric_of("process_pid"))) == []


def test_the_latest_time_counts_and_outlives_its_process_and_its_entry() -> None:
    totals, name = Totals(), "last_inference_timestamp_seconds"
    for ns, how in ((5, {}), (9, {"alive": False}), (7, {"gone": True})):
        words = words_of("batcher", last_inference_timestamp_seconds=ns, queue_rows=3)
        totals.add("batcher", ("m", "infer"), words, **how)
    assert totals.words(name, model="m") == [9]
    assert totals.value("queue_rows") == 3


def test_words_are_added_up_in_their_own_unit() -> None:
    totals = Totals()
    for device, ns in (("cpu", 3), ("gpu 0", 4_000_000_001)):
        words = words_of("worker")
        at = BLOCKS["worker"].word("worker_compute_seconds")
        each = metric_of("worker_compute_seconds").words_each
        words[at], words[at + each - 1] = 1, ns
        totals.add("worker", ("m", "0", device, "infer"), words)
    found = totals.words("worker_compute_seconds", model="m")
    assert (found[0], sum(found[:-1]), found[-1]) == (2, 2, 4_000_000_004)
    assert set(totals.words("worker_compute_seconds", model="other")) == {0}


def test_of_two_processes_in_one_post_the_larger_word_counts() -> None:
    totals = Totals()
    for pid in (12, 7):
        words = words_of("process", process_up=1, process_pid=pid, process_restarts_total=2)
        totals.add("process", ("worker 0 of m",), words)
    assert totals.value("process_up") == 1
    assert totals.value("process_pid") == 12
    assert totals.value("process_restarts_total") == 4


def test_times_are_told_in_seconds() -> None:
    totals = Totals()
    words = words_of("process", process_start_time_seconds=1_500_000_000)
    totals.add("process", ("supervisor",), words)
    assert totals.value("process_start_time_seconds") == 1.5


BOUNDS = (1.0, 2.0, 5.0)


def histogram_of(values: list[float]) -> Histogram:
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[bisect.bisect_left(BOUNDS, value)] += 1
    return Histogram(BOUNDS, tuple(counts), sum(values))


VALUES = st.lists(st.integers(0, 60).map(lambda n: n / 10), max_size=40)


@settings(deadline=None)
@given(VALUES, VALUES)
def test_histograms_add_up_and_what_was_added_can_be_taken_away(
    one: list[float], other: list[float]
) -> None:
    both = histogram_of(one) + histogram_of(other)
    assert both.counts == histogram_of(one + other).counts
    assert both.total == pytest.approx(sum(one) + sum(other))
    assert (both - histogram_of(other)).counts == histogram_of(one).counts


@settings(deadline=None)
@given(VALUES.filter(bool), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_value_it_stands_for(
    values: list[float], share: float
) -> None:
    found = histogram_of(values).quantile(share)
    assert found is not None
    ranked = sorted(values)
    rank = share * len(ranked)
    true = ranked[min(len(ranked) - 1, max(0, -int(-rank // 1) - 1))]
    place = bisect.bisect_left(BOUNDS, true)
    low = BOUNDS[place - 1] if place else 0.0
    high = BOUNDS[min(place, len(BOUNDS) - 1)]
    assert low <= found <= high or found == pytest.approx(high)


def test_there_is_no_quantile_of_nothing() -> None:
    assert histogram_of([]).quantile(0.5) is None


def test_a_histogram_is_read_from_its_words_in_its_unit() -> None:
    metric = metric_of("queue_seconds")
    words = [0] * metric.words_each
    words[3], words[-1] = 4, 2_000_000_000
    histogram = as_histogram(metric, words)
    assert (histogram.count, histogram.total, histogram.bounds[0]) == (4, 2.0, 0.00005)
    assert 0.0002 < (histogram.quantile(0.5) or 0) <= 0.0005
