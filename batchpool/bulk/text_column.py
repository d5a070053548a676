"""A column of texts of Arrow, whose rows become `bytes` a window at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.arrow.buffers import byte_strings, nulls
from batchpool.arrow.types import arrow
from batchpool.core.tensors.dtypes import Array


class TextColumn:
    """The texts of a chunk as Arrow has them; a slice of them is an array of `bytes`, as the client
    takes it. All at once would hold up the windows that are under way.

    missing: the places of nulls, which are empty texts in slices.
    """

    def __init__(self, column: Any) -> None:
        pa = arrow()
        if isinstance(column, pa.ChunkedArray):  # joining one chunk would copy it
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        self.missing: list[int] = []
        if column.null_count:
            self.missing = np.flatnonzero(nulls(column)).tolist()
            column = column.fill_null(b"" if _is_binary(column.type) else "")
        self._texts = column.cast(pa.large_binary())

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        return byte_strings(self._texts.slice(start, stop - start))


def is_text(kind: Any) -> bool:
    """True for the type of a column that `TextColumn` takes."""
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or _is_binary(kind))


def _is_binary(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind))
