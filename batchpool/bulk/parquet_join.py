"""Parquet files joined to one, a row group each, without reading a value.

    PAR1 | row groups of the first file | of the second | ... | footer | its length | PAR1

The footer tells the places of all columns. It is that of the first file, with the row groups of the
others behind its own and with the places where they stand now.
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

from batchpool.bulk.thrift_compact import (
    I16,
    I64,
    LIST,
    STRUCT,
    Struct,
    WrittenStructs,
    read_struct,
    written_struct,
)

_MAGIC = b"PAR1"
_END = struct.Struct("<I4s")  # the bytes of the footer, and the magic
_COPIED_BYTES = 1 << 20

# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_SCHEMA, _NUM_ROWS, _ROW_GROUPS, _KEYS_AND_VALUES, _COLUMN_ORDERS = 2, 3, 4, 5, 7
_COLUMNS, _ORDINAL = 1, 7
_META_DATA = 3
_MOST_ORDINALS = 2**15
_PLACES_OF_GROUP = (5,)  # file_offset
_PLACES_OF_CHUNK = (2, 4, 6)  # file_offset, offset_index_offset, column_index_offset
_PLACES_OF_COLUMN = (9, 10, 11, 14)  # of data, index and dictionary pages, and of a bloom filter


def are_alike(paths: Sequence[str]) -> bool:
    """True if files of Parquet have the same columns, of the same types. ValueError for a file that
    is none."""
    first = _Footer(paths[0])
    return all(first.is_like(_Footer(path)) for path in paths[1:])


def join_parquet(paths: Sequence[str], file: Any) -> None:
    """Write the row groups of all files, at least one, which are alike."""
    whole = dict(_Footer(paths[0]).fields)
    file.write(_MAGIC)
    place = len(_MAGIC)
    groups = WrittenStructs()
    rows = 0
    for path in paths:
        footer = _Footer(path)
        for group in footer.fields[_ROW_GROUPS][1][1]:
            _move(group, place - len(_MAGIC), groups.n)
            groups.add(group)
        rows += footer.fields[_NUM_ROWS][1]
        _copy(path, footer.data_bytes, file)
        place += footer.data_bytes - len(_MAGIC)
    whole[_NUM_ROWS] = (I64, rows)
    whole[_ROW_GROUPS] = (LIST, (STRUCT, groups))
    content = written_struct(whole)
    file.write(content)
    file.write(_END.pack(len(content), _MAGIC))


class _Footer:
    """The footer of a file. data_bytes: of what stands before it."""

    def __init__(self, path: str) -> None:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            file.seek(max(0, size - _END.size))
            end = file.read()
            length, magic = _END.unpack(end) if len(end) == _END.size else (0, b"")
            self.data_bytes = size - _END.size - length
            if magic != _MAGIC or self.data_bytes < len(_MAGIC):
                raise ValueError(f"{path} is no Parquet file")
            file.seek(self.data_bytes)
            self.fields: Struct = read_struct(file.read(length))

    def is_like(self, other: _Footer) -> bool:
        return all(
            self.fields.get(field) == other.fields.get(field)
            for field in (_SCHEMA, _KEYS_AND_VALUES, _COLUMN_ORDERS)
        )


def _move(group: Struct, by: int, number: int) -> None:
    """The places in a row group, which stands so many bytes further on now."""
    _add(group, _PLACES_OF_GROUP, by)
    if _ORDINAL in group:  # most writers have none
        group[_ORDINAL] = (I16, number)
        if number >= _MOST_ORDINALS:
            del group[_ORDINAL]
    for chunk in group[_COLUMNS][1][1]:
        _add(chunk, _PLACES_OF_CHUNK, by)
        _add(chunk[_META_DATA][1], _PLACES_OF_COLUMN, by)


def _add(fields: Struct, places: Sequence[int], by: int) -> None:
    for field in places:
        kind, place = fields.get(field, (0, 0))
        if place:  # 0 stands for none
            fields[field] = (kind, place + by)


def _copy(path: str, end: int, file: Any) -> None:
    """The bytes of a file behind its magic, up to its footer."""
    with open(path, "rb") as source:
        source.seek(len(_MAGIC))
        left = end - len(_MAGIC)
        while left:
            block = source.read(min(left, _COPIED_BYTES))
            if not block:
                raise ValueError(f"{path} ends before its footer")
            file.write(block)
            left -= len(block)
