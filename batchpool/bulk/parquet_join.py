"""Parquet files joined to one, a row group each, without reading a value.

    PAR1 | row groups of the first file | of the second | ... | footer | its length | PAR1

The footer tells the places of all columns. It is that of the first file, with the row groups of the
others behind its own and with the places where they stand now.
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from batchpool.bulk.parquet_file import (
    COLUMN_ORDERS,
    END,
    KEYS_AND_VALUES,
    MAGIC,
    NUM_ROWS,
    ORDINAL,
    ROW_GROUPS,
    SCHEMA,
    footer_start,
    move_group,
)
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

_COPIED_BYTES = 1 << 20
_MOST_ORDINALS = 2**15


def are_alike(paths: Sequence[str]) -> bool:
    """True if files of Parquet have the same columns, of the same types. ValueError for a file that
    is none."""
    first = _Footer(paths[0])
    return all(first.is_like(_Footer(path)) for path in paths[1:])


def join_parquet(paths: Sequence[str], file: Any) -> None:
    """Write the row groups of all files, at least one, which are alike."""
    whole = dict(_Footer(paths[0]).fields)
    file.write(MAGIC)
    place = len(MAGIC)
    groups = WrittenStructs()
    rows = 0
    for path in paths:
        footer = _Footer(path)
        for group in footer.fields[ROW_GROUPS][1][1]:
            move_group(group, place - len(MAGIC))
            _number(group, groups.n)
            groups.add(group)
        rows += footer.fields[NUM_ROWS][1]
        _copy(path, footer.data_bytes, file)
        place += footer.data_bytes - len(MAGIC)
    whole[NUM_ROWS] = (I64, rows)
    whole[ROW_GROUPS] = (LIST, (STRUCT, groups))
    content = written_struct(whole)
    file.write(content)
    file.write(END.pack(len(content), MAGIC))


class _Footer:
    """The footer of a file. data_bytes: of what stands before it."""

    def __init__(self, path: str) -> None:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            file.seek(max(0, size - END.size))
            self.data_bytes = footer_start(size, file.read(), path)
            file.seek(self.data_bytes)
            self.fields: Struct = read_struct(file.read(size - END.size - self.data_bytes))

    def is_like(self, other: _Footer) -> bool:
        return all(
            self.fields.get(field) == other.fields.get(field)
            for field in (SCHEMA, KEYS_AND_VALUES, COLUMN_ORDERS)
        )


def _number(group: Struct, number: int) -> None:
    """Give a row group its own number, if it has one; most writers give none."""
    if ORDINAL in group:
        group[ORDINAL] = (I16, number)
        if number >= _MOST_ORDINALS:
            del group[ORDINAL]


def _copy(path: str, end: int, file: Any) -> None:
    """The bytes of a file behind its magic, up to its footer."""
    with open(path, "rb") as source:
        source.seek(len(MAGIC))
        left = end - len(MAGIC)
        while left:
            block = source.read(min(left, _COPIED_BYTES))
            if not block:
                raise ValueError(f"{path} ends before its footer")
            file.write(block)
            left -= len(block)
