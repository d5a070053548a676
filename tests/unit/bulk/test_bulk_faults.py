"""Faults of files, disks and rows in a bulk run: each is told, and costs no more than it must."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchpool.bulk import lines as lines_module
from batchpool.bulk import parts as parts_module
from batchpool.bulk.formats import FORMATS, OUTPUTS
from batchpool.bulk.parts import Parts
from batchpool.cli.run import IN_FORMATS, OUT_FORMATS
from tests.unit.bulk.files import Run, lines, texts, write


def lengths(path: str) -> list[int]:
    return [row["length"] for row in lines(path)]


def test_the_command_line_knows_every_format() -> None:
    assert tuple(FORMATS) == IN_FORMATS
    assert OUTPUTS == OUT_FORMATS


def test_a_line_that_is_no_json_costs_itself_alone(run: Run) -> None:
    write("in.jsonl", '{"text": "a"}\nnonsense\n[1]\n{"text": NaN}\n{"text": "é"}\n{"text": "b"}')
    status, _ = run("echo", "in.jsonl", "-o", "out.jsonl")
    assert status == 3
    assert [row["text"] for row in lines("out.jsonl")] == ["a", "é", "b"]
    bad = lines("out.jsonl.errors.jsonl")
    assert [(row["row"], row["source"]) for row in bad] == [
        (1, "in.jsonl:2"), (2, "in.jsonl:3"), (3, "in.jsonl:4"),
    ]  # fmt: skip
    assert "invalid JSON" in bad[0]["error"]
    assert bad[0]["input"] == "nonsense"
    assert "object {column: value} was expected" in bad[1]["error"]


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n',
        b'{"text": "a"}\r\n{"text": "b"}\r\n',
        b'{"text": "a"}\n\n   \n{"text": "b"}',
    ],
    ids=["byte order mark", "crlf", "empty lines and no end"],
)
def test_lines_as_other_programs_write_them(run: Run, content: bytes) -> None:
    write("in.jsonl", content)
    assert run("echo", "in.jsonl", "-o", "out.jsonl")[0] == 0
    assert [row["text"] for row in lines("out.jsonl")] == ["a", "b"]


def test_a_line_without_end_is_a_bad_row(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "_LONGEST_LINE_BYTES", 64)
    write("in.jsonl", '{"text": "' + "x" * 500 + '"}\n{"text": "b"}\n')
    assert run("echo", "in.jsonl", "-o", "out.jsonl")[0] == 3
    assert lengths("out.jsonl") == [1]
    assert "longer than" in lines("out.jsonl.errors.jsonl")[0]["error"]


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet", "in.npy"])
def test_an_input_without_rows_is_an_output_without_rows(run: Run, name: str) -> None:
    write("in.jsonl", "")
    write("in.csv", "x\n")
    pq.write_table(pa.table({"x": pa.array([], pa.list_(pa.float32()))}), "in.parquet")
    np.save("in.npy", np.empty((0, 2), np.float32))
    for out in ("out.jsonl", "out.npy", "out.parquet", "out.arrow"):
        assert run("double", name, "-o", out)[0] == 0
    assert Path("out.jsonl").read_bytes() == b""
    assert np.load("out.npy").shape == (0, 2)
    assert pq.read_table("out.parquet").schema.names == ["y"]


def test_a_value_that_does_not_fit_is_named_by_row_and_column(run: Run) -> None:
    values: list[Any] = [1, 2, "three", 4.5, None, 2**40, [1], 8]
    write("in.jsonl", "".join(json.dumps({"n": v, "b": 1}) + "\n" for v in values))
    status, _ = run("add", "in.jsonl", "-o", "out.jsonl", "--map", "a=n")
    assert status == 3
    assert [row["sum"] for row in lines("out.jsonl")] == [2, 3, 9]
    bad = lines("out.jsonl.errors.jsonl")
    assert [row["row"] for row in bad] == [2, 3, 4, 5, 6]
    assert all("'n'" in row["error"] for row in bad), bad


def test_nulls_and_types_of_tables(run: Run) -> None:
    pq.write_table(pa.table({"a": pa.array([1, None, 3], pa.int64())}), "in.parquet")
    assert run("add", "in.parquet", "-o", "out.jsonl", "--parameter", "factor=2")[0] == 3
    assert [row["sum"] for row in lines("out.jsonl")] == [16, 20]
    (bad,) = lines("out.jsonl.errors.jsonl")
    assert (bad["row"], bad["error"]) == (1, "column 'a' is null or missing; a value was expected")
    pq.write_table(pa.table({"a": ["x", "y"]}), "texts.parquet")
    status, said = run("add", "texts.parquet", "-o", "two.jsonl")
    assert status == 1
    assert "none of the first 2 rows can be run; the first, row 0: input 'a'" in said


def test_ragged_lists_are_rows_of_their_own_sizes_or_bad_ones(run: Run) -> None:
    write("in.jsonl", '{"ids": [1, 2]}\n{"ids": []}\n{"ids": [1,2,3,4,5,6,7,8,9]}\n{"ids": [5]}\n')
    assert run("next", "in.jsonl", "-o", "out.jsonl")[0] == 3
    assert [row["ids"] for row in lines("out.jsonl")] == [[2, 3], [], [6]]
    write("fixed.jsonl", '{"x": [1, 2]}\n{"x": [1]}\n{"x": [3, 4]}\n')
    assert run("double", "fixed.jsonl", "-o", "fixed.npy")[0] == 3
    y = np.load("fixed.npy")
    assert np.isnan(y[1]).all()
    assert y[[0, 2]].tolist() == [[2, 4], [6, 8]]


def test_bad_rows_are_filled_at_their_own_numbers(run: Run) -> None:
    write("in.jsonl", '{"x": [1, 2]}\n{"x": null}\n{"x": [3, 4]}\n{"x": [5]}\n')
    assert run("double", "in.jsonl", "-o", "out.npy")[0] == 3
    y = np.load("out.npy")
    assert np.isnan(y[[1, 3]]).all()
    assert y[[0, 2]].tolist() == [[2, 4], [6, 8]]


def test_columns_of_csv(run: Run) -> None:
    write("in.csv", b'\xef\xbb\xbfa,b,note\r\n1,2,x\r\n3,,y\r\n4,5\r\n6,1.5,z\r\n7,8,"q,""r"""\r\n')
    assert run("add", "in.csv", "-o", "out.csv", "--keep", "note")[0] == 3
    assert Path("out.csv").read_text() == 'note,sum\nx,3\n"q,""r""",15\n'
    bad = lines("out.csv.errors.jsonl")
    assert [(row["row"], row["source"]) for row in bad] == [
        (1, "in.csv:3"), (2, "in.csv:4"), (3, "in.csv:5"),
    ]  # fmt: skip
    assert bad[1]["error"] == "the line has 2 values; 3 were expected"
    write("latin.csv", b"a,b,note\n1,2,\xe9\n3,4,\xc3\xa9\n")
    assert run("add", "latin.csv", "-o", "latin.jsonl", "--keep", "note")[0] == 3
    assert [row["note"] for row in lines("latin.jsonl")] == ["é"]
    (bad,) = lines("latin.jsonl.errors.jsonl")
    assert (bad["error"], bad["input"]) == ("the line is no UTF-8", "1,2,\\udce9")
    write("vectors.csv", 'x\n"[1, 2]"\n"[3, 4.5]"\n')
    assert run("double", "vectors.csv", "-o", "v.npy")[0] == 0
    assert np.load("v.npy").tolist() == [[2, 4], [6, 9]]


