"""Code that changed under a pool is not run on rows that were laid out for the old."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import ModelError
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.worker.load import check_declaration

SERVED = ModelSpec(
    "m",
    "numpy",
    (Tensor("x", "float32", (4, Dim(9, "t")), pad=float("nan")), Tensor("z", "int64")),
    (Tensor("y", "float32", (4,)),),
    (Tensor("k", "float32", (), default=np.float32(0.5)),),
)


def served() -> ModelSpec:
    """As it comes to a worker."""
    return ModelSpec.from_wire(SERVED.to_wire())


def test_the_same_tensors_are_the_same_whatever_the_name() -> None:
    check_declaration(served(), SERVED)
    check_declaration(served(), replace(SERVED, name="other"))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"framework": "torch"}, "among its framework torch; numpy was expected"),
        (
            {"outputs": (Tensor("y", "float32", (8,)),)},
            r"'m' as it is served: among its outputs Tensor\(name='y', .*\(8,\).*\(4,\).* expected",
        ),
        ({"outputs": (Tensor("y", "int32", (4,)),)}, "dtype='int32'.*dtype='float32'"),
        ({"inputs": SERVED.inputs[:1]}, "among its inputs None; Tensor.*name='z'"),
        ({"inputs": (*SERVED.inputs, Tensor("w", "int8"))}, "name='w'.*; None was expected"),
        ({"parameters": ()}, "among its parameters None; .*name='k'"),
    ],
)
def test_another_declaration_is_refused_by_what_differs(change: dict[str, Any], error: str) -> None:
    with pytest.raises(ModelError, match=error):
        check_declaration(served(), replace(SERVED, **change))
