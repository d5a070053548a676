"""Batches of certain sizes only: what fills them up, and that nobody outside ever sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.model import Batch, Model
from batchpool.worker.backends.backend import host_array
from batchpool.worker.backends.cpu import NumpyBackend, TorchCpuBackend
from batchpool.worker.padding import Padding
from batchpool.worker.warm_up import warm_up_rows
from tests.unit.specs import AFFINE, NUMBERS, model, rows_of, same, tensors
from tests.unit.worker.worker_bench import ROWS, Bench, FakeBackend
from tests.unit.worker.worker_bench import affine as twice_plus_one

MOST = 16  # rows of a bench's two lanes


class Picky(Model):
    """Takes batches of the allowed sizes only and keeps what it saw; `answer` runs them."""

    def __init__(
        self, allowed: Sequence[int], answer: Callable[[Batch], Any], writable: bool = False
    ) -> None:
        self.allowed = allowed
        self.answer = answer
        self.writable = writable  # type: ignore[misc]  # of this instance alone
        self.seen: list[tuple[int, int]] = []

    def infer(self, batch: Batch) -> Any:
        assert batch.n in self.allowed
        self.seen.append((batch.n, batch.rows))
        for name in batch:
            assert len(batch[name]) == batch.n
        for sizes in batch.sizes.values():
            assert len(sizes) == batch.n
        return self.answer(batch)


def default_rows(spec: ModelSpec) -> dict[str, Array]:
    return warm_up_rows(Model(), spec)


def numpy_bench(
    spec: ModelSpec, sizes: Sequence[int], answer: Callable[[Batch], Any], **options: Any
) -> tuple[Bench, Picky]:
    picky = Picky(sizes, answer, **options)
    padding = Padding(spec, sizes, default_rows(spec))
    return Bench(spec, backend=NumpyBackend(picky), padding=padding, max_batch=MOST), picky


def affine(batch: Batch) -> Any:
    return {"y": batch["x"] * np.float32(2) + np.float32(1)}


# -- the sizes --------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 100), min_size=1).map(sorted), st.data())
def test_the_size_is_the_smallest_that_holds_the_rows(sizes: list[int], draw: Any) -> None:
    rows = draw.draw(st.integers(1, sizes[-1]))
    padding = Padding(AFFINE, sizes, default_rows(AFFINE))
    assert padding.size_for(rows) == min(size for size in sizes if size >= rows)


@pytest.mark.parametrize(
    ("sizes", "rows", "n"), [((1, 4), 1, 1), ((1, 4), 3, 4), ((8,), 1, 8), ((3,), 3, 3)]
)
def test_the_model_sees_an_allowed_size_and_how_many_rows_are_real(
    sizes: tuple[int, ...], rows: int, n: int
) -> None:
    bench, picky = numpy_bench(AFFINE, sizes, affine)
    bench.fill(*ROWS)
    bench.send(*ROWS[:rows])
    bench.run()
    assert picky.seen == [(n, rows)]
    assert bench.y(*ROWS[:rows]) == [[25] * 4, [27] * 4, [81] * 4][:rows]
    assert bench.statuses(*ROWS[:rows]) == [(Status.OK, "")] * rows
    assert bench.worker_segment.rows.get() == rows


def test_a_full_batch_stays_a_view_and_a_padded_one_is_gathered_in_an_allocated_array() -> None:
    allocated: list[Array] = []

    def allocate(tensor: Tensor, shape: tuple[int, ...]) -> Array:
        allocated.append(host_array(tensor, shape))
        return allocated[-1]

    padding = Padding(AFFINE, (2, 4), default_rows(AFFINE))
    backend = FakeBackend(twice_plus_one)
    backend.allocate = allocate  # type: ignore[method-assign]
    bench = Bench(padding=padding, backend=backend)
    bench.send((1, 2), (1, 3))
    bench.run()
    _, inputs, views = bench.backend.launched[-1]
    assert views
    assert np.shares_memory(inputs["x"], bench.worker.lanes[1].inputs["x"].values)
    assert allocated == []
    for rows in (((1, 2), (1, 3), (1, 4)), ((1, 2), (1, 4), (1, 6)), ROWS):
        batch = bench.send(*rows)
        bench.run()
        count, inputs, views = bench.backend.launched[-1]
        assert count == 3
        assert inputs["x"] is allocated[-1]
        assert inputs["x"].shape == (4, 4)
        assert not views
        bench.proxy.free(batch)
    assert len(allocated) == 3


# -- any model: the real rows' answers are those without padding --------------------------------


@st.composite
def echoes(draw: st.DrawFn) -> ModelSpec:
    """A model whose outputs are its inputs and its parameter."""
    inputs = (draw(tensors(st.just("x"))), draw(tensors(st.just("ids"))))
    parameter = Tensor("p", draw(st.sampled_from(NUMBERS)))
    return ModelSpec("echo", "numpy", inputs, (*inputs, parameter), (parameter,))


def echo_of(spec: ModelSpec, ragged: bool) -> Callable[[Batch], Any]:
    """ragged: dynamic outputs as lists, each row at its own size, padding at one that fits not."""

    def echo(batch: Batch) -> Any:
        found: dict[str, Any] = {name: np.array(batch[name]) for name in batch}
        for tensor in spec.inputs if ragged else ():
            if not tensor.dynamic:
                continue
            rows = []
            for i in range(batch.rows):
                cut = [slice(None)] * len(tensor.shape)
                for dim, own in zip(tensor.dynamic, batch.sizes[tensor.name][i], strict=True):
                    cut[dim] = slice(0, own)
                rows.append(found[tensor.name][i][tuple(cut)])
            too_large = np.zeros([most + 1 for most in tensor.max_shape], tensor.np_dtype)
            found[tensor.name] = rows + [too_large] * (batch.n - batch.rows)
        return found

    return echo


def wrong_padding(tensor: Tensor, batch: Batch, warm: Array) -> list[str]:
    """Faults in the padding of one input: rows and sizes."""
    array = batch[tensor.name]
    want = np.full((1, *array.shape[1:]), tensor.stored_pad, tensor.np_dtype)
    both = tuple(slice(0, min(a, b)) for a, b in zip(want.shape, warm.shape, strict=True))
    want[both] = warm[both]
    wrong = [
        f"row {i} of {tensor.name}"
        for i in range(batch.rows, batch.n)
        if not same(array[i : i + 1], want)
    ]
    if tensor.dynamic:
        real, rest = np.split(batch.sizes[tensor.name], [batch.rows])
        own = [warm.shape[1 + dim] for dim in tensor.dynamic]
        if (rest != np.minimum(own, real.max(axis=0))).any():
            wrong.append(f"sizes of {tensor.name}")
        if [array.shape[1 + dim] for dim in tensor.dynamic] != real.max(axis=0).tolist():
            wrong.append(f"shape of {tensor.name}")
    return wrong


chosen = st.sets(st.tuples(st.sampled_from([1, 4]), st.integers(0, 7)), min_size=1).map(sorted)
allowed = st.sets(st.integers(1, MOST)).map(lambda sizes: sorted({*sizes, MOST}))


@settings(max_examples=100, deadline=None)
@given(st.data(), echoes(), chosen, allowed, st.booleans(), st.booleans())
def test_answers_are_those_without_padding(
    draw: st.DataObject,
    spec: ModelSpec,
    rows: list[tuple[int, int]],
    sizes: list[int],
    ragged: bool,
    writable: bool,
) -> None:
    declared = (*spec.inputs, *spec.parameters)
    warm = {tensor.name: draw.draw(rows_of(tensor, 1)) for tensor in declared}
    echo = echo_of(spec, ragged)
    wrong: list[str] = []

    def answer(batch: Batch) -> Any:
        found = echo(batch)
        for tensor in declared:
            wrong.extend(wrong_padding(tensor, batch, warm[tensor.name]))
            if writable:
                batch[tensor.name][...] = tensor.stored_pad
        return found

    picky = Picky(sizes, answer, writable)
    padding = Padding(spec, sizes, warm)
    padded = Bench(spec, backend=NumpyBackend(picky), padding=padding, max_batch=MOST)
    plain = Bench(spec, backend=NumpyBackend(Picky(range(MOST + 1), echo)), max_batch=MOST)
    for lane, slot in rows:
        for tensor in declared:
            row = draw.draw(rows_of(tensor, 1))
            for bench in (padded, plain):
                own = bench.lanes[lane]
                columns = own.inputs if tensor in spec.inputs else own.parameters
                columns[tensor.name].store(slice(slot, slot + 1), row)
    for _ in range(2):  # the second time with what the first may have damaged
        for bench in (padded, plain):
            batch = bench.send(*rows)
            bench.run()
            assert bench.statuses(*rows) == [(Status.OK, "")] * len(rows)
            assert bench.outcome(batch) == BatchOutcome.OK
        for lane, slot in rows:
            for tensor in spec.outputs:
                columns = [bench.lanes[lane].outputs[tensor.name] for bench in (padded, plain)]
                found, want = [column.load(slice(slot, slot + 1)) for column in columns]
                assert same(found, want)
    assert wrong == []
    assert picky.seen == [(min(size for size in sizes if size >= len(rows)), len(rows))] * 2


# -- dynamic tensors, text and parameters, by example -------------------------------------------


class Warm(Model):
    def warm_up_row(self) -> dict[str, Any]:
        return {"ids": np.array([7, 8, 9]), "text": b"abc"}


def test_padding_is_the_warm_up_row_cut_to_the_batch() -> None:
    spec = model(
        Tensor("ids", "int64", (Dim(5),), pad=-1),
        Tensor("text", "bytes", (), max_bytes=9),
        parameters=(Tensor("k", "int32", default=5), Tensor("scale", "float64")),
    )
    seen: list[Any] = []

    def answer(batch: Batch) -> Any:
        seen.append({name: batch[name].tolist() for name in batch})
        seen[-1]["sizes"] = batch.sizes["ids"].tolist()
        return {"y": np.zeros(batch.n, np.float32)}

    padding = Padding(spec, (3,), warm_up_rows(Warm(), spec))
    bench = Bench(spec, backend=NumpyBackend(Picky((3,), answer)), padding=padding)
    lane = bench.lanes[1]
    lane.inputs["text"].store(slice(0, 2), np.array([b"x", b""], dtype=object))
    lane.parameters["k"].values[:2] = 1
    lane.parameters["scale"].values[:2] = 2
    lane.inputs["ids"].store(slice(1, 2), np.array([[4]]))
    for first, second in ((0, 2), (5, 0)):
        lane.inputs["ids"].store(slice(0, 1), np.full((1, first), 4))
        bench.send((1, 0), (1, 1))
        bench.run()
        lane.inputs["ids"].store(slice(1, 2), np.full((1, second), 4))
    lane.inputs["ids"].store(slice(0, 1), np.full((1, 0), 4))
    bench.send((1, 0), (1, 1))
    bench.run()
    assert [call["ids"] for call in seen] == [
        [[-1], [4], [7]],
        [[4] * 5, [4, 4, -1, -1, -1], [7, 8, 9, -1, -1]],
        [[], [], []],
    ]
    assert [call["sizes"] for call in seen] == [[[0], [1], [1]], [[5], [2], [3]], [[0], [0], [0]]]
    for call in seen:
        assert call["text"] == [b"x", b"", b"abc"]
        assert call["k"] == [1, 1, 5]
        assert call["scale"] == [2, 2, 0]


# -- what goes wrong ----------------------------------------------------------------------------


def test_a_padding_row_that_fails_concerns_nobody() -> None:
    outputs = (
        Tensor("y", "bytes", (), max_bytes=3),
        Tensor("z", "int64", (Dim(2),)),
        Tensor("w", "bytes", (Dim(2),), max_bytes=3),
    )

    def answer(batch: Batch) -> Any:
        rest = batch.n - batch.rows
        z = [np.zeros(1, np.int64)] * batch.rows + [np.zeros(3, np.float32)] * rest
        w = [["ab"]] * batch.rows + [[3, 3, 3]] * rest
        return {"y": ["ab"] * batch.rows + ["abcd"] * rest, "z": z, "w": w}

    bench, _ = numpy_bench(model(Tensor("x", "float32"), outputs=outputs), (8,), answer)
    batch = bench.send(*ROWS)
    bench.run()
    assert bench.statuses(*ROWS) == [(Status.OK, "")] * 3
    assert bench.outcome(batch) == BatchOutcome.OK
    assert bench.lanes[4].outputs["y"].load(slice(0, 2)).tolist() == [b"ab", b""]


def test_a_real_row_that_fails_fails_alone() -> None:
    spec = model(Tensor("x", "float32"), outputs=(Tensor("y", "bytes", (), max_bytes=3),))
    bench, _ = numpy_bench(spec, (8,), lambda batch: {"y": ["ab", "abcd", *["abc"] * 6]})
    bench.send(*ROWS)
    bench.run()
    text = "output 'y' of this row has 4 bytes; at most 3 fit"
    assert bench.statuses(*ROWS) == [(0, ""), (Status.MODEL_ERROR, text), (0, "")]


def test_a_model_must_answer_the_padding_too() -> None:
    bench, _ = numpy_bench(AFFINE, (8,), lambda batch: {"y": np.zeros((batch.rows, 4), np.float32)})
    batch = bench.send(*ROWS)
    bench.run()
    text = "output 'y' has shape [3, 4]; [8, 4] was expected"
    assert bench.statuses(*ROWS) == [(Status.MODEL_ERROR, text)] * 3
    assert bench.outcome(batch) == BatchOutcome.FAILED


def test_a_model_that_raises_for_a_padded_batch() -> None:
    def answer(batch: Batch) -> Any:
        raise ValueError("no")

    bench, picky = numpy_bench(AFFINE, (8,), answer)
    batch = bench.send(*ROWS)
    bench.run()
    assert bench.statuses(*ROWS) == [(Status.MODEL_ERROR, "ValueError: no")] * 3
    assert bench.outcome(batch) == BatchOutcome.FAILED
    assert bench.lanes[1].status[0] == Status.OK, "rows of nobody else"
    picky.answer = affine
    bench.proxy.free(batch)
    bench.fill((4, 0))
    bench.send((4, 0))
    bench.run()
    assert bench.y((4, 0)) == [[81] * 4]
    assert picky.seen == [(8, 3), (8, 1)]


def test_padding_is_read_only_unless_the_model_may_write() -> None:
    def answer(batch: Batch) -> Any:
        assert batch["x"].flags.writeable == picky.writable
        if picky.writable:
            found = affine(batch)
            batch["x"][...] = 99
            assert (found["y"][batch.rows :] == 1).all(), "padding was damaged"
            return found
        with pytest.raises(ValueError, match="read-only"):
            batch["x"][...] = 99
        return affine(batch)

    for writable in (False, True):
        bench, picky = numpy_bench(AFFINE, (8,), answer, writable=writable)
        bench.fill(*ROWS)
        for _ in range(3):
            batch = bench.send(*ROWS)
            bench.run()
            assert bench.outcome(batch) == BatchOutcome.OK
            assert bench.y(*ROWS) == [[25] * 4, [27] * 4, [81] * 4]
            bench.proxy.free(batch)
        assert picky.seen == [(8, 3)] * 3


# -- torch --------------------------------------------------------------------------------------


def test_a_torch_model_gets_copies_of_its_own_types() -> None:
    torch = pytest.importorskip("torch")
    shapes = {"x": (4,), "half": (2,), "on": ()}
    inputs = tuple(
        Tensor(name, dtype, shapes[name], pad=pad)
        for name, dtype, pad in (("x", "float32", 0), ("half", "bfloat16", 1.5), ("on", "bool", 1))
    )
    spec = ModelSpec("m", "torch", inputs, (*inputs, Tensor("k", "int64")), (Tensor("k", "int64"),))
    padding_seen: list[Any] = []

    def answer(batch: Batch) -> Any:
        assert batch["half"].dtype == torch.bfloat16
        found = {name: batch[name].clone() for name in batch}
        padding_seen.append({name: found[name][batch.rows :].tolist() for name in found})
        for name in batch:
            batch[name].fill_(0)
        return found

    picky = Picky((8,), answer)
    padding = Padding(spec, (8,), default_rows(spec))
    bench = Bench(spec, backend=TorchCpuBackend(picky, spec), padding=padding)
    bench.fill(*ROWS)
    for i, (lane, slot) in enumerate(ROWS):
        bench.lanes[lane].inputs["half"].values[slot] = i
        bench.lanes[lane].parameters["k"].values[slot] = i
    for _ in range(2):
        batch = bench.send(*ROWS)
        bench.run()
        assert bench.statuses(*ROWS) == [(Status.OK, "")] * 3
        for i, (lane, slot) in enumerate(ROWS):
            outputs = bench.lanes[lane].outputs
            assert outputs["x"].values[slot].tolist() == [10 * lane + slot] * 4
            assert outputs["half"].values[slot].tolist() == [i, i]
            assert outputs["k"].values[slot] == i
        bench.proxy.free(batch)
    assert picky.seen == [(8, 3)] * 2
    one = {"x": [[0] * 4] * 5, "half": [[1.5] * 2] * 5, "on": [True] * 5, "k": [0] * 5}
    assert padding_seen == [one] * 2
