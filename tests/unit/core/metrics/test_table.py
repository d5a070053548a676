"""The table of metrics: its names and labels, and where the words stand."""

from __future__ import annotations

import re

import pytest

from batchpool.core.errors import all_errors
from batchpool.core.layout.states import BatchOutcome, DispatchReason, PoolState
from batchpool.core.metrics.table import (
    BATCH_OUTCOMES,
    BLOCKS,
    BY_NAME,
    COUNTER,
    GAUGE,
    HISTOGRAM,
    HTTP_OUTCOMES,
    METRICS,
    OWN_LABELS,
    REASONS,
    Metric,
    metric_of,
)

EVERY = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)


def test_names_are_there_once() -> None:
    assert len(BY_NAME) == len(METRICS)


@EVERY
def test_names_are_prometheus_names_with_base_units(metric: Metric) -> None:
    assert re.fullmatch(r"batchpool_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.kind in (COUNTER, GAUGE, HISTOGRAM)
    assert metric.name.endswith("_total") == (metric.kind == COUNTER)
    for suffix in ("_count", "_sum", "_bucket", "_created", "_ms", "_ns", "_percent"):
        assert not metric.name.endswith(suffix)
    # Words of nanoseconds are shown in seconds, and nothing else is scaled.
    in_seconds = metric.name.removesuffix("_total").endswith("_seconds")
    assert (metric.per_unit == 10**9) == in_seconds
    assert metric.help
    assert metric.help[0].islower() or metric.help[0].isdigit()
    assert not metric.help.endswith(".")


@EVERY
def test_labels_are_bounded_and_every_case_has_its_values(metric: Metric) -> None:
    """C68: no label takes values without end."""
    names = metric.label_names
    assert len(set(names)) == len(names)
    assert set(names) <= {
        *("model", "worker", "device", "process", "name", "version", "python", "kind"),
        *("road", "code", "reason", "outcome", "client", "state", "stage"),
    }
    assert len(set(metric.cases)) == len(metric.cases)
    if metric.writer != "reader":
        assert all(len(case) == len(metric.labels) for case in metric.cases)
    assert (metric.bounds != ()) == (metric.kind == HISTOGRAM)
    assert list(metric.bounds) == sorted(set(metric.bounds))


@pytest.mark.parametrize("writer", sorted(BLOCKS))
def test_words_of_a_block_never_overlap_and_fill_it(writer: str) -> None:
    block = BLOCKS[writer]
    taken: list[int] = []
    for metric in block.metrics:
        for case in metric.cases:
            first = block.word(metric.name, *case)
            taken += range(first, first + metric.words_each)
    assert sorted(taken) == list(range(block.used)), "a word with two meanings, or with none"
    assert block.size % 16 == 0, "two writers' blocks share cache lines"
    assert block.used <= block.size < block.used + 16


def test_every_writer_has_its_block_but_who_writes_no_words() -> None:
    assert {metric.writer for metric in METRICS} == set(OWN_LABELS)
    assert set(BLOCKS) == set(OWN_LABELS) - {"reader"}


def test_cases_are_what_can_happen() -> None:
    assert {code for _, code in HTTP_OUTCOMES} == {"ok", *(kind.code for kind in all_errors())}
    assert tuple(reason.name.lower() for reason in DispatchReason) == REASONS
    assert set(BATCH_OUTCOMES) == {
        o.name.lower() for o in BatchOutcome if o is not BatchOutcome.NONE
    } | {"lost"}
    states = {case[0] for case in metric_of("pool_state").cases}
    assert states == {state.name.lower() for state in PoolState}


def test_a_metric_is_found_with_its_prefix_and_without() -> None:
    assert metric_of("queue_seconds") is metric_of("batchpool_queue_seconds")
    with pytest.raises(KeyError):
        metric_of("nothing")
