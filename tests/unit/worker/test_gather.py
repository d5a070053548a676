"""A batch's rows out of several lanes and back into them, in batch order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.shm.lane import Lane
from batchpool.worker.backends.backend import BatchPart
from batchpool.worker.gather import count_extents, load_input, parts_of, store_output
from tests.unit.lanes import new_lane
from tests.unit.specs import model, rows_of, same, tensors

SLOTS = 8
MARK: tuple[Any, Any] = (1, b"mark")  # of a number, of bytes


def parts(lanes: dict[int, Lane], *rows: tuple[int, int]) -> list[BatchPart]:
    numbers = np.array([lane for lane, _ in rows], dtype=np.uint32)
    slots = np.array([slot for _, slot in rows], dtype=np.uint32)
    return parts_of(lanes, numbers, slots)


def three_lanes(spec: ModelSpec) -> dict[int, Lane]:
    return {number: new_lane(spec, SLOTS) for number in (0, 2, 5)}


SPEC = model(Tensor("x", "int32"), outputs=(Tensor("y", "int32"),))


@pytest.fixture(params=[0, 16], ids=["as arrays", "as numbers"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to so many rows are looked at as plain numbers."""
    monkeypatch.setattr("batchpool.worker.gather.FEW_ROWS", request.param)
    monkeypatch.setattr("batchpool.worker.backends.backend.FEW_ROWS", request.param)


@pytest.mark.usefixtures("few")
def test_one_part_a_lane() -> None:
    lanes = three_lanes(SPEC)
    found = parts(lanes, (0, 1), (0, 2), (2, 7), (5, 0), (5, 3), (5, 4))
    assert [part.lane for part in found] == [lanes[0], lanes[2], lanes[5]]
    assert [(part.start, part.stop) for part in found] == [(0, 2), (2, 3), (3, 6)]
    assert [part.slots.tolist() for part in found] == [[1, 2], [7], [0, 3, 4]]
    assert found[0].where == slice(1, 3)
    assert found[1].where == slice(7, 8)
    assert isinstance(found[2].where, np.ndarray)


def test_a_lane_that_is_not_mapped_here() -> None:
    with pytest.raises(KeyError):
        parts(three_lanes(SPEC), (0, 1), (1, 1))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("rows", "extents"),
    [
        ([(0, 3)], 1),
        ([(0, 3), (0, 4), (0, 5)], 1),
        ([(0, 3), (0, 5)], 2),
        ([(0, 0), (0, 1), (0, 3), (0, 4), (0, 7)], 3),
        ([(0, 0), (2, 1)], 2),  # neighbours by number, but of two lanes
        ([(0, 0), (0, 1), (2, 1), (2, 3), (5, 5), (5, 6)], 4),
    ],
)
def test_extents_are_runs_of_neighbours(rows: list[tuple[int, int]], extents: int) -> None:
    assert count_extents(parts(three_lanes(SPEC), *rows)) == extents


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("slots", [(4, 3, 2), (2, 4, 3, 5), (2, 2), (2, 4)])
def test_slots_that_are_no_neighbours_in_rising_order_are_told_one_by_one(
    slots: tuple[int, ...],
) -> None:
    found, _ = parts(three_lanes(SPEC), *((0, slot) for slot in slots), (2, 1))
    assert isinstance(found.where, np.ndarray)
    assert found.where.tolist() == list(slots)


TEXT = model(Tensor("x", "bytes", max_bytes=9), outputs=(Tensor("y", "int32"),))


def test_texts_of_several_lanes_come_in_the_order_of_the_batch() -> None:
    lanes = three_lanes(TEXT)
    for number, lane in lanes.items():
        texts = [b"%d of %d" % (slot, number) for slot in range(SLOTS)]
        lane.inputs["x"].store(slice(0, SLOTS), np.array(texts, object))
    lanes[2].inputs["x"].store(slice(3, 4), np.array([b""], object))
    found, sizes = load_input(parts(lanes, (0, 1), (0, 2), (2, 3), (5, 6), (5, 4)), "x")
    assert sizes is None
    assert found.dtype == object
    assert found.tolist() == [b"1 of 0", b"2 of 0", b"", b"6 of 5", b"4 of 5"]


def test_a_batch_of_one_extent_is_a_view_of_the_lane() -> None:
    lanes = three_lanes(SPEC)
    values = lanes[2].inputs["x"].values
    one, sizes = load_input(parts(lanes, (2, 3), (2, 4)), "x")
    assert np.shares_memory(one, values)
    assert sizes is None
    for rows in ([(2, 3), (2, 5)], [(2, 3), (5, 4)]):
        many, _ = load_input(parts(lanes, *rows), "x")
        assert not np.shares_memory(many, values)


