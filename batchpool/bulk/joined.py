"""Several columns as one vector: `--map features=a+b+c`, for tables that have a column a number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import Tensor

_SIGN = "+"
Values = Callable[[Tensor, Any], tuple[Any, list[int]]]  # of a column, and the places of nulls


def parts_of(column: str, known: Collection[str] | None) -> tuple[str, ...]:
    """The columns that a name of `--map` stands for: itself where there is such a column, else its
    parts between `+`. known: the columns there are; None where that is not known yet."""
    if known is not None and column in known:
        return (column,)
    return tuple(part.strip() for part in column.split(_SIGN))


def check_joined(tensor: Tensor, column: str, parts: Sequence[str]) -> None:
    """ConfigError unless an input takes several columns as the elements of its rows."""
    if len(parts) == 1:
        return
    if len(tensor.shape) != 1:
        raise ConfigError(
            f"--map {tensor.name}={column}: rows of input {tensor.name!r} have the shape"
            f" {list(tensor.max_shape)}; several columns make a vector, so one dimension was"
            " expected"
        )
    size = tensor.max_shape[0]
    if len(parts) > size or (len(parts) < size and not tensor.dynamic):
        raise ConfigError(
            f"--map {tensor.name}={column}: {len(parts)} columns, and input {tensor.name!r} takes"
            f" {'at most ' if tensor.dynamic else ''}{size} elements a row"
        )


def joined(
    tensor: Tensor, columns: Sequence[Any], values_of: Values
) -> tuple[Any, list[tuple[int, int]]]:
    """Columns of one value a row as rows of a vector, and (row, column) of each null among them.

    values_of: how a column is read for a tensor.
    """
    element = replace(tensor, shape=(), default=None, labels=())
    read = [values_of(element, column) for column in columns]
    nulls = [(row, at) for at, (_, missing) in enumerate(read) for row in missing]
    parts = [values for values, _ in read]
    if all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts):
        return np.stack(parts, axis=1), nulls
    lists = [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
    return [list(row) for row in zip(*lists, strict=True)], nulls
