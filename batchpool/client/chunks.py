"""Requests of any number of rows: cut into windows that fit a lane, and joined again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import ModelSpec


def window_rows(bound: int, max_batch: int) -> int:
    """Rows of one window: whole batches, so that they run full, and about four in the lane.

    bound: the most rows the lane lets one client have.
    """
    if bound <= max_batch:
        return bound
    return max(1, bound // 4 // max_batch) * max_batch if bound >= 4 * max_batch else max_batch


def cut(rows: Rows, size: int) -> Iterator[Rows]:
    """The rows in windows of at most `size`, as views."""
    if rows.n <= size:
        yield rows
        return
    for start in range(0, rows.n, size):
        yield part(rows, start, min(start + size, rows.n))


def part(rows: Rows, start: int, stop: int) -> Rows:
    """Some of the rows, as views."""
    tensors = {name: array[start:stop] for name, array in rows.tensors.items()}
    sizes = {name: own[start:stop] for name, own in rows.sizes.items()}
    return Rows(stop - start, tensors, rows.parameters, sizes)


def can_join(old: ModelSpec, new: ModelSpec) -> bool:
    """True if results of both can be joined, as one call was sent to the lanes of either."""
    return (old.inputs, old.outputs, old.parameters) == (new.inputs, new.outputs, new.parameters)


def join(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The outputs of all windows as one: an array, or a list of rows where they differ in size."""
    if len(results) == 1:
        return results[0]
    joined: dict[str, Any] = {}
    for name in results[0]:
        parts = [result[name] for result in results]
        arrays = all(isinstance(part, np.ndarray) for part in parts)
        if arrays and len({part.shape[1:] for part in parts}) == 1:
            joined[name] = np.concatenate(parts)
        else:
            joined[name] = [row for part in parts for row in part]
    return joined
