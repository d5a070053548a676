"""Texts of Parquet and Arrow go to the model as they stand in the columns of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.bulk.files import Run, lines


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_nulls_and_long_texts_are_bad_rows_and_no_others(run: Run, kind: str, form: str) -> None:
    """In batches of the file that end elsewhere than chunks and windows."""
    texts: list[Any] = [f"é{i}" * (i % 9) for i in range(40)]
    texts[3] = texts[7] = texts[8] = texts[39] = None
    texts[21] = "x" * 65
    parts = [pa.array(texts[at : at + 7], "string").cast(kind) for at in range(0, 40, 7)]
    table = pa.table({"text": pa.chunked_array(parts), "id": range(40)})
    if form == "parquet":
        pq.write_table(table, "in.parquet", row_group_size=11)
    else:
        with pa.OSFile("in.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    flags = ("-o", "out.parquet", "--chunk-rows", "9", "--keep", "id")
    assert run("echo", f"in.{form}", *flags)[0] == 3
    found = pq.read_table("out.parquet").to_pydict()
    good = [at for at in range(40) if at not in (3, 7, 8, 21, 39)]
    assert found["id"] == good
    assert found["text"] == [texts[at].encode() for at in good]
    bad = lines("out.parquet.errors.jsonl")
    assert [row["row"] for row in bad] == [3, 7, 8, 21, 39]
    assert ["is null" in row["error"] for row in bad] == [True, True, True, False, True]
    assert "65 bytes" in bad[3]["error"]


def test_a_file_with_damaged_offsets_is_told_and_not_read(run: Run) -> None:
    offsets = np.arange(9, dtype=np.int32) * 4
    content = b"abcdefgh" * 4
    column = pa.Array.from_buffers(
        pa.string(), 8, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )
    table = pa.table({"text": column})
    with pa.OSFile("in.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    whole = Path("in.arrow").read_bytes()
    assert whole.count(offsets.tobytes()) == 1
    offsets[5] = 2**30
    Path("in.arrow").write_bytes(
        whole.replace((np.arange(9, dtype=np.int32) * 4).tobytes(), offsets.tobytes())
    )
    status, said = run("echo", "in.arrow", "-o", "out.jsonl")
    assert (status, "'text' is a damaged column of Arrow" in said) == (1, True), said
    assert not Path("out.jsonl").exists()
