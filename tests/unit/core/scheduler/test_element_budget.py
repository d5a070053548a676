"""The element budget: how many rows of a size share a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchpool as bp
from batchpool.core.config.schema import ModelConfig
from batchpool.core.scheduler.decide import Limits, WorkerView
from batchpool.core.scheduler.element_budget import BucketRows, rows_within
from batchpool.core.scheduler.size_buckets import SizeBuckets, sizes_of_bucket
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage
from tests.unit.core.scheduler.decisions import NOW, Case, Outcome, waiting
from tests.unit.core.scheduler.queued import MS

IDS = Tensor("ids", "int32", (bp.Dim(2048, "tokens"),))
OUT = (Tensor("y", "float32"),)


def spec_of(*inputs: Tensor) -> ModelSpec:
    return ModelSpec("m", "numpy", inputs, OUT)


def rows_of_size(limits: Limits, spec: ModelSpec, *sizes: int) -> int:
    bucket = SizeBuckets(spec).of(np.array([sizes]))
    return limits.most_rows(int(np.ravel(bucket)[0]))


@pytest.mark.parametrize(
    ("elements", "row", "max_batch", "sizes", "rows"),
    [
        (0, 10**9, 64, (), 64),
        (1024, 16, 64, (), 64),
        (1024, 17, 64, (), 60),
        (1024, 1024, 64, (), 1),
        (1024, 1025, 64, (), 1),
        (1024, 0, 64, (), 64),
        (100, 10, 64, (4, 8, 64), 8),
        (100, 26, 64, (4, 8, 64), 4),
    ],
)
def test_as_many_rows_as_the_budget_takes(
    elements: int, row: int, max_batch: int, sizes: Sequence[int], rows: int
) -> None:
    """A row above the budget runs alone, or in the smallest batch that there is."""
    assert rows_within(elements, row, max_batch, sizes) == rows


def test_long_rows_share_smaller_batches_than_short_ones() -> None:
    spec = spec_of(IDS)
    limits = Limits(64, 0, max_elements=16384).of_stage(spec)
    found = [rows_of_size(limits, spec, size) for size in (1, 16, 256, 257, 1024, 2048)]
    assert found == [64, 64, 64, 32, 16, 8]


def test_each_input_has_the_budget_for_itself_and_the_largest_counts() -> None:
    boxes = Tensor("boxes", "float32", (bp.Dim(100, "boxes"), 4))
    spec = spec_of(IDS, Tensor("fixed", "float32", (5, 20)), boxes)
    limits = Limits(64, 0, max_elements=1000).of_stage(spec)
    assert rows_of_size(limits, spec, 16, 16) == 10, "the fixed input: 10 x 100"
    assert rows_of_size(limits, spec, 500, 16) == 1, "ids: 512"
    assert rows_of_size(limits, spec, 16, 70) == 2, "boxes: 100 x 4, no more than there are"


def test_rows_of_one_size_have_a_lower_max_batch() -> None:
    limits = Limits(64, 0, max_elements=1000)
    assert limits.of_stage(spec_of(Tensor("x", "float32", (5, 20)))) == Limits(
        10, 0, max_elements=1000
    )
    short = spec_of(Tensor("x", "float32", (bp.Dim(10, "n"), 10)))
    assert limits.of_stage(short).max_batch == 10
    with_sizes = Limits(16, 0, max_elements=1000, sizes=(4, 8, 16))
    assert with_sizes.of_stage(short).max_batch == 8


def test_a_budget_comes_from_the_configuration_and_not_for_preprocess() -> None:
    config = ModelConfig(import_name="m:M", max_batch_elements=4096)
    assert Limits.of(config).max_elements == 4096
    assert Limits.of(config, Stage.PREPROCESS).max_elements == 0
    assert Limits.of(ModelConfig(import_name="m:M")).of_stage(spec_of(IDS)).bucket_rows is None


def test_a_batch_of_long_rows_is_full_earlier() -> None:
    spec = spec_of(IDS)
    limits = Limits(8, 50 * MS, max_elements=4096).of_stage(spec)
    short, long = (int(b) for b in np.ravel(SizeBuckets(spec).of(np.array([[20], [2000]]))))
    rows = waiting([NOW] * 12, bucket=[long, short] * 6)
    o = Outcome(Case(rows, [WorkerView(0, 0)], limits))
    assert [(d.reason.name, sent) for d, sent in o.batches] == [("FULL", [0, 2]), ("FULL", [4, 6])]
    assert o.left == [1, 3, 5, 7, 8, 9, 10, 11], "six short ones wait for company"


def test_a_due_batch_that_goes_before_a_full_one_of_long_rows_has_its_own_bound() -> None:
    """Short rows are due and were looked at first; the full batch behind them is of two rows."""
    spec = spec_of(IDS)
    limits = Limits(8, 50 * MS, max_elements=4096).of_stage(spec)
    short, long = (int(b) for b in np.ravel(SizeBuckets(spec).of(np.array([[20], [2000]]))))
    rows = waiting([NOW - 50 * MS] * 3 + [NOW] * 2, bucket=[short] * 3 + [long] * 2)
    o = Outcome(Case(rows, [WorkerView(0, 1)], limits))
    assert [sent for _, sent in o.batches] == [[0, 1, 2]]


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=3),
    st.lists(st.integers(0, 6000), min_size=3, max_size=3),
)
def test_no_row_is_larger_than_its_bucket_says(most: list[int], sizes: list[int]) -> None:
    shape = tuple(bp.Dim(size, f"d{at}") for at, size in enumerate(most))
    spec = spec_of(Tensor("x", "float32", shape))
    own = np.minimum(sizes[: len(most)], most)
    bucket = int(np.ravel(SizeBuckets(spec).of(own[np.newaxis]))[0])
    bounds = sizes_of_bucket(bucket, most)
    assert all(bounds >= own)
    assert all(np.array(bounds) <= np.maximum(16, 2 * own))
    assert BucketRows.of_stage(spec, 10**6, 64, ()).of(bucket) == max(
        1, min(64, 10**6 // int(np.prod(bounds)))
    )


# -- rows by the length of their bytes ---------------------------------------------------------

TEXT = Tensor("text", "bytes", max_bytes=8192)


def rows_by_length(max_elements: int, lengths: Sequence[int], *others: Tensor) -> list[int]:
    """The most rows of a batch of texts of each length."""
    spec = replace(spec_of(TEXT, *others), sized_by_length=("text",))
    limits = Limits(64, 0, max_elements=max_elements).of_stage(spec)
    buckets = SizeBuckets(spec).of(np.array([[length] for length in lengths]))
    assert limits.bucketed
    return [limits.most_rows(bucket) for bucket in np.ravel(buckets).tolist()]


LENGTHS = (0, 16, 256, 257, 1000, 2048, 8192)


def test_a_batch_of_texts_of_fused_stages_has_sixteen_kib_at_most() -> None:
    assert rows_by_length(0, LENGTHS) == [64, 64, 64, 32, 16, 8, 2]
    picture = Tensor("picture", "uint8", (3, 224, 224))
    assert rows_by_length(0, LENGTHS, picture) == [64, 64, 64, 32, 16, 8, 2], "nothing else counts"


def test_a_configured_budget_counts_eight_bytes_as_an_element() -> None:
    assert rows_by_length(256, LENGTHS) == [64, 64, 8, 4, 2, 1, 1]
    assert rows_by_length(1 << 40, LENGTHS) == [64] * 7
    vector = Tensor("vector", "float32", (64,))
    assert rows_by_length(256, LENGTHS, vector) == [4, 4, 4, 4, 2, 1, 1], "of each input"
