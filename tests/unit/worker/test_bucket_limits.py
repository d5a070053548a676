"""The sizes that a worker reads are those of the batch's bucket, whatever a client writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.core.layout.arena import Arena
from batchpool.core.layout.segments import lane_layout
from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.shm.lane import Lane
from batchpool.worker.bucket_limits import BucketLimits, cut_strings
from tests.unit.core.scheduler.queued import rows_of
from tests.unit.lanes import other_side, segment_of
from tests.unit.specs import model
from tests.unit.worker.worker_bench import Bench

IDS = Tensor("ids", "int64", (Dim(512),), pad=-7)
SPEC = model(Tensor("x", "float32"), IDS, Tensor("boxes", "int16", (Dim(40), 4)))


def bucket_of(spec: ModelSpec, *sizes: int) -> int:
    return int(np.ravel(SizeBuckets(spec).of(np.array([sizes])))[0])


def send(bench: Bench, *sizes: list[int]) -> DispatchedBatch:
    """A batch of a row in lane 1, and one in lane 4 or none, admitted with these sizes."""
    for (number, lane), own in zip(bench.lanes.items(), sizes, strict=False):
        for tensor, size in zip(bench.spec.inputs[1:], own, strict=True):
            row = np.full((1, size, *tensor.max_shape[1:]), number)
            lane.inputs[tensor.name].store(slice(0, 1), row)
    rows = rows_of(len(sizes), bucket=[bucket_of(bench.spec, *own) for own in sizes])
    rows[QueueColumn.LANE] = list(bench.lanes)[: len(sizes)]
    batch = bench.proxy.prepare(rows, DispatchReason.FULL, bench.now_ns, 1)
    bench.proxy.publish(batch)
    return batch


def seen_by(spec: ModelSpec) -> tuple[Bench, list[Any]]:
    seen: list[Any] = []

    def infer(n: int, inputs: dict[str, Array], sizes: dict[str, Array | None]) -> Any:
        seen.append((inputs, sizes))
        return {"y": inputs["x"]}

    return Bench(spec, infer), seen


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
def test_a_row_that_grew_after_its_admission_is_cut_to_its_bucket(others: int) -> None:
    bench, seen = seen_by(SPEC)
    batch = send(bench, *[[20, 3]] * (1 + others))
    bench.lanes[1].input_sizes[0] = 2**32 - 1, 40
    bench.run()
    ((inputs, sizes),) = seen
    assert bench.proxy.finished() == [batch]
    assert inputs["ids"].shape == (1 + others, 32)
    assert inputs["boxes"].shape == (1 + others, 16, 4)
    assert sizes["ids"].tolist() == [[32], [20]][: 1 + others]
    assert sizes["boxes"].tolist() == [[16], [3]][: 1 + others]
    if others:
        assert inputs["ids"][1].tolist() == [4] * 20 + [-7] * 12, "the other row is what it was"


def test_a_row_in_an_arena_that_grew_is_cut_too() -> None:
    bench, seen = seen_by(model(Tensor("x", "float32"), IDS))
    layout = lane_layout(bench.spec, 8, Arena(("ids",), 4 * 512 * 8))
    bench.lanes[1] = Lane(bench.spec, segment_of(layout), layout)
    bench.worker.add_lane(1, 12, other_side(bench.lanes[1]))
    send(bench, [20])
    bench.lanes[1].input_sizes[0] = 512
    bench.run()
    ((inputs, sizes),) = seen
    assert inputs["ids"].shape == (1, 32)
    assert sizes["ids"].tolist() == [[32]]


def test_rows_of_several_buckets_are_read_as_they_are() -> None:
    """The record names no bucket then; no decision makes such a batch, but nothing may be cut."""
    bench, seen = seen_by(SPEC)
    send(bench, [20, 3], [300, 40])
    bench.run()
    ((_, sizes),) = seen
    assert sizes["ids"].tolist() == [[20], [300]]
    assert sizes["boxes"].tolist() == [[3], [40]]


def test_the_limits_of_each_input_by_bucket() -> None:
    limits = BucketLimits(SPEC)
    assert limits.of(0) == {}
    found = limits.of(bucket_of(SPEC, 100, 17))
    assert {name: most.tolist() for name, most in found.items()} == {"ids": [128], "boxes": [32]}
    found = limits.of(bucket_of(SPEC, 500, 40))
    assert {name: most.tolist() for name, most in found.items()} == {"ids": [512], "boxes": [40]}
    assert limits.of(0) == {}


# -- lengths of bytes ----------------------------------------------------------------------------

TEXTS = replace(
    model(Tensor("x", "float32"), IDS, Tensor("text", "bytes", max_bytes=500)),
    sized_by_length=("text",),
)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
def test_a_text_that_grew_after_its_admission_is_cut_to_its_bucket(others: int) -> None:
    bench, seen = seen_by(TEXTS)
    for lane in bench.lanes.values():
        lane.inputs["text"].store(slice(0, 1), np.array([b"a" * 20], object))
        lane.inputs["ids"].store(slice(0, 1), np.zeros((1, 20), np.int64))
    rows = rows_of(1 + others, bucket=bucket_of(TEXTS, 20, 20))
    rows[QueueColumn.LANE] = list(bench.lanes)[: 1 + others]
    bench.proxy.publish(bench.proxy.prepare(rows, DispatchReason.FULL, bench.now_ns, 1))
    bench.lanes[1].inputs["text"].store(slice(0, 1), np.array([b"a" * 500], object))
    bench.run()
    ((inputs, _),) = seen
    assert inputs["text"].tolist() == [b"a" * 32, b"a" * 20][: 1 + others]


def test_the_limits_of_lengths_by_bucket() -> None:
    limits = BucketLimits(TEXTS)
    assert limits.lengths_of(0) == {}
    bucket = bucket_of(TEXTS, 100, 130)
    assert limits.lengths_of(bucket) == {"text": 256}
    assert {name: most.tolist() for name, most in limits.of(bucket).items()} == {"ids": [128]}
    assert BucketLimits(SPEC).lengths_of(bucket_of(SPEC, 100, 17)) == {}


def test_of_several_strings_in_a_row_the_first_bytes_are_left() -> None:
    rows = np.array([[b"aaaa", b"bbb"], [b"", b"cc"]], object)
    assert cut_strings(rows, 5).tolist() == [[b"aaaa", b"b"], [b"", b"cc"]]
    assert cut_strings(rows, 3).tolist() == [[b"aaa", b""], [b"", b"cc"]]
    texts = np.array([b"aaaa", b"b"], object)
    assert cut_strings(texts, 4) is texts
    assert cut_strings(texts, 2).tolist() == [b"aa", b"b"]
