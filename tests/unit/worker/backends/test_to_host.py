"""Outputs of torch models as numpy arrays, whatever torch keeps lazily."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.core.tensors.spec import Tensor
from batchpool.model import Batch, Model, spec_of
from batchpool.worker.backends.backend import to_host
from batchpool.worker.backends.cpu import TorchCpuBackend
from tests.lazy import library

torch: Any = library("torch")


class Spectrum(Model):
    """The imaginary part of the conjugate: a view that torch negates when it is read."""

    inputs = [Tensor("x", "float32", (4,))]
    outputs = [Tensor("y", "float32", (3,))]

    def infer(self, batch: Batch) -> dict[str, Any]:
        return {"y": torch.fft.rfft(batch["x"]).conj().imag}


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_lazy_negation_is_carried_out_in_a_batch_of_any_size(n: int) -> None:
    x = np.arange(4 * n, dtype=np.float32).reshape(n, 4) ** 2
    backend = TorchCpuBackend(Spectrum(), spec_of(Spectrum))
    found = backend.finish(backend.launch(n, {"x": x}, {"x": None}, False))["y"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, -np.fft.rfft(x).imag, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_lazy_view_has_its_values(dtype: str) -> None:
    parts = torch.arange(3, dtype=getattr(torch, dtype))
    lazy = torch.complex(parts, parts + 10).conj()
    assert lazy.is_conj()
    assert lazy.imag.is_neg()
    assert to_host(torch, lazy.imag).tolist() == [-10, -11, -12]
    assert to_host(torch, lazy.real).tolist() == [0, 1, 2]
    assert to_host(torch, lazy).tolist() == [0 - 10j, 1 - 11j, 2 - 12j]
    assert [row.tolist() for row in to_host(torch, [lazy.imag[:1], lazy.imag[1:]])] == [
        [-10],
        [-11, -12],
    ]


def test_a_lazy_negation_of_bfloat16() -> None:
    positive = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    halves = torch._neg_view(positive)
    assert halves.is_neg()
    assert to_host(torch, halves).tolist() == [0xBF80, 0x4000]
