"""Rows in the arena of a lane: what is written comes back, and no reader is led out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.core.layout.arena import ALIGN, Arena
from batchpool.core.layout.segments import lane_layout
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.shm.arena_column import ArenaColumn
from batchpool.shm.columns import where_of
from batchpool.shm.lane import Lane
from tests.unit.lanes import other_side, segment_of
from tests.unit.specs import model, packed

SLOTS, ARENA_BYTES = 6, 4096
IDS = Tensor("x", "int32", (Dim(9), 2, Dim(3)), pad=-1)
TEXT = Tensor("x", "bytes", max_bytes=40)
PAGES = Tensor("x", "bytes", (2, Dim(3)), max_bytes=20)


def lane_with(tensor: Tensor) -> Lane:
    spec: ModelSpec = model(tensor)
    layout = lane_layout(spec, SLOTS, Arena(("x",), ARENA_BYTES))
    return Lane(spec, segment_of(layout), layout)


def column_of(lane: Lane) -> ArenaColumn:
    (column,) = lane.arena_inputs
    return column


def stored(lane: Lane, slots: list[int], given: Any) -> Rows:
    """Rows in these slots, one run behind the other from the end of the arena on."""
    rows = check_rows(lane.spec, {"x": given})
    column, own = column_of(lane), rows.sizes.get("x")
    at, offsets = ARENA_BYTES, []
    for span in column.spans(rows.tensors["x"], own):
        at -= -(-span // ALIGN) * ALIGN
        offsets.append(at)
    column.place(slots, offsets)
    column.store_rows(where_of(slots), rows.tensors["x"], own)
    return rows


@pytest.mark.parametrize("slots", [[2, 3, 4], [5, 0, 3]])
@pytest.mark.parametrize(
    ("tensor", "given"),
    [
        (IDS, [np.full((k, 2, 3 - k % 2), k + 1, np.int32) for k in (9, 0, 4)]),
        (IDS, np.arange(3 * 5 * 2 * 3, dtype=np.int32).reshape(3, 5, 2, 3)),
        (TEXT, [b"a" * 40, b"", b"\x00b"]),
        (TEXT, packed([b"a" * 40, b"", b"\x00b"])),
        (PAGES, [[[b"1", b"22"], [b"", b"4"]], [[], []], [[b"x" * 20] * 3] * 2]),
    ],
)
def test_what_is_written_comes_back(tensor: Tensor, given: Any, slots: list[int]) -> None:
    lane = lane_with(tensor)
    rows = stored(lane, slots, given)
    column = column_of(other_side(lane))
    found = column.load(where_of(slots))
    assert found.tolist() == rows.tensors["x"].tolist()
    assert column.are_inside(slots)
    for i, slot in enumerate(slots):
        own = column.load(slice(slot, slot + 1))[0]
        whole = rows.tensors["x"][i]
        sizes = rows.sizes.get("x")
        if sizes is not None:
            tail = [slice(None)] * len(tensor.shape)
            for k, dim in enumerate(tensor.dynamic):
                tail[dim] = slice(0, int(sizes[i, k]))
            whole = whole[tuple(tail)]
        assert np.asarray(own, whole.dtype if tensor is not TEXT else object).tolist() == (
            whole if isinstance(whole, bytes) else whole.tolist()
        )


def test_spans_are_what_the_rows_take() -> None:
    column = column_of(lane_with(IDS))
    ragged = check_rows(model(IDS), {"x": [np.zeros((k, 2, 3), np.int32) for k in (1, 5)]})
    assert column.spans(ragged.tensors["x"], ragged.sizes["x"]) == [24, 120]
    assert column.spans(np.zeros((2, 4, 2, 1), np.int32), None) == [32, 32]
    pages = column_of(lane_with(PAGES))
    rows = check_rows(model(PAGES), {"x": [[[b"1", b"22"], [b"", b"4"]]]})
    assert pages.spans(rows.tensors["x"], None) == [4]


def test_one_row_of_numbers_is_a_view_and_several_are_a_copy() -> None:
    lane = lane_with(IDS)
    stored(lane, [0, 1], np.ones((2, 3, 2, 3), np.int32))
    column = column_of(other_side(lane))
    assert np.shares_memory(column.load(slice(0, 1)), column.values)
    assert not np.shares_memory(column.load(slice(0, 2)), column.values)


OFFSETS = [2**64 - 1, 2**63, ARENA_BYTES, ARENA_BYTES - 1, 1, ALIGN - 1]


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("tensor", [IDS, TEXT, PAGES])
def test_no_offset_and_no_length_leads_out_of_the_arena(tensor: Tensor, offset: int) -> None:
    lane = lane_with(tensor)
    column = column_of(lane)
    column.offsets[:] = np.uint64(offset)
    column.sizes[:] = 2**32 - 1
    if column.lengths is not None:
        column.lengths[:] = 2**32 - 1
    column.values[:] = 7
    assert not column.are_inside(range(SLOTS))
    for where in (slice(2, 3), slice(0, SLOTS), np.array([4, 1])):
        found = column.load(where)
        n = len(np.arange(SLOTS)[where])
        assert found.shape == (n, *tensor.max_shape)
        if tensor is IDS:
            assert (found == 0x07070707).all()
            assert found.ctypes.data % 4 == 0
        else:
            assert {*found.reshape(-1).tolist()} == {b"\7" * (tensor.max_bytes or 0)}


def test_what_no_correct_client_writes_is_seen() -> None:
    lane = lane_with(TEXT)
    stored(lane, [0, 1], [b"a" * 40, b"b" * 40])
    column = column_of(lane)
    assert column.lengths is not None
    assert column.are_inside([0, 1])
    column.lengths[1] = 41
    assert column.are_inside([0])
    assert not column.are_inside([0, 1]), "longer than max_bytes"
    column.lengths[1] = 40
    column.offsets[1] = ARENA_BYTES - 39 // ALIGN * ALIGN
    assert not column.are_inside([0, 1]), "it ends behind the arena"
    column.offsets[1] = ALIGN + 1
    assert not column.are_inside([0, 1]), "no run begins there"
    numbers = lane_with(IDS)
    stored(numbers, [3], np.ones((1, 9, 2, 3), np.int32))
    column = column_of(numbers)
    column.offsets[3] = ARENA_BYTES - ALIGN
    assert not column.are_inside([3])
