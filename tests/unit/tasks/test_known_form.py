"""Tasks of a known form: what is made of them unread is what reading gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from batchpool.core.errors import ModelError
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.tasks.known_form import KnownForms
from batchpool.tasks.record import ClaimedTask
from batchpool.tasks.stacking import answer_rows, in_calls, read_task, stacked, wanted_outputs
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest, OutputChoice
from batchpool.wire.task_form import pack_answer, pack_input

SPEC = ModelSpec(
    "m", "numpy",
    (Tensor("x", "float32", (3,)),),
    (Tensor("y", "float32", (2,)), Tensor("z", "int64")),
)  # fmt: skip
IN_BINARY = (OutputChoice("y", True), OutputChoice("z", True))
CODEC = Codec(SPEC)


def task(
    spec: ModelSpec = SPEC, outputs: tuple[OutputChoice, ...] = IN_BINARY, *, n: int = 1,
    seed: int = 0, identifier: str | None = None, **tensors: Any,
) -> ClaimedTask:  # fmt: skip
    """A task of n rows of random numbers, or of these tensors."""
    random = np.random.default_rng(seed)
    given = tensors or {"x": random.random((n, 3), dtype=np.float32)}
    rows = check_rows(spec, given)
    request = InferRequest(identifier, rows, outputs, None, 0, "json")
    packed, answer = pack_input(rows), pack_answer(request)
    return ClaimedTask(f"t_{seed}", spec.name, 1, 0, 0, rows.n, packed, answer, 0, 0)


def forms_after(*tasks: ClaimedTask, spec: ModelSpec = SPEC) -> KnownForms:
    """The forms that are known when these tasks were read."""
    forms = KnownForms(Codec(spec), spec)
    for one in tasks:
        read_task(one, forms)
    return forms


@pytest.mark.parametrize("n", [1, 2, 5])
def test_rows_of_a_known_form_are_those_that_reading_gives(n: int) -> None:
    forms = forms_after(task(n=n))
    tasks = [task(n=n, seed=seed) for seed in range(4)]
    read = [read_task(one, forms) for one in tasks]
    assert [one.form is not None for one in read] == [True] * 4
    unread = [read_task(one, KnownForms(CODEC, SPEC)) for one in tasks]
    assert [one.n for one in read] == [one.n for one in unread] == [n] * 4
    assert {one.key for one in read} == {one.key for one in unread}
    (call,), (other,) = in_calls(read, 99), in_calls(unread, 99)
    found, right = stacked(call, SPEC.inputs), stacked(other, SPEC.inputs)
    assert found.keys() == right.keys() == {"x"}
    np.testing.assert_array_equal(found["x"], right["x"], strict=True)
    assert wanted_outputs(call, SPEC) == wanted_outputs(other, SPEC) == ["y", "z"]
    mixed = stacked([read[0], *unread[1:]], SPEC.inputs)
    np.testing.assert_array_equal(mixed["x"], right["x"], strict=True)


WHOLE = ModelSpec(
    "m", "numpy", (Tensor("x", "float32", (3,)),),
    (Tensor("y", "float32", (2,)), Tensor("z", "int64", (1,))),
)  # fmt: skip


@pytest.mark.parametrize("n", [1, 3])
def test_an_answer_is_that_which_is_written_otherwise(n: int) -> None:
    forms = forms_after(task(WHOLE, n=n), spec=WHOLE)
    read = read_task(task(WHOLE, n=n, seed=1), forms)
    assert read.form is not None
    outputs = {
        "y": list(np.arange(8 * n, dtype=np.float32).reshape(4 * n, 2)[:, ::-1]),
        "z": list(np.arange(4 * n).reshape(4 * n, 1)),
    }
    for first in (0, n, 3 * n):
        found = read.form.answer(outputs, first)
        rows = answer_rows(outputs, WHOLE, first, read)
        assert isinstance(rows, dict)
        headers, body = Codec(WHOLE).encode(read.request, rows)
        assert found is not None
        assert (found.status, list(found.headers), found.body) == (200, headers, body)


def test_rows_that_are_no_such_arrays_are_written_as_any_other() -> None:
    forms = forms_after(task(WHOLE), spec=WHOLE)
    read = read_task(task(WHOLE, seed=1), forms)
    assert read.form is not None
    y, z = np.zeros(2, dtype=np.float32), np.zeros(1, dtype=np.int64)
    assert read.form.answer({"y": [y], "z": [z]}, 0) is not None
    for wrong in (ModelError("no"), y.astype(np.float64), y[:1], y[None], 1.0):
        assert read.form.answer({"y": [wrong], "z": [z]}, 0) is None


@pytest.mark.parametrize(
    "outputs",
    [(OutputChoice("y", False), OutputChoice("z", False)), IN_BINARY[:1], IN_BINARY[::-1]],
)
def test_other_outputs_have_no_head_in_common(outputs: tuple[OutputChoice, ...]) -> None:
    forms = forms_after(task(WHOLE, outputs), spec=WHOLE)
    read = read_task(task(WHOLE, outputs, seed=1), forms)
    assert read.form is not None
    assert read.outputs == outputs
    arrays = {"y": [np.zeros(2, np.float32)], "z": [np.zeros(1, np.int64)]}
    assert read.form.answer(arrays, 0) is None


@pytest.mark.parametrize(
    "other",
    [
        task(n=2),
        task(outputs=IN_BINARY[:1]),
        task(identifier="mine"),
        structs.replace(task(), input=task().input[:-1] + b"\x81"),
        structs.replace(task(), input=b"\x84" + task().input[1:]),
    ],
)
def test_what_differs_in_more_than_its_tensor_is_read(other: ClaimedTask) -> None:
    assert forms_after(task()).find(other) is None


def test_forms_are_of_one_tensor_of_a_fixed_size_and_without_parameters() -> None:
    two = ModelSpec(
        "m", "numpy", (Tensor("x", "float32", (3,)), Tensor("w", "float32")),
        SPEC.outputs, (Tensor("scale", "float32", default=1.0),),
    )  # fmt: skip
    x = np.zeros((1, 3), np.float32)
    plain = ModelSpec("m", "numpy", SPEC.inputs, SPEC.outputs, two.parameters)
    ragged = ModelSpec("m", "numpy", (Tensor("x", "float32", (Dim(4),), pad=0),), SPEC.outputs)
    texts = ModelSpec("m", "numpy", (Tensor("x", "bytes", (), max_bytes=9),), SPEC.outputs)
    for spec, tensors in (
        (two, {"x": x, "w": np.zeros(1, np.float32)}),
        (plain, {"x": x}),
        (ragged, {"x": [[1.0, 2.0], [3.0]]}),
        (texts, {"x": [b"abc"]}),
    ):
        one = task(spec, **tensors)
        assert forms_after(one, spec=spec).find(one) is None


def test_as_many_forms_are_known_as_there_is_room_for() -> None:
    forms = KnownForms(CODEC, SPEC)
    for n in range(1, 200):
        one = task(n=n)
        read_task(one, forms)
        assert forms.find(one) is not None
    assert forms.find(task(n=1)) is None


def test_a_task_that_asks_for_what_the_model_has_not_is_no_example() -> None:
    one = task(outputs=(OutputChoice("gone", True),))
    assert forms_after(one).find(one) is None
