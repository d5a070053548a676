"""A Parquet file of one row group, in which columns of vectors of one size are written at once.

Parquet tells of every element of a list where its list begins. A writer of any lists looks at each
element for that, which takes several times as long as the elements themselves; of vectors of one
size, all that is known beforehand. A page of theirs (version 1, packed as a whole by snappy):

    bytes of the repetition levels | a run of bits: 0 at the first element of a vector, else 1
    bytes of the definition levels | a run of one value: no element is missing
    elements

All other columns are those that pyarrow has written.
https://github.com/apache/parquet-format/blob/master/Encodings.md
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchpool.arrow.types import arrow
from batchpool.bulk.parquet_file import (
    COLUMNS,
    END,
    GROUP_PLACE,
    MAGIC,
    META_DATA,
    NUM_ROWS,
    ROW_GROUPS,
    SCHEMA,
    footer_of,
    move_chunk,
)
from batchpool.bulk.thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    written_struct,
    written_unsigned,
)
from batchpool.core.tensors.dtypes import Array

# The physical types whose elements are stored as numpy has them.
TYPES = {"int32": 1, "int64": 2, "float32": 4, "float64": 5}
_PAGE_BYTES = 1 << 20
_PLAIN, _RLE, _SNAPPY, _DATA_PAGE = 0, 3, 1, 0
_REQUIRED = 0
_LENGTH = struct.Struct("<I")

# Fields of SchemaElement, ColumnMetaData and RowGroup.
_REPETITION, _NAME, _CHILDREN = 3, 4, 5
_PATH, _RAW_BYTES, _PACKED_BYTES, _DATA_PLACE, _DICTIONARY_PLACE = 3, 6, 7, 9, 11


@dataclass(frozen=True)
class _Leaf:
    """A column of a file: its path, and the definition level of an element that is there."""

    path: tuple[bytes, ...]
    level: int


def write_row_group(file: Any, empty: bytes, rest: bytes, vectors: Mapping[str, Array]) -> None:
    """Write a file with the columns of two others and those of vectors.

    empty: a Parquet file of all columns, without rows. rest: one with the same rows, in one row
    group, without the columns of vectors; b"" where there are no others. vectors: [n, size] by
    name, at least one of each.
    """
    whole = footer_of(empty)
    chunks: dict[tuple[bytes, ...], Struct] = {}
    if rest:
        (group,) = footer_of(rest)[ROW_GROUPS][1][1]
        for chunk in group[COLUMNS][1][1]:
            chunks[tuple(chunk[META_DATA][1][_PATH][1][1])] = chunk
    file.write(MAGIC)
    place = len(MAGIC)
    columns: list[Struct] = []
    for leaf in _leaves(whole[SCHEMA][1][1]):
        rows = vectors.get(leaf.path[0].decode())
        pages: list[Any]
        if rows is not None:
            chunk, pages = _written(leaf, rows, place)
        else:
            chunk = chunks[leaf.path]
            start, end = _range_of(chunk[META_DATA][1])
            pages = [memoryview(rest)[start:end]]
            move_chunk(chunk, place - start)
        for page in pages:
            file.write(page)
            place += len(page)
        columns.append(chunk)
    n = len(next(iter(vectors.values())))
    whole[NUM_ROWS] = (I64, n)
    whole[ROW_GROUPS] = (LIST, (STRUCT, [_group(columns, n)]))
    content = written_struct(whole)
    file.write(content)
    file.write(END.pack(len(content), MAGIC))


def _group(columns: list[Struct], n: int) -> Struct:
    facts = [column[META_DATA][1] for column in columns]
    return {
        COLUMNS: (LIST, (STRUCT, columns)),
        2: (I64, sum(fact[_RAW_BYTES][1] for fact in facts)),
        3: (I64, n),
        GROUP_PLACE: (I64, len(MAGIC)),
        6: (I64, sum(fact[_PACKED_BYTES][1] for fact in facts)),
    }


def _leaves(elements: list[Struct]) -> list[_Leaf]:
    """The columns of a schema, which stands in it as a tree in depth-first order."""
    found: list[_Leaf] = []
    rest = iter(elements)

    def walk(n: int, path: tuple[bytes, ...], level: int) -> None:
        for _ in range(n):
            element = next(rest)
            own = (*path, element[_NAME][1])
            own_level = level + (element[_REPETITION][1] != _REQUIRED)
            if _CHILDREN in element:
                walk(element[_CHILDREN][1], own, own_level)
            else:
                found.append(_Leaf(own, own_level))

    walk(next(rest)[_CHILDREN][1], (), 0)
    return found


def _range_of(facts: Struct) -> tuple[int, int]:
    """Where the pages of a column stand."""
    places = [facts[field][1] for field in (_DATA_PLACE, _DICTIONARY_PLACE) if field in facts]
    start = min(place for place in places if place)
    return start, start + facts[_PACKED_BYTES][1]


def _written(leaf: _Leaf, rows: Array, place: int) -> tuple[Struct, list[Any]]:
    """The metadata of a column of vectors that stands at this place, and its pages."""
    n, size = rows.shape
    at_once = max(1, _PAGE_BYTES // (size * rows.itemsize))
    pages: list[Any] = []
    raw_bytes = packed_bytes = 0
    for start in range(0, n, at_once):
        values = rows[start : start + at_once]
        body = _body(leaf, values)
        # The buffer that it gives shows the size of before it was packed; a slice shows its own.
        packed = arrow().compress(body, codec="snappy", asbytes=False).slice(0)
        header = _page_header(values.size, len(body), len(packed))
        pages += [header, memoryview(packed)]
        raw_bytes += len(header) + len(body)
        packed_bytes += len(header) + len(packed)
    facts: Struct = {
        1: (I32, TYPES[rows.dtype.name]),
        2: (LIST, (I32, [_PLAIN, _RLE])),
        _PATH: (LIST, (BINARY, list(leaf.path))),
        4: (I32, _SNAPPY),
        5: (I64, rows.size),
        _RAW_BYTES: (I64, raw_bytes),
        _PACKED_BYTES: (I64, packed_bytes),
        _DATA_PLACE: (I64, place),
    }
    return {2: (I64, 0), META_DATA: (STRUCT, facts)}, pages


def _body(leaf: _Leaf, values: Array) -> Array:
    """Levels and elements of one page."""
    goes_on = np.ones(values.shape, np.bool_)
    goes_on[:, 0] = False
    bits = np.packbits(goes_on.reshape(-1), bitorder="little")
    repetition = written_unsigned(len(bits) << 1 | 1)
    definition = written_unsigned(values.size << 1) + bytes([leaf.level])
    parts = (
        _LENGTH.pack(len(repetition) + len(bits)),
        repetition,
        bits,
        _LENGTH.pack(len(definition)),
        definition,
        np.ascontiguousarray(values).reshape(-1).view(np.uint8),
    )
    return np.concatenate(
        [part if isinstance(part, np.ndarray) else np.frombuffer(part, np.uint8) for part in parts]
    )


def _page_header(n: int, raw_bytes: int, packed_bytes: int) -> bytes:
    data_page: Struct = {1: (I32, n), 2: (I32, _PLAIN), 3: (I32, _RLE), 4: (I32, _RLE)}
    return written_struct(
        {
            1: (I32, _DATA_PAGE),
            2: (I32, raw_bytes),
            3: (I32, packed_bytes),
            5: (STRUCT, data_page),
        }
    )
