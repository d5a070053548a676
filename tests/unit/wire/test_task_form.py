"""The input and the answer's form of a task as bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.tensors.rows import Rows
from batchpool.wire.request import InferRequest, OutputChoice, PlainAnswer
from batchpool.wire.task_form import (
    input_json,
    pack_answer,
    pack_input,
    unpack_answer,
    unpack_input,
)
from tests.unit.specs import rows_of, same, specs


@given(st.data())
def test_rows_come_back_as_they_were(data: st.DataObject) -> None:
    spec, n = data.draw(specs()), data.draw(st.integers(1, 4))
    tensors = {tensor.name: data.draw(rows_of(tensor, n)) for tensor in spec.inputs}
    found = unpack_input(pack_input(Rows(n, tensors, {"p": np.float64(1.5), "t": "x"})))
    assert found.n == n
    assert found.tensors.keys() == tensors.keys()
    assert all(same(found.tensors[name], array) for name, array in tensors.items())
    assert found.parameters == {"p": 1.5, "t": "x"}
    assert found.sizes == {}


def test_rows_of_different_sizes_keep_their_sizes() -> None:
    sizes = {"x": np.array([[1], [2]], dtype=np.int64)}
    rows = Rows(2, {"x": np.zeros((2, 2), np.float32)}, {}, sizes)
    found = unpack_input(pack_input(rows))
    assert np.array_equal(found.sizes["x"], sizes["x"])


def test_all_that_decides_how_an_answer_is_written_comes_back() -> None:
    rows = Rows(1, {"x": np.zeros(1)}, {})
    for plain in (None, PlainAnswer("predictions", by_row=True)):
        choices = (OutputChoice("y", True), OutputChoice("z", False, 3))
        request = InferRequest("an id", rows, choices, 5, 7, "plain", plain)
        found = unpack_answer(pack_answer(request), rows)
        assert (found.id, found.outputs, found.form, found.plain) == (
            "an id", choices, "plain", plain
        )  # fmt: skip


def test_an_input_is_shown_to_people() -> None:
    texts = np.array([b"a", b"base64:/w==", b"\xff"], dtype=object)
    rows = Rows(3, {"x": np.array([[1, 2], [3, 4], [5, 6]]), "t": texts}, {"p": 1})
    assert input_json(pack_input(rows)) == {
        "rows": 3,
        "inputs": {
            "x": {"shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]},
            "t": {"shape": [3], "data": ["a", "base64:/w==", {"b64": "/w=="}]},
        },
        "parameters": {"p": 1},
    }