def test_one_column_for_two_inputs_and_two_columns_for_one(run: Run) -> None:
    write("in.jsonl", '{"n": 4}\n{"n": 5}\n')
    assert run("add", "in.jsonl", "-o", "out.jsonl", "--map", "a=n,b=n")[0] == 0
    assert [row["sum"] for row in lines("out.jsonl")] == [8, 10]
    status, said = run("add", "in.jsonl", "-o", "two.jsonl", "--map", "a=n,a=m")
    assert (status, "'a' stands twice" in said) == (2, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("add", "in.csv", "-o", "o.csv", "--map", "a=z"), "there is no column 'z'; 'a', 'c' are"),
        (("add", "in.csv", "-o", "o.csv", "--map", "z=a"), "no input 'z'; it has 'a', 'b'"),
        (("add", "in.csv", "-o", "o.csv", "--map", "a"), "NAME=VALUE was expected"),
        (("add", "in.csv", "-o", "o.csv", "--keep", "z"), "there is no column 'z'"),
        (("add", "in.csv", "-o", "o.csv", "--outputs", "z"), "no output 'z'; it has 'sum'"),
        (("add", "in.csv", "-o", "o.csv", "--parameter", "z=1"), "no parameter 'z'"),
        (("echo", "in.csv", "-o", "o.csv"), "no column for the input 'text'"),
        (("echo", "in.csv", "-o", "o.npy", "--map", "text=a"), "a .npy file holds one output"),
        (("add", "in.csv", "-o", "o.txt"), "a name that ends in .jsonl"),
        (("add", "in.csv", "in.jsonl", "-o", "o.csv"), "inputs of several formats"),
        (("add", "-", "in.csv", "-o", "o.csv"), "is JSON Lines on stdin, alone"),
        (("no", "in.csv", "-o", "o.csv"), "there is no model 'no'"),
        (("add", "in.csv", "-o", "o.csv", "--chunk-rows", "0"), "not a whole number from 1"),
        (("add", "in.csv", "-o", ".", "--out-format", "csv"), "is a folder"),
    ],
)
def test_wrong_usage_is_told_at_once(run: Run, words: tuple[str, ...], text: str) -> None:
    write("in.csv", "a,c\n1,2\n")
    write("in.jsonl", "{}\n")
    status, said = run(*words)
    assert (status, text in said) == (2, True), said


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("no.jsonl", None, "cannot read no.jsonl: No such file"),
        ("torn.parquet", b"PAR1nonsense", "torn.parquet cannot be read"),
        ("torn.npy", b"\x93NUMPYnonsense", "torn.npy is no .npy file"),
        ("torn.arrow", b"nonsense", "torn.arrow cannot be read"),
        ("empty.csv", b"", "empty.csv is empty"),
        ("twice.csv", b"a,a\n1,2\n", "'a' stands twice"),
        ("no-such-folder/", None, "no such file or folder"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    run: Run, name: str, content: bytes | None, text: str
) -> None:
    if content is not None:
        write(name, content)
    status, said = run("add", name, "-o", "out.jsonl")
    assert (status, text in said) == (1, True), said


