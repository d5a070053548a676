"""The backend of `preprocess`: its arguments, and the rows that it fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.errors import InvalidInput
from batchpool.model import Batch
from batchpool.worker.backends.backend import FAILED_ROWS
from batchpool.worker.backends.preprocess import PreprocessBackend
from batchpool.worker.failed_rows import failed_rows


class Answers(bp.Model):
    """Its preprocess returns what it is told to."""

    answer: Any = {}
    seen: Batch

    def preprocess(self, batch: Batch) -> Any:
        self.seen = batch
        return self.answer


def run(answer: Any, *, writable: bool = False, views: bool = True) -> tuple[Any, Answers]:
    model = Answers()
    model.answer, model.writable = answer, writable  # type: ignore[misc]
    backend = PreprocessBackend(model)
    x = np.arange(6).reshape(3, 2)
    return backend.finish(backend.launch(3, {"x": x}, {"x": None}, views)), model


def test_a_value_error_in_a_rows_place_is_the_callers_fault() -> None:
    errors = [ValueError("no text"), InvalidInput("no", {"at": 1}), KeyError("k")]
    found, _ = run({"ids": [*errors, np.zeros(2)]})
    failed = failed_rows(found, 4)
    assert {row: type(error) for row, error in failed.items()} == {
        0: InvalidInput, 1: InvalidInput, 2: KeyError,
    }  # fmt: skip
    assert (str(failed[0]), failed[1]) == ("no text", errors[1])


def test_it_may_stand_in_an_array_of_objects_and_in_batch_fail() -> None:
    rows = np.empty(3, dtype=object)
    rows[:] = [b"a", ValueError(), b"c"]
    found, _ = run({"text": rows})
    assert str(failed_rows(found, 3)[1]) == "ValueError", "a text for one that has none"
    assert isinstance(rows[1], ValueError), "the model's own array is not changed"
    found, _ = run({"ids": np.zeros((3, 2)), FAILED_ROWS: {2: ValueError("late")}})
    failed = failed_rows(found, 3)
    assert (type(failed[2]), str(failed[2])) == (InvalidInput, "late")


def test_what_cannot_be_shown_is_named() -> None:
    class Silent(ValueError):
        def __str__(self) -> str:
            raise RuntimeError

    found, _ = run({"ids": [Silent()]})
    assert str(failed_rows(found, 1)[0]) == "Silent"


def test_an_answer_that_is_no_dict_is_left_for_the_check() -> None:
    assert run(None)[0] is None


@pytest.mark.parametrize("writable", [False, True])
def test_arguments_are_read_only_or_its_own(writable: bool) -> None:
    _, model = run({}, writable=writable)
    assert model.seen["x"].flags.writeable is writable
    assert (model.seen.n, model.seen.rows) == (3, 3)


def test_tensors_of_torch_become_arrays() -> None:
    torch = pytest.importorskip("torch")
    found, _ = run({"x": torch.ones(3, 2), "ids": [torch.arange(2), ValueError("no")]})
    assert type(found["x"]) is type(found["ids"][0]) is np.ndarray
    assert type(found["ids"][1]) is InvalidInput
