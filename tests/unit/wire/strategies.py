"""Hypothesis strategies: specs of one tensor, and rows that fit them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from batchpool.core.tensors.dtypes import DTYPE_OF_WIRE, Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor

NUMBERS = [name for name in DTYPE_OF_WIRE.values() if name != "bytes"]
JSON_NUMBERS = [name for name in NUMBERS if name not in ("float16", "bfloat16")]
MOST_BYTES = 12

dims = st.one_of(st.integers(1, 3), st.builds(Dim, st.integers(1, 4)))
row_shapes = st.lists(dims, max_size=3).map(tuple)


@st.composite
def rows_of(draw: st.DrawFn, tensor: Tensor, n: int, finite: bool) -> Array:
    """n rows of random bits; finite: floats that JSON has a number for, and text in UTF-8."""
    row = [draw(st.integers(0, d.max)) if isinstance(d, Dim) else d for d in tensor.shape]
    shape = (n, *row)
    count = math.prod(shape)
    if tensor.is_bytes:
        element = (
            st.text(st.characters(codec="utf-8"), max_size=MOST_BYTES // 4).map(str.encode)
            if finite
            else st.binary(max_size=MOST_BYTES)
        )
        flat = np.empty(count, object)
        flat[:] = draw(st.lists(element, min_size=count, max_size=count))
        return flat.reshape(shape)
    size = count * tensor.np_dtype.itemsize
    bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if tensor.dtype == "bool":
        return (bits & 1).view("?").reshape(shape)
    array = bits.view(tensor.np_dtype).reshape(shape)
    if finite and tensor.np_dtype.kind == "f":
        array = np.where(np.isfinite(array), array, tensor.np_dtype.type(0))
    return array


@st.composite
def echoes(
    draw: st.DrawFn, dtypes: list[str], finite: bool, names: tuple[str, ...] = ("x",)
) -> tuple[ModelSpec, dict[str, Array]]:
    """A model whose outputs are its inputs, and rows for it."""
    n = draw(st.integers(1, 4))
    tensors = []
    for name in names:
        dtype = draw(st.sampled_from(dtypes))
        most = MOST_BYTES if dtype == "bytes" else None
        tensors.append(Tensor(name, dtype, draw(row_shapes), max_bytes=most))
    spec = ModelSpec("echo", "numpy", tuple(tensors), tuple(tensors))
    return spec, {t.name: draw(rows_of(t, n, finite)) for t in tensors}
