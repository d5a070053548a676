"""Models that use torch on their inputs: a retry and a neighbour see the original rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.lazy import library
from tests.process.pool_under_test import Pool, serving, until

library("torch")  # of its models
MODELS = "tests.fault.torch_models"


@pytest.fixture(scope="module")
def pool() -> Any:
    with serving(f"{MODELS}:TorchInplace", f"{MODELS}:Converts") as pool:
        yield pool


def test_a_torch_model_may_edit_its_input(pool: Pool) -> None:
    """C19: it has a copy of its own, so that each attempt starts from what was sent."""
    rows = np.arange(4 * 6, dtype=np.float32).reshape(-1, 4)
    marks = np.array([0, 0, 0, 0, 0, 1])
    with pool.client() as client:
        found = client.infer("torchinplace", x=rows, mark=marks)["y"]
        np.testing.assert_array_equal(found, rows + 1)
    assert (pool.notes / "torch-1").exists(), "it did not die at first"
    until(lambda: pool.status()["models"]["torchinplace"]["workers"] == "1/1", "the next worker")


def test_a_numpy_model_may_go_on_with_torch(pool: Pool) -> None:
    """C19: on the read-only view itself, as long as it does not write."""
    x = np.arange(40, dtype=np.float32).reshape(-1, 4)
    with pool.client() as client:
        for i in range(20):
            found = client.infer("converts", x=x + i, mark=np.zeros(10, np.int64))["y"]
            np.testing.assert_array_equal(found, x + i + 1)
