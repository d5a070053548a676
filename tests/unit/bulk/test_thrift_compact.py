"""Structs of Thrift's compact protocol are read and written bit for bit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.bulk.thrift_compact import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    WrittenStructs,
    read_struct,
    written_struct,
)

LEAVES = (BYTE, I16, I32, I64, DOUBLE, BINARY)
_VALUES: dict[int, st.SearchStrategy[Any]] = {
    BYTE: st.integers(0, 255),
    I16: st.integers(-(2**15), 2**15 - 1),
    I32: st.integers(-(2**31), 2**31 - 1),
    I64: st.integers(-(2**63), 2**63 - 1),
    DOUBLE: st.binary(min_size=8, max_size=8),
    BINARY: st.binary(max_size=200),
    TRUE: st.none(),
    FALSE: st.none(),
}


def of(kind: int) -> st.SearchStrategy[tuple[int, Any]]:
    return _VALUES[kind].map(lambda value: (kind, value))


def structs(depth: int) -> st.SearchStrategy[Any]:
    kinds = [of(kind) for kind in _VALUES]
    if depth:
        kinds += [lists(depth), maps(), structs(depth - 1).map(lambda one: (STRUCT, one))]
    numbers = st.lists(st.integers(1, 300), unique=True, max_size=6).map(sorted)
    return numbers.flatmap(
        lambda fields: st.tuples(*(st.one_of(kinds) for _ in fields)).map(
            lambda values: dict(zip(fields, values, strict=True))
        )
    )


def lists(depth: int) -> st.SearchStrategy[Any]:
    def of_elements(inner: int) -> st.SearchStrategy[Any]:
        one = structs(depth - 1) if inner == STRUCT else _VALUES[inner]
        return st.tuples(
            st.sampled_from((LIST, SET)),
            st.lists(one, max_size=20).map(lambda values: (inner, values)),
        )

    return st.sampled_from((*LEAVES, STRUCT)).flatmap(of_elements)


def maps() -> st.SearchStrategy[Any]:
    def of_pairs(kinds: tuple[int, int]) -> st.SearchStrategy[Any]:
        pairs = st.lists(st.tuples(*(_VALUES[kind] for kind in kinds)), max_size=3)
        return pairs.map(lambda found: (MAP, (kinds if found else (0, 0), found)))

    return st.tuples(st.sampled_from(LEAVES), st.sampled_from(LEAVES)).flatmap(of_pairs)


@given(structs(2))
def test_what_is_written_is_read(struct: Any) -> None:
    content = written_struct(struct)
    assert read_struct(content) == struct
    assert read_struct(content + b"what follows") == struct


@given(st.lists(structs(1), max_size=20))
def test_structs_that_are_written_one_by_one_are_a_list(each: Any) -> None:
    written = WrittenStructs()
    for struct in each:
        written.add(struct)
    assert written.n == len(each)
    assert written_struct({4: (LIST, (STRUCT, written))}) == written_struct(
        {4: (LIST, (STRUCT, each))}
    )


@given(structs(1))
def test_every_shorter_content_is_refused(struct: Any) -> None:
    content = written_struct(struct)
    for size in range(len(content)):
        with pytest.raises(ValueError, match="the metadata"):
            read_struct(content[:size])


@pytest.mark.parametrize(
    ("struct", "content"),
    [
        ({}, "00"),
        ({1: (I32, 0), 2: (I32, -1), 3: (I64, 150)}, "1500 1501 16ac02 00"),
        ({1: (TRUE, None), 17: (FALSE, None)}, "11 0222 00"),
        ({4: (BINARY, b"abc")}, "48 03616263 00"),
        ({1: (LIST, (BYTE, [1, 2]))}, "19 23 0102 00"),
        ({1: (LIST, (I32, [0] * 15))}, "19 f50f" + "00" * 15 + "00"),
        ({1: (STRUCT, {1: (I16, 1)}), 2: (MAP, ((0, 0), []))}, "1c 1402 00 1b00 00"),
    ],
)
def test_the_bytes_are_those_of_the_specification(struct: Any, content: str) -> None:
    assert written_struct(struct) == bytes.fromhex(content)
    assert read_struct(bytes.fromhex(content)) == struct


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown type 13"):
        read_struct(b"\x1d\x00")


def test_the_metadata_of_a_parquet_file_comes_back_as_it_was() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1, None], "b": [[1.5], []], "c": ["x", "y"], "d": [True, False]})
    pq.write_table(table, sink, write_page_index=True, write_page_checksum=True)
    whole = sink.getvalue().to_pybytes()
    length = int.from_bytes(whole[-8:-4], "little")
    footer = whole[-8 - length : -8]
    assert written_struct(read_struct(footer)) == footer