def test_an_output_that_exists_is_not_touched(run: Run) -> None:
    write("in.jsonl", texts(3))
    write("out.jsonl", "mine")
    status, said = run("echo", "in.jsonl", "-o", "out.jsonl")
    assert (status, "out.jsonl exists; --restart replaces it" in said) == (1, True)
    assert Path("out.jsonl").read_text() == "mine"
    assert run("echo", "in.jsonl", "-o", "out.jsonl", "--restart")[0] == 0
    assert lengths("out.jsonl") == [1, 1, 1]


def stopped(run: Run, *words: str) -> None:
    """A run that ends after a few of its parts."""

    def at_submit(number: int) -> None:
        if number == 9:
            raise KeyboardInterrupt

    status, said = run(*words, at_submit=at_submit)
    assert (status, "the same command goes on from the last part" in said) == (130, True), said


FLAGS = ("echo", "in.jsonl", "-o", "out.jsonl", "--chunk-rows", "8")


def test_an_input_that_changed_is_refused(run: Run) -> None:
    write("in.jsonl", texts(100))
    stopped(run, *FLAGS)
    write("in.jsonl", texts(101))
    status, said = run(*FLAGS)
    assert status == 1
    assert "out.jsonl.parts holds the parts of another run: " in said
    assert "in.jsonl had 1,490 bytes then and has 1,506 now. As it was before" in said
    os.rename("in.jsonl", "new.jsonl")
    status, said = run("echo", "new.jsonl", *FLAGS[2:])
    assert (status, f"the input was {os.path.abspath('in.jsonl')} then and is" in said) == (1, True)
    write("in.jsonl", texts(100))
    os.utime("in.jsonl", (1, 1))
    status, said = run(*FLAGS)
    assert (status, "in.jsonl was written again since" in said) == (1, True), said
    write("in.jsonl", texts(101))
    status, said = run(*FLAGS, "--restart")
    assert status == 0, said
    assert len(lines("out.jsonl")) == 101


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--keep", "text2"), "--keep was not given then and is text2 now"),
        (("--outputs", "length"), "--outputs was not given then and is length now"),
        (("--chunk-rows", "16"), "--chunk-rows was 8 then and is 16 now"),
    ],
)
def test_another_command_is_refused(run: Run, more: tuple[str, ...], text: str) -> None:
    write("in.jsonl", texts(100))
    stopped(run, *FLAGS)
    status, said = run(*FLAGS, *more)
    assert (status, text in said) == (1, True), said


