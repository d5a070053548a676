"""A column of texts of Arrow, whose rows become `bytes` a window at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.arrow.buffers import byte_strings, text_lengths
from batchpool.arrow.types import arrow
from batchpool.core.tensors.dtypes import Array


class TextColumn:
    """The texts of a chunk as Arrow has them; a slice of them is an array of `bytes`, as the client
    takes it. All at once would hold up the windows that are under way."""

    def __init__(self, column: Any) -> None:
        pa = arrow()
        if isinstance(column, pa.ChunkedArray):  # joining one chunk would copy it
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        self.lengths = text_lengths(column)
        self._texts = column.cast(pa.large_binary())

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        return byte_strings(self._texts.slice(start, stop - start))


def text_column(column: Any, most_bytes: int) -> TextColumn | None:
    """The column where it holds plain texts or bytes, none null and none longer than most_bytes."""
    types = arrow().types
    plain = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if column.null_count or not any(is_it(column.type) for is_it in plain):
        return None
    found = TextColumn(column)
    return found if int(np.max(found.lengths, initial=0)) <= most_bytes else None
