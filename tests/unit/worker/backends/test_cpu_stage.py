"""The backend of `postprocess`: its arguments, and what becomes of what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidInput
from batchpool.model import Batch
from batchpool.worker.backends.backend import FAILED_ROWS
from batchpool.worker.backends.cpu_stage import CpuStageBackend
from batchpool.worker.failed_rows import failed_rows

X = np.arange(6).reshape(3, 2)


def run(answer: Any, *, writable: bool = False) -> tuple[Any, Batch]:
    seen: list[Batch] = []

    def postprocess(batch: Batch) -> Any:
        seen.append(batch)
        batch.fail(2, InvalidInput("not this one"))
        return answer

    backend = CpuStageBackend(postprocess, writable=writable)
    found = backend.finish(backend.launch(3, {"x": X}, {"x": None}, True))
    return found, seen[0]


def test_a_value_error_in_a_rows_place_is_the_models_fault() -> None:
    found, _ = run({"label": [b"a", ValueError("no label"), b"c"]})
    failed = failed_rows(found, 3)
    assert {row: type(error) for row, error in failed.items()} == {1: ValueError, 2: InvalidInput}
    assert list(found[FAILED_ROWS]) == [2]


@pytest.mark.parametrize("writable", [False, True])
def test_arguments_are_read_only_or_its_own(writable: bool) -> None:
    found, batch = run("no dict", writable=writable)
    assert found == "no dict", "the check of the outputs says what is wrong with it"
    assert batch["x"].flags.writeable is writable
    assert np.shares_memory(batch["x"], X) is not writable


def test_tensors_of_torch_become_arrays() -> None:
    torch = pytest.importorskip("torch")
    found, _ = run({"x": torch.ones(3, 2), "rows": [torch.arange(2), KeyError("no")]})
    assert type(found["x"]) is type(found["rows"][0]) is np.ndarray
    assert type(found["rows"][1]) is KeyError
