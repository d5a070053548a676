"""Rows of .npy files: the first dimension of an array, which is mapped and not read as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from batchpool.bulk.chunk import Chunk
from batchpool.core.errors import StartError

COLUMN = "array"


class ArrayReader:
    """Files of one array each, whose rows have one shape and one dtype. The column is `array`."""

    names: tuple[str, ...] | None = (COLUMN,)

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._counts = []
        first = None
        for path in paths:
            array = _mapped(path)
            form = (array.dtype, array.shape[1:])
            if first is not None and form != first:
                raise StartError(
                    f"{path} has rows {form[1]} of {form[0]}; {first[1]} of {first[0]}, as in"
                    f" {paths[0]}, were expected"
                )
            first = form
            self._counts.append(len(array))
        self.total: int | None = sum(self._counts)

    def chunks(self, size: int, start: int) -> Iterator[Chunk]:
        assert self.total is not None
        for at in range(start, self.total, size):
            # Mapped anew for each chunk: pages that were read do not stay in this process.
            parts = list(self._parts(at, min(at + size, self.total)))
            rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
            yield Chunk(at, len(rows), {COLUMN: rows})

    def _parts(self, start: int, stop: int) -> Iterator[Any]:
        first = 0
        for path, count in zip(self._paths, self._counts, strict=True):
            low, high = max(start - first, 0), min(stop - first, count)
            if low < high:
                yield np.array(_mapped(path)[low:high])
            first += count


def _mapped(path: str) -> Any:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as exc:
        raise StartError(f"cannot read {path}: {exc.strerror or exc}") from None
    except (ValueError, EOFError) as exc:
        raise StartError(f"{path} is no .npy file that can be mapped: {exc}") from None
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise StartError(f"{path} holds no rows: an array [n, *row shape] was expected")
    return array
