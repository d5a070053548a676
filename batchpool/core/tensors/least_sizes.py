"""The least size of an input's rows along its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Mapping

from batchpool.core.errors import InvalidInput
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.ragged import Sizes
from batchpool.core.tensors.spec import ModelSpec, Tensor


def check_least_sizes(
    spec: ModelSpec, arrays: Mapping[str, Array], sizes: Mapping[str, Sizes]
) -> None:
    """Raise InvalidInput for a row that is shorter than its input may be.

    arrays, sizes: of all inputs, as in `Rows`.
    """
    if not spec.has_least_sizes:
        return
    for tensor in spec.inputs:
        own, rows = sizes.get(tensor.name), arrays[tensor.name]
        for k, at in enumerate(tensor.dynamic):
            least = tensor.min_shape[at]
            if own is None:
                if rows.shape[1 + at] < least:
                    raise _too_small(tensor, None, rows.shape[1 + at], at)
            elif (own[:, k] < least).any():
                row = int(own[:, k].argmin())
                raise _too_small(tensor, row, int(own[row, k]), at)


def _too_small(tensor: Tensor, row: int | None, size: int, at: int) -> InvalidInput:
    along = f" along dimension {at + 1}" if len(tensor.shape) > 1 else ""
    what = "is empty" if not size else f"has size {size}"
    where = "" if row is None else f" in row {row}"
    error = InvalidInput(
        f"input {tensor.name!r} {what}{along}{where}; at least {tensor.min_shape[at]} of"
        f" {tensor.describe_shape()} was expected"
    )
    error.row = row
    return error
