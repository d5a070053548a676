"""The columns of a lane in which a row's tensors stand: their shapes, dtypes and order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from batchpool.core.tensors.spec import Tensor


class ColumnShape(NamedTuple):
    """A column without its place. is_paged: it begins at a page."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_paged: bool = False


def size_columns(tensors: tuple[Tensor, ...]) -> dict[str, list[tuple[int, int]]]:
    """The columns of dynamic sizes by tensor: {name: [(size column, row dimension), ...]}."""
    places: dict[str, list[tuple[int, int]]] = {}
    k = 0
    for tensor in tensors:
        places[tensor.name] = []
        for dim in tensor.dynamic:
            places[tensor.name].append((k, dim))
            k += 1
    return places


def tensor_columns(
    slots: int, road: str, tensors: tuple[Tensor, ...], in_arena: tuple[str, ...] = ()
) -> Iterator[ColumnShape]:
    """The columns of these tensors. in_arena: names of those whose rows stand in the arena."""
    for tensor in tensors:
        shape = (slots, *tensor.max_shape)
        name = f"{road}.{tensor.name}"
        if tensor.is_bytes:
            yield ColumnShape(f"len.{name}", "u4", shape)
        if tensor.name in in_arena:
            yield ColumnShape(f"at.{name}", "u8", (slots,))
        elif tensor.max_bytes is not None:
            yield ColumnShape(name, "u1", (*shape, tensor.max_bytes), is_paged=True)
        else:
            dtype = f"{tensor.np_dtype.kind}{tensor.np_dtype.itemsize}"
            yield ColumnShape(name, dtype, shape, is_paged=bool(tensor.shape))
