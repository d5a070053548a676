"""The size buckets of rows by what their stage reads of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.batcher.stage_buckets import StageBuckets
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage, stage_spec
from tests.unit.lanes import new_lane

SPEC = ModelSpec(
    "sized",
    "numpy",
    (Tensor("unread", "int64", (Dim(64),)), Tensor("kept", "int64", (Dim(64), Dim(32)))),
    (Tensor("y", "int64"),),
    (),
    (Tensor("ids", "int64", (Dim(64),)),),
    ("kept",),
)
SIZES = [(64, 3, 30, 60), (1, 40, 2, 7), (9, 40, 30, 7)]  # of unread, kept, kept, ids


@pytest.mark.parametrize("few", [True, False])
def test_a_row_is_in_the_bucket_of_all_that_its_stage_reads(few: bool) -> None:
    lane = new_lane(SPEC, 16)
    slots = [3, 7, 8]
    for slot, (unread, *kept, ids) in zip(slots, SIZES, strict=True):
        lane.memory.array(lane.layout.columns["size.in"])[slot] = [unread, *kept]
        lane.memory.array(lane.layout.columns["size.feat"])[slot] = [ids]
    found: Any = StageBuckets(lane, Stage.INFER).of(np.array(slots), few=few)
    one_by_one = SizeBuckets(stage_spec(SPEC, Stage.INFER))
    assert [*found] == [one_by_one.of_one(sizes[1:]) for sizes in SIZES]
    assert len({*found}) == 3
