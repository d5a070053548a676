"""`batchpool run` against a real pool: formats, bad rows, kills, and what the next run makes of it.

Complaints of others that it answers, by their numbers in the task list: 13 (results out of order,
under a wrong key, or "completed" with nothing in it), 14 (one bad row fails the whole).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchpool import cli
from tests.process.gates import opened_at_last
from tests.process.models import FAULTS
from tests.process.pool_under_test import ROOT, Pool, command, serving, until

X = np.arange(40_000, dtype=np.float32).reshape(10_000, 4)


@pytest.fixture
def run(everyday: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command in a folder of its own; returns its exit status."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: cli.main(["run", *words, "--socket", everyday.socket])


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def write_lines(path: str, rows: list[Any]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def sha256(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_complaint_13_results_are_in_order_and_under_their_own_keys(run: Any) -> None:
    write_lines("in.jsonl", [{"key": f"k{i}", "body": f"text {i}"} for i in range(5_000)])
    flags = ("--map", "text=body", "--keep", "key", "--chunk-rows", "700")
    for out in ("out.jsonl", "out.csv", "out.parquet", "out.arrow"):
        assert run("echo", "in.jsonl", "-o", out, *flags) == 0
    expected = [(f"k{i}", f"text {i}", len(f"text {i}")) for i in range(5_000)]
    assert [tuple(row.values()) for row in lines("out.jsonl")] == expected
    csv = Path("out.csv").read_text().splitlines()
    assert csv[0] == "key,text,length"
    assert csv[1:] == [f"{key},{text},{length}" for key, text, length in expected]
    with pa.memory_map("out.arrow") as file:
        arrow = pa.ipc.open_file(file).read_all()
    for table in (pq.read_table("out.parquet"), arrow):
        found = zip(*(column.to_pylist() for column in table.columns), strict=True)
        assert [(key, text.decode(), length) for key, text, length in found] == expected
    assert pq.ParquetFile("out.parquet").num_row_groups == 8
    assert not Path("out.jsonl.parts").exists()


def test_complaint_13_a_run_without_any_good_row_says_so(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines("in.jsonl", [{"text": 7}] * 9)
    assert run("echo", "in.jsonl", "-o", "out.jsonl") == 1
    assert "none of the first 9 rows can be run; the first, in.jsonl:1: input 'text'" in (
        capsys.readouterr().err
    )
    assert not Path("out.jsonl").exists()


def test_complaint_14_one_bad_row_in_ten_thousand_is_in_the_side_file_and_nowhere_else(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = np.zeros(10_000, np.int64)
    fault[6_131] = FAULTS["raises"]
    x = np.arange(10_000, dtype=np.float32)
    pq.write_table(pa.table({"id": range(10_000), "x": x, "fault": fault}), "in.parquet")
    assert run("faulty", "in.parquet", "-o", "out.jsonl", "--keep", "id") == 3
    (bad,) = lines("out.jsonl.errors.jsonl")
    assert (bad["row"], bad["code"], bad["source"]) == (6_131, "model_error", "row 6131")
    assert "this row is bad" in bad["error"]
    assert bad["input"] == {"x": 6_131.0, "fault": 1, "id": 6_131}
    good = lines("out.jsonl")
    assert [row["id"] for row in good] == [i for i in range(10_000) if i != 6_131]
    assert all(row["y"] == 2 * row["id"] for row in good)
    assert "10,000 rows, 1 of them bad: out.jsonl.errors.jsonl" in capsys.readouterr().err


def test_a_bad_row_stops_the_run_where_that_is_asked_for(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Any] = [{"text": f"{i}"} for i in range(1_000)]
    rows[613] = {"text": None}
    write_lines("in.jsonl", rows)
    flags = ("-o", "out.jsonl", "--chunk-rows", "100", "--on-error", "stop")
    assert run("echo", "in.jsonl", *flags) == 1
    assert "in.jsonl:614 (row 613): column 'text' is null or missing" in capsys.readouterr().err
    assert len(list(Path("out.jsonl.parts").glob("*.rows"))) == 6


def test_an_array_in_and_out_keeps_each_row_at_its_number(run: Any) -> None:
    np.save("in.npy", X)
    assert run("affine", "in.npy", "-o", "out.npy", "--chunk-rows", "999") == 0
    assert np.array_equal(np.load("out.npy"), X * 2 + 1)
    np.save("wide.npy", X.astype(np.float64))  # of another dtype, whose values fit
    assert run("affine", "wide.npy", "in.npy", "-o", "two.npy") == 1  # rows of two dtypes
    assert run("affine", "wide.npy", "wide.npy", "-o", "two.npy") == 0
    assert np.array_equal(np.load("two.npy"), np.concatenate([X, X]) * 2 + 1)


def test_bad_rows_of_an_array_are_filled(run: Any) -> None:
    write_lines("in.jsonl", [{"x": float(i), "fault": i == 3} for i in range(9)])
    rows = [{"x": float(i), "fault": int(i == 3)} for i in range(9)]
    write_lines("in.jsonl", rows)
    assert run("faulty", "in.jsonl", "-o", "out.npy") == 3
    y = np.load("out.npy")
    assert np.isnan(y[3])
    assert [value for i, value in enumerate(y) if i != 3] == [2.0 * i for i in range(9) if i != 3]


def test_files_of_a_folder_are_rows(run: Any) -> None:
    folder = Path("texts/inner")
    folder.mkdir(parents=True)
    for i in range(20):
        (folder / f"{i:02d}.txt").write_bytes(b"\xff" * i)
    (folder / ".hidden").write_text("no")
    assert run("echo", "texts", "-o", "out.parquet", "--keep", "path") == 0
    table = pq.read_table("out.parquet").to_pydict()
    assert table["path"] == [f"texts/inner/{i:02d}.txt" for i in range(20)]
    assert table["length"] == list(range(20))


def test_rows_that_differ_in_size_come_back_so(run: Any) -> None:
    ids = [list(range(i % 7)) for i in range(300)]
    pq.write_table(pa.table({"ids": pa.array(ids, pa.list_(pa.int32()))}), "in.parquet")
    write_lines("in.jsonl", [{"ids": row} for row in ids])
    for given in ("in.parquet", "in.jsonl"):
        for out in ("out.parquet", "out.jsonl"):
            assert run("ragged", given, "-o", out, "--restart") == 0
        expected = [[i + 1 for i in row] for row in ids]
        assert pq.read_table("out.parquet").to_pydict()["next"] == expected
        assert [row["next"] for row in lines("out.jsonl")] == expected


def test_a_run_that_is_killed_three_times_makes_the_same_file(
    everyday: Pool, tmp_path: Path
) -> None:
    rows = [{"id": i, "text": None if i == 7_777 else "x" * (i % 50)} for i in range(20_000)]
    gates = (801, 802, 803)  # so that a run is still under way when it is killed
    for kill, gate in enumerate(gates, 1):
        rows[12 * kill * 400]["text"] = f"gate-{gate}"
    write_lines(str(tmp_path / "in.jsonl"), rows)

    def words(out: str) -> list[str]:
        flags = ["--keep", "id", "--chunk-rows", "400", "--socket", everyday.socket]
        return command("run", "echo", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / out), *flags)

    parts = tmp_path / "killed.parquet.parts"
    for kill, gate in enumerate(gates, 1):
        with opened_at_last(everyday, gate):
            process = subprocess.Popen(words("killed.parquet"), cwd=ROOT)
            enough = 10 * kill
            until(lambda n=enough: len(list(parts.glob("part-*.json"))) >= n, "some parts")
            process.kill()
            process.wait()
    newest = max(parts.glob("part-*.json"))
    newest.write_bytes(newest.read_bytes()[:5])  # as a disk without power may leave it
    assert not (tmp_path / "killed.parquet").exists()
    for out in ("killed.parquet", "whole.parquet"):
        assert subprocess.run(words(out), cwd=ROOT, check=False).returncode == 3
    assert sha256(tmp_path / "killed.parquet") == sha256(tmp_path / "whole.parquet")
    for out in ("killed", "whole"):
        (bad,) = lines(str(tmp_path / f"{out}.parquet.errors.jsonl"))
        assert bad["row"] == 7_777
        assert bad["source"].endswith("in.jsonl:7778")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_keep_whole_parts(
    everyday: Pool, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    np.save(tmp_path / "in.npy", np.repeat(X, 90, axis=0))
    words = ["run", "affine", "in.npy", "-o", "out.npy", "--chunk-rows", "512"]
    # A child of who ignores a signal, as a shell's background job does, ignores it too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command(*words, "--socket", everyday.socket),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    parts = tmp_path / "out.npy.parts"
    until(lambda: len(list(parts.glob("part-*.json"))) >= 3, "some parts")
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == status
    assert "the same command goes on from the last part" in said
    assert "Traceback" not in said
    assert len(list(parts.glob("part-*.json"))) >= 3


@pytest.mark.long
def test_a_pool_that_is_restarted_meanwhile_costs_nothing(tmp_path: Path) -> None:
    table = {"import": "Affine", "slots": 64, "max_batch": 8}
    np.save(tmp_path / "in.npy", X)
    with serving(table) as pool:
        words = ["run", "affine", str(tmp_path / "in.npy"), "-o", str(tmp_path / "out.npy")]
        status: list[int] = []
        thread = threading.Thread(
            target=lambda: status.append(
                cli.main([*words, "--chunk-rows", "200", "--socket", pool.socket])
            )
        )
        thread.start()
        parts = tmp_path / "out.npy.parts"
        until(lambda: len(list(parts.glob("part-*.json"))) >= 2, "some parts")
        pool.stop()
        with pool.again(table):
            thread.join(120)
            assert status == [0]
    assert np.array_equal(np.load(tmp_path / "out.npy"), X * 2 + 1)


def test_a_pool_of_its_own(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", X[:100])
    done = subprocess.run(
        command(
            "run", "tests.process.models:Affine", str(tmp_path / "in.npy"),
            "-o", str(tmp_path / "out.npy"), "--", "--devices", "cpu",
        ),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("loading tests.process.models:Affine in a pool of this run\n")
    assert np.array_equal(np.load(tmp_path / "out.npy"), X[:100] * 2 + 1)


def test_stdin_to_stdout(everyday: Pool) -> None:
    given = "".join(json.dumps({"text": f"{i}"}) + "\n" for i in range(50)) + "nonsense\n"
    done = subprocess.run(
        command("run", "echo", "-", "-o", "-", "--socket", everyday.socket),
        cwd=ROOT, input=given, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [
        f"{i}" for i in range(50)
    ]
    assert '"source":"-:51"' in done.stderr
