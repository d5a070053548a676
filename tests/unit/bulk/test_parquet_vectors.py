"""Vectors of one size in Parquet: written without a look at each element, read by anybody."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchpool.bulk import parquet_vectors
from batchpool.bulk.table_writers import ParquetWriter
from batchpool.core.tensors.spec import Tensor

CHANCE = np.random.default_rng(7)
LENGTH = Tensor("length", "int64")


def vectors(dtype: str, n: int, size: int) -> Any:
    if dtype.startswith("float"):
        found = CHANCE.standard_normal((n, size)).astype(dtype)
        found.reshape(-1)[:3] = (np.nan, -0.0, np.inf)[: found.size]
        return found
    info = np.iinfo(dtype)
    found = CHANCE.integers(info.min, info.max, (n, size), dtype, endpoint=True)
    found.reshape(-1)[:2] = (info.min, info.max)[: found.size]
    return found


def written(tensors: list[Tensor], kept: list[str], columns: dict[str, Any]) -> io.BytesIO:
    sink = io.BytesIO()
    writer = ParquetWriter(tensors, kept)
    writer.write(sink, columns, len(next(iter(columns.values()))))
    return sink


def read(sink: io.BytesIO, name: str, size: int) -> Any:
    column = pq.read_table(sink)[name].combine_chunks()
    return column.flatten().to_numpy().reshape(-1, size)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize(
    ("n", "size"), [(1, 1), (1, 9), (7, 3), (300, 64), (1000, 384), (3, 10**6)]
)
def test_vectors_come_back_bit_for_bit(dtype: str, n: int, size: int) -> None:
    """In one page and in several; with numbers of elements that fill no byte of bits."""
    rows = vectors(dtype, n, size)
    sink = written([Tensor("y", dtype, (size,))], [], {"y": rows})
    assert read(sink, "y", size).tobytes() == rows.tobytes()
    facts = pq.ParquetFile(sink).metadata.row_group(0).column(0)
    assert (facts.num_values, facts.compression) == (n * size, "SNAPPY")


def test_it_has_the_columns_of_the_writer_of_any_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors before, between and behind columns that have pages of their own."""
    n = 500
    kept = {
        "id": pa.chunked_array([np.arange(n)]),
        "text": pa.chunked_array([[f"text {at % 5}" for at in range(n)]]),
        "list": pa.chunked_array([pa.array([[at] * (at % 3) for at in range(n)])]),
        "maybe": pa.chunked_array([[None if at % 3 else {"a": at} for at in range(n)]]),
        "ready": pa.chunked_array([pa.array([[1.5, 2.5]] * n, pa.list_(pa.float32(), 2))]),
    }
    tensors = [
        Tensor("a", "float32", (8,)), LENGTH, Tensor("b", "int64", (3,)),
        Tensor("c", "float16", (2,)), Tensor("d", "bool", (5,)), Tensor("e", "float32", (2, 2)),
        Tensor("f", "bytes", (2,), max_bytes=4), Tensor("g", "float64", (1,)),
    ]  # fmt: skip
    outputs = {
        "a": vectors("float32", n, 8), "length": np.arange(n), "b": vectors("int64", n, 3),
        "c": vectors("float16", n, 2), "d": CHANCE.random((n, 5)) < 0.5,
        "e": vectors("float32", n, 4).reshape(n, 2, 2), "f": np.array([[b"x", b"yz"]] * n, object),
        "g": vectors("float64", n, 1),
    }  # fmt: skip
    found = written(tensors, list(kept), {**kept, **outputs})
    monkeypatch.setattr("batchpool.bulk.table_writers.VECTOR_TYPES", {})
    usual = written(tensors, list(kept), {**kept, **outputs})
    one, other = pq.ParquetFile(found), pq.ParquetFile(usual)
    assert one.schema.equals(other.schema)
    assert one.schema_arrow.equals(other.schema_arrow, check_metadata=True)
    assert one.metadata.metadata == other.metadata.metadata
    for name in (*kept, *outputs):
        own, theirs = (pa.concat_arrays(f.read([name])[name].chunks) for f in (one, other))
        assert own.to_pylist().__repr__() == theirs.to_pylist().__repr__()
    group, usual_group = one.metadata.row_group(0), other.metadata.row_group(0)
    assert (group.num_rows, group.num_columns) == (n, usual_group.num_columns)
    places = [group.column(at) for at in range(group.num_columns)]
    start = 4
    for at, facts in enumerate(places):
        theirs = usual_group.column(at)
        assert facts.path_in_schema == theirs.path_in_schema
        assert facts.num_values == theirs.num_values
        assert (facts.dictionary_page_offset or facts.data_page_offset) == start
        start += facts.total_compressed_size


@pytest.mark.parametrize("rows_in_a_page", [1, 7, 100])
def test_pages_end_with_whole_vectors(rows_in_a_page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_vectors, "_PAGE_BYTES", rows_in_a_page * 3 * 4 + 5)
    rows = vectors("float32", 50, 3)
    sink = written([Tensor("y", "float32", (3,)), LENGTH], [], {"y": rows, "length": range(50)})
    assert read(sink, "y", 3).tobytes() == rows.tobytes()
    assert [len(batch) for batch in pq.ParquetFile(sink).iter_batches(9)] == [9, 9, 9, 9, 9, 5]


def test_the_same_rows_are_the_same_bytes() -> None:
    rows = vectors("float32", 100, 16)
    tensors = [Tensor("y", "float32", (16,)), LENGTH]
    files = [
        written(tensors, [], {"y": given, "length": np.arange(100)}).getvalue()
        for given in (rows, np.asfortranarray(rows), rows.copy())
    ]
    assert files[0] == files[1] == files[2]


def test_no_rows_and_vectors_without_elements_are_written_as_any() -> None:
    none = written([Tensor("y", "float32", (3,))], [], {"y": np.empty((0, 3), np.float32)})
    assert pq.read_table(none).num_rows == 0
    empty = written([Tensor("y", "float32", (0,))], [], {"y": np.empty((2, 0), np.float32)})
    assert pq.ParquetFile(empty).metadata.num_rows == 2
