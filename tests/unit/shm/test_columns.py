"""Rows written into slots come back bit for bit, whatever the slots held before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.layout.segments import lane_layout
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.shm.columns import TensorColumn, Where, pad_rows, where_of
from batchpool.shm.lane_columns import tensor_columns
from tests.unit.lanes import segment_of
from tests.unit.specs import MIXED, model, packed, rows_of, same, tensors

SLOTS = 7


def column_of(tensor: Tensor, dirty: int = 0) -> TensorColumn:
    """An input's column on real memory whose every byte is `dirty`: other uses' leavings."""
    layout = lane_layout(model(tensor), SLOTS)
    memory = segment_of(layout)
    for name in ("in.x", "len.in.x", "size.in"):
        if name in layout.columns:
            place = layout.columns[name]
            memory.map[place.offset : place.offset + place.nbytes] = bytes([dirty]) * place.nbytes
    return tensor_columns(memory, layout, "in", (tensor,))["x"]


places = st.lists(st.integers(0, SLOTS - 1), unique=True, min_size=1)
wheres = places.map(where_of) | places.map(lambda slots: np.array(slots, dtype=np.uint32))
x_tensors = tensors(st.just("x"))


def count(where: Where) -> int:
    return where.stop - where.start if isinstance(where, slice) else len(where)


@settings(max_examples=200, deadline=None)
@given(st.data(), x_tensors, wheres, st.sampled_from([0, 0x5A, 0xFF]))
def test_rows_of_one_size_come_back(
    draw: st.DataObject, tensor: Tensor, where: Where, dirty: int
) -> None:
    column = column_of(tensor, dirty)
    rows = draw.draw(rows_of(tensor, count(where)))
    column.store(where, rows)
    assert same(column.load(where), rows)
    sizes = column.sizes_of(where)
    if not tensor.dynamic:
        assert sizes is None
    else:
        assert sizes is not None
        assert sizes.tolist() == [[rows.shape[1 + d] for d in tensor.dynamic]] * len(rows)


@settings(max_examples=200, deadline=None)
@given(st.data(), x_tensors, places, st.sampled_from([0, 0x5A, 0xFF]))
def test_rows_of_different_sizes_are_cut_to_the_largest_and_padded(
    draw: st.DataObject, tensor: Tensor, slots: list[int], dirty: int
) -> None:
    column = column_of(tensor, dirty)
    each = [draw.draw(rows_of(tensor, 1))[0] for _ in slots]
    rows = [np.asarray(row, dtype=tensor.np_dtype) for row in each]
    column.store_ragged(slots, rows)
    found = column.load(where_of(slots))
    largest = np.max([row.shape for row in rows], axis=0).astype(int).tolist()
    assert found.shape == (len(slots), *largest)
    want = np.full(found.shape, tensor.stored_pad, dtype=tensor.np_dtype)
    for i, row in enumerate(rows):
        want[(i, *(slice(0, m) for m in row.shape))] = row if row.ndim else row[()]
    assert same(found, want)
    # Each row alone has its own size, without padding.
    for slot, row in zip(slots, rows, strict=True):
        assert same(column.load(slice(slot, slot + 1))[0:1], row[np.newaxis])


@settings(max_examples=50, deadline=None)
@given(st.data(), x_tensors, st.lists(wheres, min_size=2, max_size=4))
def test_a_store_touches_no_other_slot(
    draw: st.DataObject, tensor: Tensor, wheres: list[Where]
) -> None:
    column = column_of(tensor, 0x33)
    want: dict[int, Any] = {}
    for where in wheres:
        rows = draw.draw(rows_of(tensor, count(where)))
        column.store(where, rows)
        for i, slot in enumerate(np.arange(SLOTS)[where].tolist()):
            want[slot] = rows[i : i + 1]
    for slot, row in want.items():
        assert same(column.load(slice(slot, slot + 1)), row)
    for slot in set(range(SLOTS)) - want.keys():
        raw = column.values[slot : slot + 1].reshape(-1).view(np.uint8)
        assert (raw == 0x33).all()


@settings(max_examples=200, deadline=None)
@given(st.data(), wheres, st.sampled_from([0, 0x5A, 0xFF]), st.sampled_from([3, 600, 5000]))
def test_strings_of_a_buffer_come_back_and_touch_no_other_slot(
    draw: st.DataObject, where: Where, dirty: int, most: int
) -> None:
    """Short and long ones, alone and side by side, at the beginning and at the end of a buffer."""
    column = column_of(Tensor("x", "bytes", (), max_bytes=most), dirty)
    lengths = st.one_of(st.integers(0, min(most, 20)), st.integers(0, most), st.just(most))
    n = count(where)
    each = draw.draw(st.lists(lengths, min_size=n, max_size=n))
    strings = [bytes([65 + at]) * length for at, length in enumerate(each)]
    behind = b"#" * draw.draw(st.sampled_from([0, 1, most, 2 * most]))
    column.store(where, packed(strings, b"!" * draw.draw(st.integers(0, 3)), behind))
    assert column.load(where).tolist() == strings
    slots = np.arange(SLOTS)[where]
    others = np.delete(column.values, slots, axis=0)
    assert (others == dirty).all()


def test_a_string_of_a_buffer_that_is_too_long_is_written_nowhere() -> None:
    column = column_of(Tensor("x", "bytes", (), max_bytes=3), 0x33)
    with pytest.raises(ValueError, match="a byte string of 4 bytes came; at most 3 fit"):
        column.store(slice(0, 2), packed([b"a", b"long"], behind=b"#####"))
    assert (column.values == 0x33).all()


# -- views and copies -----------------------------------------------------------------------


def test_neighbours_of_a_fixed_tensor_are_a_view_and_all_else_a_copy() -> None:
    fixed = column_of(Tensor("x", "float32", (4,)))
    assert np.shares_memory(fixed.load(slice(2, 5)), fixed.values)
    assert not np.shares_memory(fixed.load(np.array([4, 2])), fixed.values)
    dynamic = column_of(Tensor("x", "float32", (Dim(4),)))
    dynamic.store(slice(2, 5), np.ones((3, 4), np.float32))
    assert not np.shares_memory(dynamic.load(slice(2, 5)), dynamic.values)


@pytest.mark.parametrize("where", [slice(2, 5), np.array([6, 0, 3], dtype=np.uint32)])
@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("x", "float32", (2, 3)),
        Tensor("x", "uint8", ()),
        Tensor("x", "bfloat16", (4,)),
        Tensor("x", "int64", (0,)),
    ],
)
def test_bytes_of_rows_are_stored_as_they_are_and_given_back(tensor: Tensor, where: Where) -> None:
    rows = np.random.default_rng(5).integers(0, 256, 3 * tensor.row_bytes, dtype=np.uint8)
    column, same_by_value = column_of(tensor, 0x5A), column_of(tensor, 0x5A)
    body = b"a head of odd length." + rows.tobytes()  # so that the numbers are not aligned
    column.store(where, memoryview(body)[21:])
    array = rows.view(tensor.np_dtype).reshape(3, *tensor.max_shape)
    same_by_value.store(where, array)
    assert column.values.tobytes() == same_by_value.values.tobytes()
    assert b"".join([column.octets_of(where)]) == rows.tobytes()


def test_a_tensor_of_other_rows_has_no_bytes_of_rows() -> None:
    for tensor in (Tensor("x", "bytes", (2,), max_bytes=4), Tensor("x", "int32", (Dim(4),))):
        column = column_of(tensor)
        assert (column.octets, column.row_bytes) == (None, 0)


def test_big_endian_rows_are_stored_by_value() -> None:
    column = column_of(Tensor("x", "float32", (4,)))
    column.store(slice(0, 1), np.arange(4, dtype=">f4")[np.newaxis])
    assert column.load(slice(0, 1)).tolist() == [[0, 1, 2, 3]]


# -- what the other side wrote --------------------------------------------------------------


def test_sizes_are_clipped_to_the_column() -> None:
    """A size that no right client writes leads nobody out of the column."""
    column = column_of(Tensor("x", "int16", (Dim(3), Dim(2))), dirty=1)
    column.sizes[0:2] = (2**32 - 1, 1)
    column.sizes[1] = (3, 2**31)
    sizes = column.sizes_of(slice(0, 2))
    assert sizes is not None
    assert sizes.tolist() == [[3, 1], [3, 2]]
    assert column.load(slice(0, 2)).shape == (2, 3, 2)


def test_lengths_are_clipped_to_max_bytes() -> None:
    column = column_of(Tensor("x", "bytes", (Dim(2),), max_bytes=3), dirty=ord("a"))
    assert column.lengths is not None
    column.sizes[0] = 2**32 - 1
    column.lengths[0] = (2**32 - 1, 1)
    assert column.load(slice(0, 1)).tolist() == [[b"aaa", b"a"]]


def test_a_length_beyond_max_bytes_reads_no_other_slot() -> None:
    column = column_of(Tensor("x", "bytes", (), max_bytes=3))
    assert column.lengths is not None
    column.store(slice(0, 3), np.array([b"abc", b"d", b"efg"], object))
    column.lengths[:3] = (2**32 - 1, 3, 2)
    assert column.load(slice(0, 2)).tolist() == [b"abc", b"d\0\0"]
    assert column.load(np.array([2, 0])).tolist() == [b"ef", b"abc"]


def test_a_text_that_is_too_long_is_written_into_no_slot() -> None:
    column = column_of(Tensor("x", "bytes", (), max_bytes=3), dirty=ord("a"))
    with pytest.raises(ValueError, match="4 bytes came; at most 3 fit"):
        column.store(slice(0, 2), np.array([b"b", b"cccc"], object))
    assert (column.values == ord("a")).all()


def test_sizes_taken_once_are_the_ones_that_count() -> None:
    """Whoever read and clipped the sizes is not misled by a client that changes them after."""
    column = column_of(Tensor("x", "int16", (Dim(4),)))
    column.store(slice(0, 1), np.array([[1, 2]], dtype=np.int16))
    sizes = column.sizes_of(slice(0, 1))
    column.sizes[0] = 4
    assert column.load(slice(0, 1), sizes=sizes).tolist() == [[1, 2]]


def test_shorter_text_leaves_nothing_of_the_longer_one_before_it() -> None:
    column = column_of(Tensor("x", "bytes", (), max_bytes=8))
    for text in (b"secret!!", b"", b"ab", b"a\0", b"12345678"):
        column.store(slice(3, 4), np.array([text], dtype=object))
        assert column.load(slice(3, 4)).tolist() == [text]


def test_stale_numbers_beyond_a_rows_size_are_padded_over() -> None:
    column = column_of(Tensor("x", "int64", (Dim(4),), pad=-1))
    column.store(slice(0, 2), np.full((2, 4), 99))
    column.store_ragged([0, 1], [np.array([1]), np.array([1, 2, 3])])
    assert column.load(slice(0, 2)).tolist() == [[1, -1, -1], [1, 2, 3]]


def test_a_bfloat16_is_padded_with_its_bits() -> None:
    column = column_of(Tensor("x", "bfloat16", (Dim(2),), pad=1))
    column.store_ragged([0, 1], [np.array([7], np.uint16), np.array([8, 9], np.uint16)])
    assert column.load(slice(0, 2)).tolist() == [[7, 0x3F80], [8, 9]]


# -- small parts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ([4], slice(4, 5)),
        ([4, 5], slice(4, 6)),
        ([0, 1, 2, 3], slice(0, 4)),
        (range(3, 6), slice(3, 6)),
        ((2,), slice(2, 3)),
        ([5, 4], None),
        ([4, 6], None),
        ([4, 6, 5, 7], None),  # the ends fit, the middle does not
        ([4, 4, 6], None),
        ([2, 1, 4], None),
        (list(range(3, 103)), slice(3, 103)),
        ([*range(50), 51, 50, *range(52, 100)], None),
        ([*range(20), 21, 20, *range(22, 64)], None),
        ([0, 2], None),
    ],
)
def test_neighbours_in_rising_order_are_a_slice(slots: Any, expected: slice | None) -> None:
    for given_as in (slots, np.array(slots, dtype=np.uint32), np.array(slots, dtype=np.int64)):
        found = where_of(given_as)
        if expected is not None:
            assert found == expected
        else:
            assert isinstance(found, np.ndarray)
            assert found.tolist() == list(slots)


def test_pad_rows_by_each_dimension() -> None:
    rows = np.arange(12).reshape(2, 2, 3)
    pad_rows(rows, np.array([[1, 2], [2, 1]]), [0, 1], -1)
    assert rows.tolist() == [[[0, 1, -1], [-1, -1, -1]], [[6, -1, -1], [9, -1, -1]]]


def test_every_road_of_a_lane_has_its_columns() -> None:
    layout = lane_layout(MIXED, SLOTS)
    memory = segment_of(layout)
    roads: list[tuple[Any, tuple[Tensor, ...]]] = [
        ("in", MIXED.inputs),
        ("out", MIXED.outputs),
        ("par", MIXED.parameters),
    ]
    addresses = set()
    for road, declared in roads:
        columns = tensor_columns(memory, layout, road, declared)
        assert list(columns) == [t.name for t in declared]
        for tensor in declared:
            column = columns[tensor.name]
            assert column.tensor == tensor
            assert (column.lengths is not None) == tensor.is_bytes
            addresses.add(column.values.__array_interface__["data"][0])
    assert len(addresses) == 8


def test_an_input_may_be_named_like_a_part_of_the_layout() -> None:
    spec = ModelSpec(
        "m",
        "numpy",
        (Tensor("size", "bytes", (Dim(2),), max_bytes=2), Tensor("size.len", "int8")),
        (Tensor("size", "int8"),),
    )
    layout = lane_layout(spec, 2)
    columns = tensor_columns(segment_of(layout), layout, "in", spec.inputs)
    rows = np.array([[b"ab", b"c"]], dtype=object)
    columns["size"].store(slice(0, 1), rows)
    columns["size.len"].store(slice(0, 1), np.array([5], dtype=np.int8))
    assert columns["size"].load(slice(0, 1)).tolist() == rows.tolist()
    assert columns["size.len"].load(slice(0, 1)).tolist() == [5]
