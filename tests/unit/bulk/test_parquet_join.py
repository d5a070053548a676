"""Parquet files joined without reading a value are one file that any reader takes."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchpool.bulk import parquet_join
from batchpool.bulk.parquet_join import are_alike, join_parquet
from batchpool.bulk.thrift_compact import I16
from tests.unit.bulk.files import Run, texts, write

CHANCE = np.random.default_rng(3)


def table_of(n: int, first: int) -> Any:
    """Numbers, texts that repeat, vectors, nulls, lists and structs."""
    numbers = np.arange(first, first + n)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(CHANCE.random(4 * n, np.float32)), 4)
    return pa.table(
        {
            "id": numbers,
            "kind": pa.array([f"kind {at % 3}" for at in numbers], pa.large_string()),
            "vector": vectors,
            "maybe": pa.array([None if at % 2 else float(at) for at in numbers], pa.float64()),
            "list": pa.array([[int(at)] * (at % 4) for at in numbers], pa.list_(pa.int32())),
            "struct": pa.array([{"a": int(at), "b": "x"} for at in numbers]),
        }
    )


def written(folder: Path, tables: list[Any], **options: Any) -> list[str]:
    paths = [str(folder / f"{at}.parquet") for at in range(len(tables))]
    for table, path in zip(tables, paths, strict=True):
        pq.write_table(table, path, **options)
    return paths


def joined(paths: list[str]) -> io.BytesIO:
    sink = io.BytesIO()
    join_parquet(paths, sink)
    sink.seek(0)
    return sink


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none", "use_dictionary": False, "write_statistics": False},
        {"compression": "zstd", "write_page_index": True, "write_page_checksum": True},
        {"data_page_version": "2.0", "data_page_size": 256, "row_group_size": 40},
    ],
)
def test_the_rows_are_those_of_all_files(tmp_path: Path, options: dict[str, Any]) -> None:
    tables = [table_of(n, 1000 * n) for n in (100, 1, 57)]
    whole = joined(written(tmp_path, tables, **options))
    expected = pa.concat_tables(tables)
    file = pq.ParquetFile(whole, page_checksum_verification=True)
    assert file.read().equals(expected)
    assert file.metadata.num_rows == 158
    groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
    assert sum(group.num_rows for group in groups) == 158
    found = pq.read_table(whole, filters=[("id", ">=", 57_000), ("id", "<", 57_003)])
    assert found["id"].to_pylist() == [57_000, 57_001, 57_002]


def test_it_is_the_file_of_one_writer(tmp_path: Path) -> None:
    """To the byte, where that writes a row group a file."""
    tables = [table_of(n, n) for n in (30, 20, 10, *[1] * 20)]
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    assert joined(written(tmp_path, tables)).getvalue() == sink.getvalue()


def test_files_of_other_columns_or_types_are_not_alike(tmp_path: Path) -> None:
    tables = [
        pa.table({"a": pa.array([1], pa.int64())}),
        pa.table({"a": pa.array([2], pa.int64())}),
        pa.table({"a": pa.array([1], pa.int32())}),
        pa.table({"b": pa.array([1], pa.int64())}),
        pa.table({"a": pa.array([1], pa.int64())}, metadata={"k": "v"}),
    ]
    first, *others = written(tmp_path, tables)
    assert [are_alike([first, other]) for other in others] == [True, False, False, False]
    assert are_alike([first])


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"PAR1\xff\0\0\0PAR1", b"x" * 99])
def test_what_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"no Parquet file|the metadata"):
        are_alike([str(path)])


def test_a_footer_has_no_ordinal_that_it_has_no_room_for(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [table_of(3, 0)])
    for number, ordinal in ((2**15 - 1, 2**15 - 1), (2**15, None)):
        (group,) = parquet_join._Footer(path).fields[4][1][1]
        group[7] = (I16, 0)
        parquet_join._move(group, 0, number)
        assert group.get(7, (0, None))[1] == ordinal


def test_the_parts_of_a_run_are_files_of_parquet(run: Run, tmp_path: Path) -> None:
    """Whoever stops a run may read what is there; the joined file has their row groups."""
    write("in.jsonl", texts(20))
    flags = ("echo", "in.jsonl", "-o", "out.parquet", "--chunk-rows", "4", "--keep", "text")
    flags = (*flags, "--outputs", "length")

    def stop(number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    assert run(*flags, at_submit=stop)[0] == 130
    part = pq.read_table("out.parquet.parts/part-00000000.rows")
    assert part.to_pydict() == {"text": ["0", "1", "2", "3"], "length": [1] * 4}
    assert run(*flags)[0] == 0
    file = pq.ParquetFile("out.parquet")
    assert file.num_row_groups == 5
    assert file.read()["text"].to_pylist() == [str(at) for at in range(20)]
    assert run(*flags[:3], "again.parquet", *flags[4:])[0] == 0
    assert Path("again.parquet").read_bytes() == Path("out.parquet").read_bytes()


def test_parts_whose_kept_columns_differ_in_type_are_read_and_written_anew(run: Run) -> None:
    """Also in a folder that other programs take for a column and its value."""
    os.mkdir("text=1")
    kept: list[Any] = [1, 2, "three", None, 5.5]
    write("in.jsonl", "".join(json.dumps({"text": "t", "k": k}) + "\n" for k in kept))
    flags = ("-o", "text=1/out.parquet", "--chunk-rows", "1", "--keep", "k")
    assert run("echo", "in.jsonl", *flags)[0] == 0
    found = pq.ParquetFile("text=1/out.parquet")
    assert found.num_row_groups == 5
    assert found.read().to_pydict() == {
        "k": ["1", "2", "three", None, "5.5"], "text": [b"t"] * 5, "length": [1] * 5,
    }  # fmt: skip


def test_a_column_that_parquet_has_no_place_for_is_told_at_the_first_part(run: Run) -> None:
    column = pa.array([(1, 2, 3)] * 4, pa.month_day_nano_interval())
    table = pa.table({"text": ["a", "b", "c", "d"], "span": column})
    with pa.OSFile("in.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    status, said = run("echo", "in.arrow", "-o", "out.parquet", "--keep", "span")
    assert (status, "'span' month_day_nano_interval" in said) == (1, True), said
    assert "cannot be written as parquet" in said
    assert not Path("out.parquet.parts").exists()
    assert run("echo", "in.arrow", "-o", "out.arrow", "--keep", "span")[0] == 0


def test_a_file_that_ends_before_its_footer_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"PAR1" + b"x" * 20)
    with pytest.raises(ValueError, match="x ends before its footer"):
        parquet_join._copy(str(tmp_path / "x"), 25, io.BytesIO())


def test_one_file_alone_stays_as_it_is(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [table_of(3, 0)])
    assert joined([path]).getvalue() == Path(path).read_bytes()
