"""Arrow's types for the dtypes of tensors, and pyarrow itself, imported when it is first needed.

tensor of a model    its column in Arrow
shape ()             a column of numbers; of bytes: binary or utf8
fixed shape          arrow.fixed_shape_tensor, or fixed_size_list, nested or flat
first dimension      list of elements, or of fixed_size_lists of them
dynamic
others dynamic       struct of data (list) and shape (fixed_size_list of int32), the layout
                     of arrow.variable_shape_tensor
bfloat16             uint16, and in the field's metadata batchpool.datatype = BF16
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from batchpool.core.errors import UnsupportedMediaType
from batchpool.core.tensors.spec import Dim, Tensor

DATATYPE = b"batchpool.datatype"
BF16 = b"BF16"
VARIABLE_TENSOR = b"arrow.variable_shape_tensor"


@cache
def arrow() -> Any:
    """The module pyarrow; UnsupportedMediaType where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError:
        raise UnsupportedMediaType(
            "Arrow needs pyarrow, which is not installed here: pip install 'batchpool[arrow]'"
        ) from None
    return pyarrow


def load() -> None:
    """Load pyarrow, if it is installed: that takes tenths of a second, and seconds where its files
    were not read lately, in which no thread of the process does anything else."""
    with suppress(UnsupportedMediaType):
        arrow()


@cache
def value_type(dtype: str) -> Any:
    """The Arrow type of the elements of a tensor's dtype."""
    pa = arrow()
    names = {"bool": "bool_", "bfloat16": "uint16", "bytes": "large_binary"}
    return getattr(pa, names.get(dtype, dtype))()


def is_listed(tensor: Tensor) -> bool:
    """True if rows are lists of different lengths: the first dimension alone is dynamic."""
    return tensor.dynamic == (0,) and isinstance(tensor.shape[0], Dim)