chosen = st.sets(st.tuples(st.sampled_from([0, 2, 5]), st.integers(0, SLOTS - 1)), min_size=1)


@settings(max_examples=150, deadline=None)
@given(st.data(), tensors(st.just("x")), chosen.map(sorted))
def test_any_input_of_any_batch(
    draw: st.DataObject, tensor: Tensor, rows: list[tuple[int, int]]
) -> None:
    lanes = three_lanes(model(tensor))
    for each in lanes.values() if not tensor.is_bytes else ():
        each.inputs["x"].values[...] = MARK[False]  # of earlier rows
    stored = []
    for lane, slot in rows:
        row = draw.draw(rows_of(tensor, 1))
        lanes[lane].inputs["x"].store(slice(slot, slot + 1), row)
        stored.append(row[0])
    found, sizes = load_input(parts(lanes, *rows), "x")
    allocated: list[Array] = []

    def allocate(shape: tuple[int, ...]) -> Array:
        allocated.append(
            np.full((len(rows) + 2, *shape), MARK[tensor.is_bytes]).astype(tensor.np_dtype)
        )
        return allocated[-1]

    padded, padded_sizes = load_input(parts(lanes, *rows), "x", allocate=allocate)
    assert padded is allocated[0]
    assert same(padded[: len(rows)], found)
    assert (padded[len(rows) :] == np.asarray(MARK[tensor.is_bytes]).astype(tensor.np_dtype)).all()
    assert np.array_equal(padded_sizes, sizes)
    shapes = [np.shape(row) for row in stored]
    want = np.full((len(rows), *np.max(shapes, axis=0).astype(int)), tensor.stored_pad, found.dtype)
    for i, row in enumerate(stored):
        want[(i, *(slice(0, m) for m in shapes[i]))] = row
    assert same(found, want)
    if tensor.dynamic:
        assert sizes is not None
        assert sizes.tolist() == [[shape[d] for d in tensor.dynamic] for shape in shapes]
    else:
        assert sizes is None


@settings(max_examples=100, deadline=None)
@given(st.data(), tensors(st.just("y")), chosen.map(sorted), st.booleans())
def test_any_output_of_any_batch(
    draw: st.DataObject, tensor: Tensor, rows: list[tuple[int, int]], ragged: bool
) -> None:
    spec = model(Tensor("x", "int8"), outputs=(tensor,))
    lanes = three_lanes(spec)
    if ragged and tensor.dynamic:
        answers = [draw.draw(rows_of(tensor, 1))[0] for _ in rows]
        store_output(parts(lanes, *rows), "y", answers)
    else:
        together = draw.draw(rows_of(tensor, len(rows)))
        store_output(parts(lanes, *rows), "y", together)
        answers = list(together)
    for (lane, slot), answer in zip(rows, answers, strict=True):
        found = lanes[lane].outputs["y"].load(slice(slot, slot + 1))
        assert same(found[0:1], np.asarray(answer, dtype=tensor.np_dtype)[np.newaxis])


def test_parameters_are_gathered_like_inputs() -> None:
    spec = model(Tensor("x", "int32"), parameters=(Tensor("k", "int64"),))
    lanes = three_lanes(spec)
    for number, lane in lanes.items():
        lane.parameters["k"].values[:] = 100 * number + np.arange(SLOTS)
    for rows, want in (
        ([(0, 1), (0, 2)], [1, 2]),
        ([(0, 1), (2, 3), (5, 0), (5, 7)], [1, 203, 500, 507]),
    ):
        found, sizes = load_input(parts(lanes, *rows), "k", parameter=True)
        assert found.tolist() == want
        assert sizes is None


def test_every_row_of_every_lane_is_padded_to_the_largest_of_the_batch() -> None:
    """C07: padding is explicit, to the largest."""
    tensor = Tensor("x", "int16", (Dim(4), Dim(3)), pad=-1)
    lanes = three_lanes(model(tensor))
    for lane in lanes.values():
        lane.inputs["x"].values[:] = 99  # what other requests left there
    small, wide = np.full((1, 2, 1), 1, np.int16), np.full((1, 1, 3), 2, np.int16)
    lanes[0].inputs["x"].store(slice(4, 5), small)
    lanes[5].inputs["x"].store(slice(6, 7), wide)
    found, sizes = load_input(parts(lanes, (0, 4), (5, 6)), "x")
    assert found.tolist() == [[[1, -1, -1], [1, -1, -1]], [[2, 2, 2], [-1, -1, -1]]]
    assert sizes is not None
    assert sizes.tolist() == [[2, 1], [1, 3]]
