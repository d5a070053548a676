"""The small examples, called directly: their formulas, dtypes and shapes."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.examples.affine import Affine
from batchpool.model import spec_of


def test_affine_is_two_x_plus_one() -> None:
    x = np.array([[1, 2, 3, 4], [-0.5, 0, 1e6, 0.25]], dtype=np.float32)
    x.flags.writeable = False  # as a view of shared memory is
    model = Affine()
    model.load("cpu")
    y = model.infer({"x": x})["y"]  # type: ignore[arg-type]
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, [[3, 5, 7, 9], [0, 1, 2_000_001, 1.5]])
    assert spec_of(Affine).name == "affine"


def test_mlp_gives_every_worker_the_same_answer() -> None:
    torch = pytest.importorskip("torch")
    from batchpool.examples.mlp import MLP

    first, second = MLP(), MLP()
    first.load("cpu")
    torch.rand(3)  # whatever a worker drew before must not matter
    second.load("cpu")
    x = torch.linspace(-1, 1, 3 * 512).reshape(3, 512)
    with torch.inference_mode():
        y, again = first.infer({"x": x})["y"], second.infer({"x": x})["y"]
    assert y.shape == (3, 512)
    assert y.dtype == torch.float32
    assert torch.equal(y, again)
    assert not torch.equal(y[0], y[1])


def test_mlp_leaves_the_callers_random_state_alone() -> None:
    torch = pytest.importorskip("torch")
    from batchpool.examples.mlp import MLP

    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    MLP().load("cpu")
    assert torch.equal(torch.rand(4), expected)