def test_a_run_without_a_part_keeps_no_other_command_away(run: Run) -> None:
    write("in.jsonl", '{"text": 1}\n{"text": 2}\n')
    assert "none of the first 2 rows" in run("echo", "in.jsonl", "-o", "out.jsonl")[1]
    os.mkdir("out.jsonl.parts")  # not there, unless a run was killed
    write("out.jsonl.parts/manifest.json", '{"chunk_rows": 8}')
    write("in.jsonl", '{"t": "a"}\n{"t": "b"}\n')
    status, said = run("echo", "in.jsonl", "-o", "out.jsonl", "--map", "text=t", "--keep", "t")
    assert (status, lengths("out.jsonl")) == (0, [1, 1]), said


def test_what_is_done_is_not_done_again_and_the_whole_is_the_same(run: Run) -> None:
    write("in.jsonl", texts(100))
    stopped(run, *FLAGS)
    done = len(list(Path("out.jsonl.parts").glob("*.json"))) - 1
    assert done >= 1
    windows: list[int] = []
    assert run(*FLAGS[:-2], at_submit=windows.append)[0] == 0  # the chunk's rows are remembered
    assert len(windows) == (100 - 8 * done + 3) // 4
    again = Path("out.jsonl").read_bytes()
    assert run(*FLAGS, "--restart")[0] == 0
    assert Path("out.jsonl").read_bytes() == again


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_stops_the_run_and_keeps_the_parts(
    run: Run, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write("in.jsonl", texts(100))
    real, calls = getattr(os, call), [0]

    def fails(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(parts_module.os, call, fails)
        status, said = run(*FLAGS)
    assert status == 1
    assert "cannot write to out.jsonl.parts: No space left on device; make room" in said
    assert not list(Path("out.jsonl.parts").glob("*.tmp")), "a full disk gets its room back"
    for number, part in enumerate(sorted(Path("out.jsonl.parts").glob("*.rows"))):
        assert lines(str(part))[0]["text"] == f"{8 * number}"
    assert run(*FLAGS)[0] == 0
    assert lengths("out.jsonl") == [len(f"{i}") for i in range(100)]


def test_a_part_that_somebody_changed_is_not_taken(run: Run) -> None:
    write("in.jsonl", texts(100))
    stopped(run, *FLAGS)
    part = Path("out.jsonl.parts/part-00000000.rows")
    part.write_bytes(part.read_bytes().replace(b'"length":1', b'"length":2', 1))
    status, said = run(*FLAGS)
    assert (status, "is not as it was written" in said) == (1, True)
    part.unlink()
    assert run(*FLAGS)[0] == 0
    assert lengths("out.jsonl") == [len(f"{i}") for i in range(100)]


def test_two_runs_do_not_share_their_parts(run: Run) -> None:
    write("in.jsonl", texts(10))
    other = Parts("out.jsonl")
    other.open({"chunk_rows": None}, 8, restart=False, goes_on=True)
    status, said = run(*FLAGS)
    assert (status, "another run is writing to out.jsonl.parts now" in said) == (1, True)
    other.close()


def test_a_bad_row_with_stop_is_told_with_its_place(run: Run) -> None:
    write("in.jsonl", texts(20) + '{"text": "bad"}\n')
    status, said = run(*FLAGS, "--on-error", "stop")
    assert (status, "in.jsonl:21 (row 20): no such text" in said) == (1, True), said
    assert len(list(Path("out.jsonl.parts").glob("*.rows"))) == 2


def test_a_place_stands_once_in_a_message(run: Run) -> None:
    pq.write_table(pa.table({"x": [[1.0, 2.0]] * 9 + [[1.0]]}), "in.parquet")
    flags = ("-o", "out.jsonl", "--chunk-rows", "4")
    status, said = run("double", "in.parquet", *flags, "--on-error", "stop")
    assert (status, "row 9: input 'x'" in said, said.count("row 9")) == (1, True, 1), said
    assert run("double", "in.parquet", *flags)[0] == 3
    assert lines("out.jsonl.errors.jsonl")[0]["error"].startswith("input 'x'")
    write("in.jsonl", '{"x": [1, 2]}\n' * 5 + '{"x": 1}\n')
    status, said = run("double", "in.jsonl", "-o", "two.jsonl", "--on-error", "stop")
    assert (status, "in.jsonl:6 (row 5): input 'x'" in said) == (1, True), said


def test_a_run_that_a_bad_row_stopped_goes_on_without_it(run: Run) -> None:
    write("in.jsonl", texts(20) + '{"text": "bad"}\n' + texts(20))
    for _ in range(2):  # the same command ends at the same row
        status, said = run(*FLAGS, "--on-error", "stop")
        assert (status, "--on-error skip leaves such rows out and goes on from here" in said) == (
            1, True,
        )  # fmt: skip
    windows: list[int] = []
    assert run(*FLAGS, at_submit=windows.append)[0] == 3
    assert len(windows) == 2 + 2 + 2 + 1  # of the rows 16 to 40
    assert lengths("out.jsonl") == [len(f"{i}") for i in range(20)] * 2
    assert [row["row"] for row in lines("out.jsonl.errors.jsonl")] == [20]
    write("pipe.jsonl", '{"text": "bad"}\n')
    status, said = run("echo", "pipe.jsonl", "-o", "-", "--on-error", "stop")
    assert (status, "goes on" in said) == (1, False), said


def test_errors_go_to_the_file_that_is_named(run: Run) -> None:
    write("in.jsonl", texts(3) + '{"text": "bad"}\n')
    assert run(*FLAGS, "--errors", "why.jsonl")[0] == 3
    assert lines("why.jsonl")[0]["code"] == "invalid_request"
    write("in.jsonl", texts(3))
    assert run(*FLAGS, "--errors", "why.jsonl", "--restart")[0] == 0
    assert not Path("why.jsonl").exists()


def test_a_pipe_is_read_once_and_a_run_that_waits_for_it_can_be_ended(run: Run) -> None:
    os.mkfifo("in.jsonl")

    def writes() -> None:
        with open("in.jsonl", "w") as file:  # and says nothing more until the test ends
            file.write(texts(32))
            file.flush()
            ended.wait(30)

    def at_submit(number: int) -> None:
        if number == 7:  # the first chunk is committed
            raise KeyboardInterrupt

    ended = threading.Event()
    thread = threading.Thread(target=writes)
    thread.start()
    flags = ("echo", "in.jsonl", "-o", "out.jsonl", "--chunk-rows", "8")
    assert run(*flags, at_submit=at_submit)[0] == 130
    ended.set()
    thread.join()
    status, said = run(*flags)
    assert (status, "rows from a pipe cannot be read again; --restart" in said) == (1, True), said
    thread = threading.Thread(target=writes)
    thread.start()
    assert run(*flags, "--restart")[0] == 0
    thread.join()
    assert lengths("out.jsonl") == [len(f"{i}") for i in range(32)]
