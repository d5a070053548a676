"""CSV and TSV of bulk runs: vectors, separators, files that are something else, sloppy quotes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from batchpool.bulk.writers import writer_of
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import Tensor
from tests.unit.bulk.files import Run, lines, texts, write


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)  # it stands in the names of tests, which are the same


def test_a_vector_has_a_column_for_each_element(run: Run) -> None:
    write("in.jsonl", '{"x": [1, 2.5], "id": 7}\n{"x": [3, 4], "id": 8}\n')
    assert run("double", "in.jsonl", "-o", "out.csv", "--keep", "id")[0] == 0
    assert Path("out.csv").read_text() == "id,y_0,y_1\n7,2.0,5.0\n8,6.0,8.0\n"
    words = ("double", "out.csv", "-o", "again.npy", "--map", "x=y_0+y_1")
    assert run(*words)[0] == 0
    assert np.load("again.npy").tolist() == [[4, 10], [12, 16]]


def test_rows_of_their_own_sizes_are_json_in_a_cell(run: Run) -> None:
    write("in.jsonl", '{"ids": [1, 2, 3], "tags": {"a": [1]}}\n{"ids": [], "tags": "b"}\n')
    assert run("next", "in.jsonl", "-o", "out.csv", "--keep", "tags")[0] == 0
    assert Path("out.csv").read_text() == 'tags,ids\n"{""a"":[1]}","[2,3,4]"\nb,[]\n'
    assert run("next", "out.csv", "-o", "again.jsonl")[0] == 0
    assert lines("again.jsonl") == [{"ids": [3, 4, 5]}, {"ids": []}]


def test_several_dimensions_are_json_and_bad_rows_are_left_out(run: Run) -> None:
    writer = writer_of("csv", [Tensor("m", "float32", (2, 2))], [])
    with open("part", "wb") as file:
        writer.write(file, {"m": np.array([[[1, 2], [3, np.nan]]], np.float32)}, 1)
    assert Path("part").read_text() == '"[[1.0,2.0],[3.0,null]]"\n'
    write("in.jsonl", '{"x": [1, 2]}\n{"x": [1]}\n')
    assert run("double", "in.jsonl", "-o", "out.csv")[0] == 3
    assert Path("out.csv").read_text() == "y_0,y_1\n2.0,4.0\n"


def test_a_column_that_would_be_there_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'y_1' twice"):
        writer_of("csv", [Tensor("y", "float32", (2,))], ["y_1"])


def test_tabs_in_and_out(run: Run) -> None:
    write("in.tsv", "a\tb\tnote\n1\t2\tx,y\n3\t4\t\n5\t6\n")
    assert run("add", "in.tsv", "-o", "out.tsv", "--keep", "note")[0] == 3
    assert Path("out.tsv").read_text() == "note\tsum\nx,y\t3\n\t7\n"
    (bad,) = lines("out.tsv.errors.jsonl")
    assert (bad["source"], bad["input"]) == ("in.tsv:4", "5\t6")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("semi.csv", "id;text\n1;a\n", "is one column; values between ',' were expected"),
        ("semi.csv", "id;text\n1;a\n", "between ';', which no format here reads"),
        ("tabs.csv", "id\ttext\n1\ta\n", "--format tsv reads them"),
        ("commas.tsv", "id,text\n1,a\n", "--format csv reads them"),
        ("wide.csv", "text\na\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8 wide.csv"),
        ("twice.csv", packed(packed(b"text\na\n")), "is packed twice"),
        ("torn.csv.gz", packed(b"text\na\n")[:-6], "is no whole gzip file"),
        ("torn.jsonl", packed(b'{"text": "a"}\n')[:12], "is no whole gzip file"),
        ("inner.jsonl.gz", packed(b"PAR1rest"), "--format parquet reads it"),
        ("book.csv", b"PK\x03\x04rest", "a workbook"),
        ("table.jsonl", b"PAR1rest", "--format parquet reads it"),
        ("latin.csv", b"t\xe9xt\na\n", "its first line is no UTF-8"),
        ("open.csv", b'"text\na\n', "open.csv:1: this is no CSV"),
    ],
)
def test_a_file_that_is_something_else_is_refused(
    run: Run, name: str, content: str | bytes, text: str
) -> None:
    write(name, content)
    status, said = run("echo", name, "-o", "out.jsonl")
    assert (status, text in said) == (1, True), said
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.NDJSON.GZ", "in.jsonl"])
def test_packed_lines_are_unpacked_and_a_run_goes_on_in_them(run: Run, name: str) -> None:
    write(name, packed(b"\xef\xbb\xbf" + texts(40).encode()))

    def stop(number: int) -> None:
        if number == 6:
            raise KeyboardInterrupt

    words = ("echo", name, "-o", "out.jsonl", "--chunk-rows", "8")
    assert run(*words, at_submit=stop)[0] == 130
    assert run(*words)[0] == 0
    assert [row["text"] for row in lines("out.jsonl")] == [str(i) for i in range(40)]


def test_packed_tables_are_unpacked(run: Run) -> None:
    for name, sign in (("in.csv.gz", ","), ("in.tsv.gz", "\t")):
        write(name, packed(f"a{sign}b\n1{sign}2\n".encode()))
        assert run("add", name, "-o", f"{name}.jsonl")[0] == 0
        assert lines(f"{name}.jsonl") == [{"sum": 3}]


@pytest.mark.parametrize("name", ["rows.json", "book.xlsx", "frame.PKL"])
def test_a_table_of_no_known_format_is_not_taken_for_a_row(run: Run, name: str) -> None:
    write(name, "[]")
    status, said = run("echo", name, "-o", "out.jsonl")
    assert (status, "--format files makes it one row" in said) == (2, True), said
    assert ("--format jsonl reads it" in said) is name.endswith(".json")
    assert run("echo", name, "--format", "files", "-o", "out.jsonl")[0] == 0


def test_an_archive_is_not_said_to_be_lines(run: Run) -> None:
    write("arrays.npz", "PK")
    status, said = run("double", "arrays.npz", "-o", "out.npy")
    assert (status, "is packed" in said, "zcat" in said) == (2, True, False)


def test_a_quote_that_is_never_closed_costs_its_line_and_is_told_with_its_place(run: Run) -> None:
    write("in.csv", 'text,n\n"a\nb",1\n"c"d,2\ne,3\n"open,4\nf,5\n')
    assert run("echo", "in.csv", "-o", "out.jsonl")[0] == 3
    assert [row["text"] for row in lines("out.jsonl")] == ["a\nb", "e"]
    bad = lines("out.jsonl.errors.jsonl")
    assert [(row["row"], row["source"]) for row in bad] == [(1, "in.csv:4"), (3, "in.csv:6")]
    assert all("the line is no CSV" in row["error"] for row in bad)


def test_digits_that_no_float_holds_are_no_infinity(run: Run) -> None:
    write("in.csv", "a\n1e400\n-inf\n")
    assert run("half", "in.csv", "-o", "out.npy")[0] == 3
    assert np.isnan(np.load("out.npy")[0])
    assert np.load("out.npy")[1] == -np.inf
    (bad,) = lines("out.npy.errors.jsonl")
    assert "'1e400' does not fit" in bad["error"]


def test_whole_numbers_as_data_frames_write_them(run: Run) -> None:
    write("in.csv", "a,b\n1.0,2\n-3.0,+4\n1_0,1\n1.5,1\n1e3,1\n")
    assert run("add", "in.csv", "-o", "out.csv")[0] == 3
    assert Path("out.csv").read_text() == "sum\n3\n1\n1001\n"
    bad = lines("out.csv.errors.jsonl")
    assert [row["input"]["a"] for row in bad] == ["1_0", "1.5"]
