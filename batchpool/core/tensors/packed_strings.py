"""PackedStrings: byte strings one behind the other in a buffer, as columns of Arrow hold them.

They go into slots as they stand: no `bytes` object is made for a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array

_OFFSETS: dict[str, np.dtype[Any]] = {
    "string": np.dtype("i4"), "binary": np.dtype("i4"),
    "large_string": np.dtype("i8"), "large_binary": np.dtype("i8"),
}  # fmt: skip


class PackedStrings:
    """n byte strings: string i is content[offsets[i]:offsets[i + 1]].

    content: uint8 [bytes]. offsets: whole numbers [n + 1] that never fall and stay within the
    content; ValueError for others. A slice is a view.
    """

    __slots__ = ("content", "offsets")

    ndim = 1

    def __init__(self, content: Array, offsets: Array) -> None:
        first, last = int(offsets[0]), int(offsets[-1])
        if first < 0 or last > len(content) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets of strings fall, or lie outside of their bytes")
        self.content = content
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    @property
    def lengths(self) -> Array:
        """The bytes of each string."""
        found: Array = self.offsets[1:] - self.offsets[:-1]
        return found

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> PackedStrings: ...

    def __getitem__(self, at: int | slice) -> bytes | PackedStrings:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise IndexError("strings in a buffer are cut in steps of 1 only")
            part = object.__new__(PackedStrings)  # its offsets are checked already
            part.content = self.content
            part.offsets = self.offsets[start : max(start, stop) + 1]
            return part
        n = len(self)
        if not -n <= at < n:
            raise IndexError(f"string {at} of {n}")
        at %= n
        found: bytes = self.content[self.offsets[at] : self.offsets[at + 1]].tobytes()
        return found

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())

    def tolist(self) -> list[bytes]:
        """The strings as `bytes`."""
        return [piece.tobytes() for piece in self.pieces()]

    def pieces(self) -> list[memoryview]:
        """The strings as views of the buffer."""
        content = self.content.data
        return [content[a:b] for a, b in pairwise(self.offsets.tolist())]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = np.empty(len(self), object)
        found[:] = self.tolist()
        return found

    def take(self, places: Sequence[int]) -> Array:
        """The strings at these places as an array of `bytes`."""
        found = np.empty(len(places), object)
        found[:] = [self[at] for at in places]
        return found


def is_arrow_column(value: Any) -> bool:
    """True for an array or a chunked array of Arrow, whose library is not imported here."""
    return hasattr(value, "null_count") and hasattr(value, "to_pylist") and hasattr(value, "type")


def strings_of_arrow(name: str, column: Any) -> PackedStrings | None:
    """The strings of a column of Arrow, as views of its memory where it is one array; null ones as
    whatever stands in their place. None for a column of another type.

    name: of the input, for messages. InvalidRequest for a column whose offsets are damaged, as a
    file may have them.
    """
    offset = _OFFSETS.get(str(column.type))
    if offset is None:
        return None
    try:
        parts = [_strings_of(part, offset) for part in getattr(column, "chunks", [column])]
    except ValueError as exc:
        raise InvalidRequest(f"input {name!r} is a damaged column of Arrow: {exc}") from None
    return parts[0] if len(parts) == 1 else _joined(parts)


def _strings_of(array: Any, offset: np.dtype[Any]) -> PackedStrings:
    n = len(array)
    _, places, content = array.buffers()
    if not n or places is None:
        return PackedStrings(np.empty(0, np.uint8), np.zeros(n + 1, np.int64))
    octets = np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return PackedStrings(
        octets, np.frombuffer(places, offset, n + 1, array.offset * offset.itemsize)
    )


def _joined(parts: Sequence[PackedStrings]) -> PackedStrings:
    offsets = [np.zeros(1, np.int64)]
    contents = [np.empty(0, np.uint8)]
    total = 0
    for part in parts:
        first, last = int(part.offsets[0]), int(part.offsets[-1])
        offsets.append(part.offsets[1:].astype(np.int64) + (total - first))
        contents.append(part.content[first:last])
        total += last - first
    return PackedStrings(np.concatenate(contents), np.concatenate(offsets))
