"""Columns of one number each become the vector that a model takes: `--map x=a+b`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.bulk.files import Run, lines, write


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "arrow"])
def test_columns_are_joined_in_the_order_of_the_map(run: Run, form: str) -> None:
    table = pa.table({"b": [1, 2, 3], "id": [7, 8, 9], "a": [0.5, 1.5, 2.5]})
    match form:
        case "csv":
            write("in.csv", "b,id,a\n1,7,0.5\n2,8,1.5\n3,9,2.5\n")
        case "jsonl":
            write("in.jsonl", "".join(f"{row}\n".replace("'", '"') for row in table.to_pylist()))
        case "parquet":
            pq.write_table(table, "in.parquet")
        case "arrow":
            with pa.OSFile("in.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
                file.write_table(table)
    flags = ("-o", "out.jsonl", "--map", "x=a+b", "--keep", "id")
    assert run("double", f"in.{form}", *flags)[0] == 0
    rows = [(int(row["id"]), row["y"]) for row in lines("out.jsonl")]
    assert rows == [(7, [1, 2]), (8, [3, 4]), (9, [5, 6])]


def test_a_row_without_one_of_them_is_bad_alone_and_says_which(run: Run) -> None:
    write("in.csv", "a,b\n1,2\n1,\n,4\n3,x\n5,6\n")
    assert run("double", "in.csv", "-o", "out.jsonl", "--map", "x=a+b")[0] == 3
    assert lines("out.jsonl") == [{"y": [2, 4]}, {"y": [10, 12]}]
    bad = [(row["row"], row["error"]) for row in lines("out.jsonl.errors.jsonl")]
    assert [row for row, _ in bad] == [1, 2, 3]
    assert [error.partition(" is null")[0] for _, error in bad[:2]] == ["column 'b'", "column 'a'"]
    assert "input 'x' (column 'a+b')" in bad[2][1]


def test_a_column_of_that_very_name_goes_first(run: Run) -> None:
    write("in.jsonl", '{"a+b": [1, 2], "a": 8, "b": 9}\n')
    assert run("double", "in.jsonl", "-o", "out.jsonl", "--map", "x=a+b")[0] == 0
    assert lines("out.jsonl") == [{"y": [2, 4]}]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("double", "x=a+c"), "--map x=a+c: there is no column 'c'; "),
        (("double", "x=a+b+a"), "--map x=a+b+a: 3 columns, and input 'x' takes 2 elements a row"),
        (("next", "ids=" + "a+" * 8 + "b"), "9 columns, and input 'ids' takes at most 8 elements"),
        (("echo", "text=a+b"), "rows of input 'text' have the shape []; several columns make a"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_what_cannot_be_joined_is_told_before_a_row_runs(
    run: Run, words: tuple[str, str], text: str, form: str
) -> None:
    write("in.csv", "a,b\n1,2\n")
    write("in.jsonl", '{"a": 1, "b": 2}\n')
    status, said = run(words[0], f"in.{form}", "-o", "out.jsonl", "--map", words[1])
    assert (status, text in said) == (2, True)
