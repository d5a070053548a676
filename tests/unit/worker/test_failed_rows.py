"""Rows that the model fails one by one: each alone gets its error, all others their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import DETAILS_BYTES, InvalidInput, ModelError, Status
from batchpool.core.layout.segments import MESSAGE_BYTES
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.metrics.table import BLOCKS
from batchpool.core.metrics.totals import Totals
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.model import Batch, Model
from batchpool.worker.backends.backend import FAILED_ROWS
from batchpool.worker.backends.cpu import NumpyBackend, TorchCpuBackend
from batchpool.worker.metrics import WorkerMetrics
from batchpool.worker.outputs import CheckedOutputs, check_outputs
from batchpool.worker.warm_up import warm_up, warm_up_rows
from tests.unit.specs import AFFINE, model
from tests.unit.worker.worker_bench import ROWS, Bench, affine

BAD = InvalidInput("the middle row is bad", {"offset": 3})
FIXED = Tensor("y", "float32", (2,))
SCALAR = Tensor("y", "float32")
DYNAMIC = Tensor("y", "int64", (Dim(4), 2))
TEXT = Tensor("y", "bytes", (), max_bytes=4)
PAIR = Tensor("y", "bytes", (2,), max_bytes=4)


def check(tensor: Tensor, value: Any, n: int = 3, rows: int | None = None) -> CheckedOutputs:
    spec = model(Tensor("x", "float32"), outputs=(tensor,))
    return check_outputs(spec, {"y": value}, n, {}, rows)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def objects(*values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    ("tensor", "value", "good"),
    [
        (FIXED, [f32(1, 2), BAD, f32(3, 4)], ([1, 2], [3, 4])),
        (FIXED, (f32(1, 2), BAD, f32(3, 4)), ([1, 2], [3, 4])),
        (SCALAR, [np.float32(1), BAD, f32(2)[0]], (1, 2)),
        (DYNAMIC, [np.zeros((0, 2), "i8"), BAD, np.ones((1, 2), "i8")], ([], [[1, 1]])),
        (TEXT, [b"ab", BAD, "cd"], (b"ab", b"cd")),
        (TEXT, objects(b"ab", BAD, b"cd"), (b"ab", b"cd")),
        (PAIR, [[b"a", b"b"], BAD, [b"c", b"d"]], ([b"a", b"b"], [b"c", b"d"])),
        (
            PAIR,
            np.array([[b"a", b"b"], [b"", BAD], [b"c", b"d"]], object),
            ([b"a", b"b"], [b"c", b"d"]),
        ),
    ],
)
def test_a_refusal_in_the_rows_place(tensor: Tensor, value: Any, good: tuple[Any, Any]) -> None:
    checked = check(tensor, value)
    assert checked.refused == {1: BAD}
    assert checked.failed == {}
    rows = checked.outputs["y"]
    first, last = (np.asarray(rows[i]).tolist() for i in (0, 2))
    assert (first, last) == good


def test_the_models_value_is_not_changed() -> None:
    value = [b"ab", BAD]
    check(TEXT, value, 2)
    assert value == [b"ab", BAD]


def test_one_output_is_enough_and_another_may_hold_anything_there() -> None:
    spec = model(Tensor("x", "float32"), outputs=(FIXED, Tensor("z", "bytes", (), max_bytes=4)))
    checked = check_outputs(spec, {"y": [f32(1, 2), None], "z": [b"a", BAD]}, 2, {})
    assert (checked.refused, checked.failed) == ({1: BAD}, {})
    whole = {"y": np.ones((2, 2), np.float32), "z": [b"a", BAD]}
    assert check_outputs(spec, whole, 2, {}).refused == {1: BAD}


def test_a_row_that_is_refused_has_no_other_error_beside() -> None:
    """Its output, which nobody gets, is too long for its slot as well."""
    z = Tensor("z", "bytes", (), max_bytes=4)
    spec = model(Tensor("x", "float32"), outputs=(DYNAMIC, z))
    found = {"y": np.zeros((2, 5, 2), np.int64), "z": [BAD, b"a"]}
    checked = check_outputs(spec, found, 2, {})
    assert (checked.refused, list(checked.failed)) == ({0: BAD}, [1])


def test_any_other_exception_in_the_rows_place_is_the_models_error_for_that_row() -> None:
    checked = check(TEXT, [KeyError("z"), b"a", b"long one"])
    assert checked.refused == {}
    assert checked.failed == {
        0: "KeyError: 'z'",
        2: "output 'y' of this row has 8 bytes; at most 4 fit",
    }


def test_rows_of_padding_may_fail_as_they_like() -> None:
    checked = check(FIXED, [f32(1, 2), BAD, BAD], n=3, rows=1)
    assert (checked.refused, checked.failed) == ({}, {})
    assert np.asarray(checked.outputs["y"]).tolist() == [[1, 2]]


def test_padding_rows_that_the_batch_fails_are_no_rows() -> None:
    spec = model(Tensor("x", "float32"), outputs=(FIXED,))
    found = {"y": np.ones((3, 2), np.float32), FAILED_ROWS: {1: BAD, 2: BAD}}
    checked = check_outputs(spec, found, 3, {}, 1)
    assert (checked.refused, checked.failed) == ({}, {})


@pytest.mark.parametrize("row", [1, 2])
def test_a_list_that_is_too_short_for_the_rows_that_fail_is_told_as_such(row: int) -> None:
    spec = model(Tensor("x", "float32"), outputs=(FIXED,))
    with pytest.raises(ModelError, match="output 'y' has 1 rows; 3 was expected"):
        check_outputs(spec, {"y": [f32(1, 2)], FAILED_ROWS: {row: BAD}}, 3, {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([f32(1, 2)], r"output 'y' has 1 rows; 3 was expected"),
        (
            [f32(1, 2), f32(1), f32(1, 2)],
            r"output 'y' has shape \[1\] in row 1; \[2\] was expected",
        ),
        ([f32(1, 2), None, f32(1, 2)], r"output 'y' is a NoneType; an array or a list of numbers"),
        ([BAD], r"output 'y' has 1 rows; 3 was expected"),
    ],
)
def test_a_list_that_is_wrong_fails_the_batch(value: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        check(FIXED, value)


# -- Batch.fail -------------------------------------------------------------------------------


class Picky(Model):
    """Refuses negative rows by `fail`; 100 is a fault of its own."""

    inputs = AFFINE.inputs
    outputs = AFFINE.outputs

    def infer(self, batch: Batch) -> Any:
        for row in range(batch.n):
            first = float(batch["x"][row][0])
            if first < 0:
                batch.fail(row, InvalidInput(f"{first:g} is negative", {"x": first}))
            elif first == 100:
                batch.fail(row, KeyError("hundred"))
        return {"y": batch["x"] * 2 + 1}


def numpy_backend() -> Any:
    return NumpyBackend(Picky())


def torch_backend() -> Any:
    pytest.importorskip("torch")
    return TorchCpuBackend(Picky(), AFFINE)


@pytest.mark.parametrize("backend", [numpy_backend, torch_backend])
def test_rows_that_the_batch_fails_end_in_one_run_with_their_own_errors(
    backend: Callable[[], Any],
) -> None:
    bench = Bench(backend=backend())
    x = {(1, 2): 5.0, (1, 3): -1.5, (4, 0): 100.0}
    for (lane, slot), value in x.items():
        bench.lanes[lane].inputs["x"].values[slot] = value
    batch = bench.send(*ROWS)
    bench.run()
    assert bench.statuses(*ROWS) == [
        (Status.OK, ""),
        (Status.INVALID_INPUT, "-1.5 is negative"),
        (Status.MODEL_ERROR, "KeyError: 'hundred'"),
    ]
    assert bench.lanes[1].read_details(3) == b'{"x":-1.5}'
    assert bench.y((1, 2)) == [[11] * 4]
    assert bench.outcome(batch) == BatchOutcome.OK, "nothing of it runs again"
    assert bench.worker_segment.refused_of[batch.record] == 1
    assert bench.worker_segment.good.get() == 1


def test_the_count_of_refused_rows_is_of_this_use_of_the_record() -> None:
    bench = Bench(backend=numpy_backend())
    for value, refused in ((-1, 1), (1, 0)):
        bench.lanes[1].inputs["x"].values[2] = value
        batch = bench.send((1, 2))
        bench.run()
        assert bench.worker_segment.refused_of[batch.record] == refused
        assert bench.proxy.finished() == [batch]
        bench.proxy.free(batch)
        bench.proxy.advance()


@pytest.mark.parametrize("row", [-1, 3, 10**9])
def test_a_row_that_the_batch_does_not_have(row: int) -> None:
    with pytest.raises(IndexError, match=rf"row {row}; the batch has the rows 0 to 2"):
        Batch(3, {}).fail(row, BAD)


def test_what_is_no_exception_or_no_number() -> None:
    batch = Batch(3, {})
    with pytest.raises(TypeError, match=r"'bad' is no exception; bp.InvalidInput was expected"):
        batch.fail(0, "bad")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        batch.fail(0.0, BAD)  # type: ignore[arg-type]
    assert batch.failed == {}
    batch.fail(np.int64(2), BAD)  # type: ignore[arg-type]
    assert batch.failed == {2: BAD}


def test_a_warm_up_row_that_is_refused_fails_the_start() -> None:
    class Never(Picky):
        def warm_up_row(self) -> Any:
            return {"x": np.full(4, -1, np.float32)}

    rows = warm_up_rows(Never(), AFFINE)
    with pytest.raises(ModelError, match="refused its own warm-up row: -1 is negative"):
        warm_up(AFFINE, NumpyBackend(Never()), rows, (1,))


# -- raised -----------------------------------------------------------------------------------


def refusing(n: int, inputs: Any, sizes: Any) -> Any:
    raise InvalidInput("not\n such a   row", {"offset": 7})


@pytest.mark.parametrize("raises_in", ["launch", "finish"])
def test_raised_for_a_lone_row_it_ends_that_row_and_the_batch_is_good(raises_in: str) -> None:
    bench = Bench(infer=refusing, raises_in=raises_in)
    batch = bench.send((1, 2))
    bench.run()
    assert bench.statuses((1, 2)) == [(Status.INVALID_INPUT, "not such a row")]
    assert bench.lanes[1].read_details(2) == b'{"offset":7}'
    assert bench.outcome(batch) == BatchOutcome.OK
    assert bench.worker_segment.refused_of[batch.record] == 1


@pytest.mark.parametrize("raises_in", ["launch", "finish"])
def test_raised_for_several_rows_the_batch_is_to_be_split_and_is_no_failure(
    raises_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    bench = Bench(infer=refusing, raises_in=raises_in, run_warm_up_row=lambda: ran.append(1))
    for _ in range(4):
        batch = bench.send(*ROWS)
        bench.run()
        assert bench.outcome(batch) == BatchOutcome.INVALID_INPUT
        text = (
            "the model refused one of 3 rows that ran together, and did not say which: not such"
            " a row"
        )
        assert bench.statuses(*ROWS) == [(Status.MODEL_ERROR, text)] * 3, "if it may not run twice"
        bench.proxy.finished()
        bench.proxy.free(batch)
        bench.proxy.advance()
    assert ran == []
    assert caplog.records == [], "the caller's mistake is no news for the operator"


class Wordless(InvalidInput):
    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text", "details"),
    [
        (InvalidInput("é" * 10**5), "é" * (MESSAGE_BYTES // 2), b""),
        (InvalidInput("a", {"x": "y" * DETAILS_BYTES}), "a", b""),
        (
            InvalidInput("é" * 10**5, {"x": "y" * (DETAILS_BYTES - 8)}),
            "é" * ((MESSAGE_BYTES - 1 - DETAILS_BYTES) // 2),
            b'{"x":"' + b"y" * (DETAILS_BYTES - 8) + b'"}',
        ),
        (InvalidInput('a\x1d{"b":1}\x1e1 2 3'), 'a {"b":1} 1 2 3', b""),
        (Wordless(), "", b""),
    ],
)
def test_texts_and_details_that_do_not_fit_a_slot(
    error: InvalidInput, text: str, details: bytes
) -> None:
    def infer(n: int, inputs: Any, sizes: Any) -> Any:
        raise error

    bench = Bench(infer=infer)
    bench.send((1, 2))
    bench.run()
    assert bench.statuses((1, 2)) == [(Status.INVALID_INPUT, text)]
    assert bench.lanes[1].read_details(2) == details


def test_refused_rows_are_counted_apart() -> None:
    metrics = WorkerMetrics()
    metrics.finish(BatchOutcome.OK, 10, 1, 3)
    totals = Totals()
    totals.add(
        "worker", ("m", "0", "cpu", "infer"), metrics.cells[: BLOCKS["worker"].used].tolist()
    )
    assert totals.values("worker_rows_total", "outcome") == {
        "ok": 6,
        "failed": 1,
        "invalid_input": 3,
    }


def test_a_good_batch_after_a_refused_one() -> None:
    bench = Bench(infer=refusing)
    bench.send((1, 2))
    bench.run()
    bench.backend.infer = affine
    bench.fill((1, 3))
    bench.send((1, 3))
    bench.run()
    assert bench.statuses((1, 3)) == [(Status.OK, "")]
    assert bench.y((1, 3)) == [[27] * 4]
