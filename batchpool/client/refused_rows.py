"""Rows that cannot be sent, apart from those that can: for calls that return the errors of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.core.tensors.packed_strings import PackedStrings, is_arrow_column
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.core.tensors.spec import ModelSpec

Refused = dict[int, PoolError]


def check_each(
    spec: ModelSpec,
    tensors: Mapping[str, Any],
    parameters: Mapping[str, Any] | None,
    first: int = 0,
) -> tuple[Rows, Refused]:
    """`check_rows` of all rows but those that it refuses, and the errors of these by their place.

    first: the number that the errors call the first row by. Raises the error of the whole where no
    row could be sent, or no row alone is the cause.
    """
    try:
        return check_rows(spec, tensors, parameters), {}
    except (InvalidRequest, TooLarge) as exc:
        whole = exc
    columns = {
        name: value if hasattr(value, "__getitem__") else list(value)
        for name, value in tensors.items()
        if hasattr(value, "__iter__") and not isinstance(value, (str, bytes, Mapping))
    }
    counts = {len(column) for column in columns.values()}
    if len(columns) < len(tensors) or len(counts) != 1:
        raise whole
    n, refused = counts.pop(), Refused()
    for i in range(n):
        try:
            check_rows(spec, {k: column[i : i + 1] for k, column in columns.items()}, parameters)
        except (InvalidRequest, TooLarge) as exc:
            refused[i] = type(exc)(f"row {first + i}: {exc.message}")
            refused[i].row = first + i
    if not 0 < len(refused) < n:
        raise whole
    kept = [i for i in range(n) if i not in refused]
    return check_rows(spec, {k: picked(v, kept) for k, v in columns.items()}, parameters), refused


def picked(column: Any, kept: list[int]) -> Any:
    """The rows of these numbers."""
    if isinstance(column, np.ndarray):
        return column[kept]
    if hasattr(column, "iloc"):  # by place and not by label, as the index of a frame has it
        return column.iloc[kept]
    if is_arrow_column(column) or isinstance(column, PackedStrings):
        return column.take(kept)
    return [column[i] for i in kept]


def with_refused(outputs: dict[str, Any], refused: Refused) -> dict[str, Any]:
    """Lists with an entry for each row that was sent, with the errors of the others in between."""
    if not refused:
        return outputs
    found = {}
    for name, sent in outputs.items():
        rest = iter(sent)
        total = len(sent) + len(refused)
        found[name] = [refused[i] if i in refused else next(rest) for i in range(total)]
    return found
