"""The tensors of a lane bound to its memory: a column of rows, or offsets into the arena."""

from __future__ import annotations

from typing import Literal, TypeAlias

from batchpool.core.layout.segments import Layout
from batchpool.core.layout.tensor_columns import size_columns
from batchpool.core.tensors.spec import Tensor
from batchpool.shm.arena_column import ArenaColumn
from batchpool.shm.columns import TensorColumn
from batchpool.shm.segment import Memory

Road: TypeAlias = Literal["in", "out", "par", "feat", "pred"]


def tensor_columns(
    memory: Memory, layout: Layout, road: Road, tensors: tuple[Tensor, ...]
) -> dict[str, TensorColumn]:
    """The columns of one road of a lane: "in", "out", "par", "feat" or "pred"."""
    places = size_columns(tensors)
    sizes = memory.array(layout.columns["size.in" if road == "par" else f"size.{road}"])
    columns: dict[str, TensorColumn] = {}
    for tensor in tensors:
        name, own = f"{road}.{tensor.name}", tuple(places[tensor.name])
        lengths = memory.array(layout.columns[f"len.{name}"]) if tensor.is_bytes else None
        offsets = layout.columns.get(f"at.{name}")
        place = layout.columns[name if offsets is None else "arena"]
        values = memory.array(place)
        is_fixed = not (tensor.is_bytes or tensor.dynamic)
        row_bytes = tensor.row_bytes if is_fixed else 0
        is_string = tensor.is_bytes and not tensor.shape
        octets = memory.octets(place) if is_string or is_fixed else None
        if offsets is None:
            columns[tensor.name] = TensorColumn(
                tensor, values, sizes, own, lengths, octets, row_bytes
            )
        else:
            columns[tensor.name] = ArenaColumn(
                tensor, values, sizes, own, lengths, octets, row_bytes, memory.array(offsets),
                memory.scalars(offsets),
            )  # fmt: skip
    return columns
