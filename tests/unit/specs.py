"""Models for the tests: a few fixed ones, and hypothesis strategies for any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.packed_strings import PackedStrings
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor

NUMBERS = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)


def model(
    *inputs: Tensor, outputs: tuple[Tensor, ...] = (), parameters: tuple[Tensor, ...] = ()
) -> ModelSpec:
    """A numpy model of these inputs; its one output is y = float32 [n] unless given."""
    return ModelSpec("m", "numpy", inputs, outputs or (Tensor("y", "float32"),), parameters)


X = Tensor("x", "float32", (4,))
AFFINE = model(X, outputs=(Tensor("y", "float32", (4,)),))
# A generator of at most eight tokens.
STORY = ModelSpec(
    "m",
    "numpy",
    (Tensor("prompt", "int32", (Dim(16),)),),
    (Tensor("token", "int32", (Dim(8),)), Tensor("finish_reason", "bytes", max_bytes=8)),
    (Tensor("max_tokens", "int64", default=8),),
    generates=True,
)
# Fixed, dynamic and bytes tensors on both roads, and a parameter.
MIXED = ModelSpec(
    "mixed",
    "numpy",
    (
        Tensor("x", "float32", (2, 3)),
        Tensor("ids", "int64", (Dim(5),), pad=-1),
        Tensor("text", "bytes", (), max_bytes=9),
    ),
    (
        Tensor("y", "float64", (2,)),
        Tensor("grid", "uint8", (Dim(3), 2, Dim(4)), pad=7),
        Tensor("words", "bytes", (Dim(3),), max_bytes=4),
    ),
    (Tensor("top_k", "int64", (), default=5), Tensor("scale", "float32")),
)

dims = st.integers(0, 4) | st.builds(Dim, st.integers(1, 4))
shapes = st.lists(dims, max_size=3).map(tuple)


def tensors(name: st.SearchStrategy[str]) -> st.SearchStrategy[Tensor]:
    numeric = st.builds(Tensor, name, st.sampled_from(NUMBERS), shapes)
    texts = st.builds(
        Tensor, name, st.just("bytes"), shapes, max_bytes=st.integers(1, 6), pad=st.just(0)
    )
    return numeric | texts


def _named(draw: st.DrawFn, names: list[str], least: int) -> tuple[Tensor, ...]:
    n = draw(st.integers(least, len(names)))
    return tuple(draw(tensors(st.just(name))) for name in names[:n])


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Any model; names include those that stand for columns of the layout."""
    parameter = st.builds(Tensor, st.just("p"), st.sampled_from(NUMBERS)) | st.builds(
        Tensor, st.just("p"), st.just("bytes"), max_bytes=st.integers(1, 6)
    )
    return ModelSpec(
        "m",
        "numpy",
        _named(draw, ["x", "size", "x.len"], 1),
        _named(draw, ["x", "size", "state"], 1),
        tuple(draw(st.lists(parameter, max_size=1))),
    )


@st.composite
def rows_of(draw: st.DrawFn, tensor: Tensor, n: int) -> Array:
    """n rows of one size, in the tensor's storage dtype."""
    row = [draw(st.integers(0, d.max)) if isinstance(d, Dim) else d for d in tensor.shape]
    shape = (n, *row)
    count = int(np.prod(shape))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if tensor.max_bytes is not None:
        flat = np.empty(count, dtype=object)
        for i in range(count):
            flat[i] = rng.bytes(int(rng.integers(0, tensor.max_bytes + 1)))
        return flat.reshape(shape)
    raw = rng.bytes(count * tensor.np_dtype.itemsize)
    if tensor.dtype == "bool":
        return np.frombuffer(raw, np.uint8).reshape(shape) > 127
    return np.frombuffer(raw, tensor.np_dtype).reshape(shape)


def packed(strings: Sequence[bytes], before: bytes = b"", behind: bytes = b"") -> PackedStrings:
    """These strings in a buffer, in which other bytes stand before and behind them."""
    ends = np.cumsum([len(before), *map(len, strings)])
    return PackedStrings(np.frombuffer(before + b"".join(strings) + behind, np.uint8), ends)


def same(a: Array, b: Array) -> bool:
    """Bit for bit the same, NaNs too."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((a == b).all()) if a.dtype == object else a.tobytes() == b.tobytes()
