"""The footer of a Parquet file: its fields, and how the places in it are moved.

    PAR1 | pages of all columns, row group by row group | footer | its length | PAR1

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from batchpool.bulk.thrift_compact import Struct, read_struct

MAGIC = b"PAR1"
END = struct.Struct("<I4s")  # the bytes of the footer, and the magic

# Fields of FileMetaData, RowGroup and ColumnChunk.
SCHEMA, NUM_ROWS, ROW_GROUPS, KEYS_AND_VALUES, COLUMN_ORDERS = 2, 3, 4, 5, 7
COLUMNS, GROUP_PLACE, ORDINAL = 1, 5, 7
META_DATA = 3
_PLACES_OF_CHUNK = (2, 4, 6)  # file_offset, offset_index_offset, column_index_offset
_PLACES_OF_COLUMN = (9, 10, 11, 14)  # of data, index and dictionary pages, and of a bloom filter


def footer_of(content: bytes) -> Struct:
    """The footer of a whole file. ValueError for what is none."""
    start = footer_start(len(content), content[-END.size :], "this")
    return read_struct(content[start : -END.size])


def footer_start(size: int, end: bytes, name: str) -> int:
    """Where the footer of a file of this size begins. end: the last bytes of the file."""
    length, magic = END.unpack(end) if len(end) == END.size else (0, b"")
    start: int = size - END.size - length
    if magic != MAGIC or start < len(MAGIC):
        raise ValueError(f"{name} is no Parquet file")
    return start


def move_group(group: Struct, by: int) -> None:
    """The places in a row group that stands so many bytes further on now."""
    _add(group, (GROUP_PLACE,), by)
    for chunk in group[COLUMNS][1][1]:
        move_chunk(chunk, by)


def move_chunk(chunk: Struct, by: int) -> None:
    """As `move_group`, of one column of it."""
    _add(chunk, _PLACES_OF_CHUNK, by)
    _add(chunk[META_DATA][1], _PLACES_OF_COLUMN, by)


def _add(fields: Struct, places: Sequence[int], by: int) -> None:
    for field in places:
        kind, place = fields.get(field, (0, 0))
        if place:  # 0 stands for none
            fields[field] = (kind, place + by)
