"""Rows of like size ride together: which bucket a row is in, and batches of one bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.scheduler.decide import Limits, WorkerView
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.scheduler.size_buckets import SizeBuckets, most_sizes, sizes_of_bucket
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.unit.core.scheduler.decisions import FAR, NOW, Case, Outcome, mask, waiting
from tests.unit.core.scheduler.queued import MS, names
from tests.unit.core.scheduler.virtual import VirtualPool
from tests.unit.specs import model


def spec_of(*most: int) -> ModelSpec:
    """A model with one input for each of these maxima, and a fixed one."""
    dynamic = [Tensor(f"x{i}", "float32", (3, Dim(max=size))) for i, size in enumerate(most)]
    return model(Tensor("fixed", "float32", (1000,)), *dynamic)


def buckets_of(spec: ModelSpec, sizes: Sequence[Sequence[int]]) -> list[int]:
    found = SizeBuckets(spec).of(np.array(sizes, dtype=np.uint32))
    return [int(bucket) for bucket in np.broadcast_to(found, len(sizes))]


def classes(sizes: Sequence[int], most: int = 1 << 20) -> list[list[int]]:
    """The sizes grouped by bucket, in the order of their smallest."""
    groups: dict[int, list[int]] = {}
    for size, bucket in zip(sizes, buckets_of(spec_of(most), [[s] for s in sizes]), strict=True):
        groups.setdefault(bucket, []).append(size)
    return list(groups.values())


# -- which bucket ---------------------------------------------------------------------------


def test_sizes_up_to_sixteen_share_and_then_those_up_to_the_same_power_of_two() -> None:
    assert classes(range(300)) == [
        [*range(17)],
        [*range(17, 33)],
        [*range(33, 65)],
        [*range(65, 129)],
        [*range(129, 257)],
        [*range(257, 300)],
    ]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_row_is_padded_to_less_than_twice_its_size(a: int, b: int) -> None:
    together = len(classes([a, b], most=2**32 - 1)) == 1
    small, large = sorted([a, b])
    assert together == ((large - 1).bit_length() <= max(4, (small - 1).bit_length()))
    if together and large > 16:
        assert large < 2 * small


def test_what_is_above_the_maximum_counts_as_the_maximum() -> None:
    """A client writes the sizes: no word of it may make a bucket of its own."""
    assert classes([65, 100, 101, 128, 129, 5000, 2**32 - 1], most=100) == [
        [65, 100, 101, 128, 129, 5000, 2**32 - 1]
    ]
    assert classes([20, 2**31], most=30) == [[20, 2**31]]


sizes_of_three = st.lists(st.tuples(*[st.integers(0, 600)] * 3), min_size=2, max_size=6)


@settings(max_examples=100, deadline=None)
@given(sizes_of_three)
def test_rows_ride_together_if_they_do_so_in_every_dimension(
    sizes: list[tuple[int, int, int]],
) -> None:
    together = buckets_of(spec_of(600, 500, 20), sizes)
    alone = [
        buckets_of(spec_of(most), [[row[i]] for row in sizes])
        for i, most in enumerate((600, 500, 20))
    ]
    for a in range(len(sizes)):
        for b in range(len(sizes)):
            alike = all(bucket[a] == bucket[b] for bucket in alone)
            assert (together[a] == together[b]) == alike


def test_several_dynamic_dimensions_of_one_input_count_each() -> None:
    spec = model(Tensor("image", "uint8", (Dim(max=64), 3, Dim(max=512))))
    found = buckets_of(spec, [[17, 17], [32, 30], [17, 33], [33, 17], [60, 40], [33, 33]])
    assert [found.index(bucket) for bucket in found] == [0, 0, 2, 3, 4, 4]


def test_small_and_fixed_models_have_one_bucket() -> None:
    for most, many in (((), False), ((16,), False), ((16, 3), False), ((17,), True)):
        assert SizeBuckets(spec_of(*most)).many is many
    assert buckets_of(spec_of(16, 3), [[1, 1], [16, 3], [99, 99]]) == [0, 0, 0]
    assert buckets_of(spec_of(), [[], []]) == [0, 0]


def test_only_the_first_twelve_dimensions_are_told_apart() -> None:
    """More would have no room in 64 bits: a later one may be of any size in each bucket."""
    most = [4000] * 14
    spec, small = spec_of(*most), [20] * 14
    found = buckets_of(spec, [small, [*[20] * 11, 4000, 20, 20], [*[20] * 12, 4000, 4000]])
    assert found[0] == found[2] != found[1]
    assert sizes_of_bucket(found[0], most) == [32] * 12 + [4000] * 2
    assert sizes_of_bucket(found[1], most) == [32] * 11 + [4000] * 3


def test_the_length_of_bytes_is_a_size_behind_the_dimensions_where_it_is_named() -> None:
    text, pair = (
        Tensor("text", "bytes", max_bytes=8192),
        Tensor("pair", "bytes", (2,), max_bytes=40),
    )
    spec = model(text, Tensor("ids", "int32", (Dim(max=100),)), pair)
    assert most_sizes(spec) == [100]
    assert not SizeBuckets(model(text)).many
    named = replace(spec, sized_by_length=("text", "pair"))
    assert most_sizes(named) == [100, 8192, 80]
    found = buckets_of(named, [[20, 900, 70], [32, 1024, 80], [32, 1025, 70], [20, 900, 20]])
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert sizes_of_bucket(found[0], most_sizes(named)) == [32, 1024, 80]
    assert SizeBuckets(replace(model(text), sized_by_length=("text",))).many


def test_a_bucket_that_tells_no_length_cuts_none() -> None:
    """It is of a time when the same inputs were no sizes."""
    spec = model(Tensor("ids", "int32", (Dim(max=100),)), Tensor("text", "bytes", max_bytes=90))
    (plain,) = buckets_of(spec, [[20]])
    assert sizes_of_bucket(plain, most_sizes(replace(spec, sized_by_length=("text",)))) == [32, 90]


def test_inputs_of_gigabytes_have_buckets_too() -> None:
    spec = model(Tensor("film", "bytes", (8,), max_bytes=2**31), Tensor("x", "bytes", max_bytes=99))
    spec = replace(spec, sized_by_length=("film", "x"))
    sizes = np.array([[2**34, 50], [2**31, 50], [2**30, 50], [2**34, 99]], np.int64)
    found = [int(bucket) for bucket in np.ravel(SizeBuckets(spec).of(sizes))]
    assert found[0] == found[1] != found[2]
    assert found[3] != found[0]
    assert found == [SizeBuckets(spec).of_one(row) for row in sizes.tolist()]
    assert sizes_of_bucket(found[0], most_sizes(spec)) == [2**34, 64], "and nothing is cut"


def test_no_rows() -> None:
    assert buckets_of(spec_of(100), np.empty((0, 1))) == []


# -- batches of them ------------------------------------------------------------------------

LIMITS = Limits(max_batch=4, max_wait_ns=50 * MS, bucketed=True)


def batches(
    bucket: Sequence[int], in_flight: int = 0, limits: Limits = LIMITS, waited_ms: int = 0
) -> list[tuple[str, list[int]]]:
    rows = waiting([NOW - waited_ms * MS] * len(bucket), bucket=bucket)
    o = Outcome(Case(rows, [WorkerView(0, in_flight)], limits))
    return [(d.reason.name, sent) for d, sent in o.batches]


def test_two_buckets_never_meet() -> None:
    """C07: only rows of like size share a call."""
    assert batches([1, 2, 1, 2, 1, 2], waited_ms=50) == [("WAIT", [0, 2, 4])]
    assert batches([1, 2] * 5) == [("FULL", [0, 2, 4, 6]), ("FULL", [1, 3, 5, 7])]


def test_a_full_bucket_does_not_wait_behind_a_row_of_another() -> None:
    assert batches([1, 2, 2, 2, 2]) == [("FULL", [1, 2, 3, 4])]
    assert batches([1, 3, 2, 2, 2, 2], in_flight=1) == [("FULL", [2, 3, 4, 5])]
    assert batches([1, 2, 2, 2, 2], in_flight=2) == []


def test_the_first_in_the_order_goes_first_where_both_are_due() -> None:
    assert batches([1, 2, 2, 2, 2], waited_ms=50)[0] == ("WAIT", [0])
    assert batches([2, 1, 1, 1, 1, 2, 2, 2]) == [("FULL", [0, 5, 6, 7]), ("FULL", [1, 2, 3, 4])]


def test_a_bucket_that_is_due_goes_before_one_that_is_not() -> None:
    rows = waiting([NOW, NOW - 50 * MS, NOW], bucket=[1, 2, 1])
    o = Outcome(Case(rows, [WorkerView(0, 0)], LIMITS))
    assert [(d.reason.name, sent) for d, sent in o.batches] == [("WAIT", [1])]


def test_it_wakes_for_the_bucket_that_is_due_first() -> None:
    rows = waiting([NOW, NOW - 20 * MS, NOW - 30 * MS], bucket=[1, 2, 3])
    o = Outcome(Case(rows, [WorkerView(0, 0)], LIMITS))
    assert (o.batches, o.decision.wake_at_ns) == ([], NOW + 20 * MS)
    busy = Outcome(Case(rows, [WorkerView(0, 1)], LIMITS))
    assert (busy.batches, busy.decision.wake_at_ns) == ([], FAR)


def test_a_model_without_buckets_does_not_look_at_them() -> None:
    assert batches([1, 2, 3, 4], limits=Limits(4, 50 * MS)) == [("FULL", [0, 1, 2, 3])]


def test_buckets_and_lanes() -> None:
    """Full is what this worker may run of one bucket."""
    rows = waiting([NOW] * 9, bucket=[1] * 8 + [2], lane=[0, 1] * 4 + [0])
    o = Outcome(Case(rows, [WorkerView(0, 0, mask(0)), WorkerView(1, 0, mask(1, 2))], LIMITS))
    assert [(d.worker, sent) for d, sent in o.batches] == [(0, [0, 2, 4, 6]), (1, [1, 3, 5, 7])]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_flood_of_one_bucket_starves_no_other(workers: int, adaptive: bool) -> None:
    """C66: there is always a full batch of it to keep every worker busy; an odd-shaped row is
    served in bounded time all the same."""
    limits = Limits(4, 10 * MS, bucketed=True, adaptive=adaptive, max_wait_peak_ns=20 * MS)
    pool = VirtualPool(limits, lambda n: 5 * MS, workers)
    pool.send(0, 4 * 2 * workers * 200, flow=1, bucket=1, timeout_ns=10**12)
    odd = pool.send(33 * MS, 1, flow=2, bucket=2, timeout_ns=10**12)
    pool.run(900 * MS)
    assert len(pool.queue) > 0, "the flood is not over"
    assert odd[0] in pool.done_ns
    assert pool.waited_ms(odd)[0] <= 20 + 4 * 5


def test_mixed_sizes_are_run_by_the_bucket_and_each_row_once() -> None:
    """C07: mixed sizes still form batches."""
    limits = Limits(8, 10 * MS, bucketed=True)
    pool = VirtualPool(limits, lambda n: 3 * MS, workers=2)
    called = [name for i in range(300) for name in pool.send(i * MS, 1, bucket=(i * i) % 3)]
    pool.run(1000 * MS)
    for run in pool.runs:
        assert len(set(run.rows[QueueColumn.BUCKET].tolist())) == 1
    assert sorted(name for run in pool.runs for name in names(run.rows)) == called
    assert len(pool.runs) < len(called) / 3, "a batch a row"
