"""Rows per second of `batchpool run` beside `Client.infer` of the same rows; memory; kills.

    python -m bench.bulk [--rows 1000000] [--texts 200000] [--rounds 3] [--save FILE.json]

Three files: a .npy of rows of 4 floats, a part of it for a model that takes 8 ms a batch of 256 and
no CPU, as an accelerator does, and a Parquet of texts. Both ways in turns at one pool; a rate is
rows by the time from the first row to the last one committed, as the command tells it, and again
with its start and its join. Memory is the resident one of the command after a tenth of the chunks
and after all. Where other programs have the cores, rates say little: CPU seconds are those of the
pool and of the caller together, and of the caller alone, with the join of the parts and without the
start of the command, which a run of 1,000 rows tells, as the client sends before it is measured. At
last a run that is killed three times (SIGKILL) must give the same file as one that is not; and of
texts of which one in 10,000 is too long, null, or refused by the model, those and no others must be
in the file of bad rows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.arrow.types import arrow
from bench.support.machine import report, spread
from bench.support.serving import Served, cpu_seconds, serving

_KILLS = (0.2, 0.45, 0.7)
_POLL_S = 0.02
_PACE_S = 0.008
_PACED_ROWS = 200_000
_BAD_OF = 10_000
_FIRST_ROWS = 1000
_DIGITS = {
    "share": 3, "cpu share": 3, "cpu": 2, "client cpu": 2, "own cpu": 2, "client own cpu": 2,
}  # fmt: skip


class Rows(bp.Model):
    """y = 2x + 1 on 4 floats."""

    framework = "numpy"
    inputs = (bp.Tensor("x", "float32", (4,)),)
    outputs = (bp.Tensor("y", "float32", (4,)),)

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"y": batch["x"] * np.float32(2) + np.float32(1)}


class Paced(Rows):
    """As `Rows`, after 8 ms a batch: an accelerator that takes no CPU of the machine."""

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        time.sleep(_PACE_S)
        return super().infer(batch)


class Texts(bp.Model):
    """The length of a text, and 64 floats of it; an empty one is refused."""

    framework = "numpy"
    inputs = (bp.Tensor("text", "bytes", (), max_bytes=1024),)
    outputs = (bp.Tensor("length", "int64"), bp.Tensor("vector", "float32", (64,)))

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        length = np.array([len(text) for text in batch["text"]], np.int64)
        for at in np.flatnonzero(length == 0):
            batch.fail(int(at), bp.InvalidInput("an empty text"))
        return {"length": length, "vector": np.repeat(length[:, None], 64, 1).astype(np.float32)}


class Job:
    """One model, its rows in a file, and the same rows in memory."""

    def __init__(self, model: str, file: Path, out: str, columns: Mapping[str, Any]) -> None:
        self.model = model
        self.file = file
        self.out = file.with_name(out)
        self.columns = columns
        self.rows = len(next(iter(columns.values())))

    def first(self, n: int) -> dict[str, Any]:
        """The first rows in memory."""
        return {name: rows[:n] for name, rows in self.columns.items()}

    def command(self, pool: Served, out: Path) -> list[str]:
        words = ["run", self.model, str(self.file), "-o", str(out), "--socket", pool.socket]
        return [sys.executable, "-m", "batchpool", *words]


def jobs(folder: Path, rows: int, texts: int) -> list[Job]:
    """The files and their rows."""
    import pyarrow.parquet

    pa = arrow()
    chance = np.random.default_rng(5)
    x = chance.random((rows, 4), np.float32)
    np.save(folder / "rows.npy", x)
    paced = min(rows, _PACED_ROWS)
    np.save(folder / "paced.npy", x[:paced])
    lengths = chance.integers(20, 200, texts)
    text = [f"{i} " + "lorem ipsum dolor " * (int(n) // 18) for i, n in enumerate(lengths)]
    pyarrow.parquet.write_table(
        pa.table({"id": range(texts), "text": text}), folder / "texts.parquet"
    )
    return [
        Job("rows", folder / "rows.npy", "rows.out.npy", {"x": x}),
        Job("paced", folder / "paced.npy", "paced.out.npy", {"x": x[:paced]}),
        Job("texts", folder / "texts.parquet", "texts.out.parquet", {"text": text}),
    ]


def client_rates(pool: Served, job: Job) -> dict[str, float]:
    """Rows per second of one call with all rows, and its CPU seconds."""
    with bp.Client(pool.socket) as client:
        client.infer(job.model, job.first(_FIRST_ROWS))
        began_s, own_s, pool_s = time.perf_counter(), time.process_time(), _pool_cpu_s(pool)
        client.infer(job.model, job.columns)
        rate = job.rows / (time.perf_counter() - began_s)
        own_s, pool_s = time.process_time() - own_s, _pool_cpu_s(pool) - pool_s
        return {"client": rate, "client cpu": own_s + pool_s, "client own cpu": own_s}


def _pool_cpu_s(pool: Served) -> float:
    return sum(cpu_seconds(pid) for pid in pool.pids().values())


def start_cpu_s(pool: Served, job: Job) -> dict[str, float]:
    """CPU seconds of the command for the first rows of the job, as `run_rates` names them."""
    import pyarrow.parquet

    pa = arrow()
    file, columns = job.file.with_name(f"few{job.file.suffix}"), job.first(_FIRST_ROWS)
    if file.suffix == ".npy":
        np.save(file, columns["x"])
    else:
        pyarrow.parquet.write_table(pa.table(columns), file)
    few = Job(job.model, file, f"few.out{file.suffix}", columns)
    each = [run_rates(pool, few) for _ in range(3)]
    return {name: min(rates[name] for rates in each) for name in ("cpu", "own cpu")}


def run_rates(pool: Served, job: Job) -> dict[str, float]:
    """Rows per second of the command, and its memory in MiB."""
    job.out.unlink(missing_ok=True)
    began_s, pool_s = time.perf_counter(), _pool_cpu_s(pool)
    own_s = _children_cpu_s()
    process = subprocess.Popen(job.command(pool, job.out), stderr=subprocess.PIPE, text=True)
    resident: list[tuple[int, float]] = []
    parts = job.out.with_name(f"{job.out.name}.parts")
    while process.poll() is None:
        done = len(list(parts.glob("part-*.json"))) if parts.exists() else 0
        if done:
            resident.append((done, _resident_mib(process.pid)))
        time.sleep(_POLL_S)
    whole_s = time.perf_counter() - began_s
    assert process.stderr is not None
    said = process.stderr.read()
    if process.returncode:
        raise SystemExit(f"status {process.returncode}: {said}")
    (rate,) = re.findall(r"([\d,]+) rows/s", said.splitlines()[-1])
    found = {"run": float(rate.replace(",", "")), "whole": job.rows / whole_s}
    found["own cpu"] = _children_cpu_s() - own_s
    found["cpu"] = found["own cpu"] + _pool_cpu_s(pool) - pool_s
    if resident:
        last = max(done for done, _ in resident)
        tenth = [mib for done, mib in resident if done <= max(1, round(last / 10))]
        end = max(mib for done, mib in resident if done == last)
        found |= {"tenth": max(tenth, default=end), "end": end}
    return found


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def killed(pool: Served, job: Job) -> bool:
    """True if a run that is killed three times makes the file of one that is not."""
    out = job.out.with_name(f"killed.{job.out.name}")
    parts = out.with_name(f"{out.name}.parts")
    whole = hashlib.sha256(job.out.read_bytes()).hexdigest()
    for share in _KILLS:
        process = subprocess.Popen(job.command(pool, out), stderr=subprocess.DEVNULL)
        while process.poll() is None and _share_done(parts, job.rows) < share:
            time.sleep(_POLL_S / 4)
        process.kill()
        process.wait()
    done = subprocess.run(job.command(pool, out), stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0 and hashlib.sha256(out.read_bytes()).hexdigest() == whole


def with_bad_rows(pool: Served, folder: Path, rows: int) -> dict[str, int]:
    """A run of texts of which one in 10,000 is bad; SystemExit where another row is touched."""
    import pyarrow.parquet

    pa = arrow()
    bad = range(_BAD_OF // 2, rows, _BAD_OF)
    texts: list[str | None] = [f"text {row}" for row in range(rows)]
    for at, row in enumerate(bad):
        texts[row] = ("x" * 2000, None, "")[at % 3]
    source, out = folder / "bad.parquet", folder / "bad.out.parquet"
    pyarrow.parquet.write_table(pa.table({"id": range(rows), "text": texts}), source)
    command = [*Job("texts", source, out.name, {"text": texts}).command(pool, out), "--keep", "id"]
    status = subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode
    lines = (folder / f"{out.name}.errors.jsonl").read_text().splitlines()
    told = [json.loads(line)["row"] for line in lines]
    table = pyarrow.parquet.read_table(out)
    lengths = dict(zip(table["id"].to_pylist(), table["length"].to_pylist(), strict=True))
    right = {row: len(text) for row, text in enumerate(texts) if text and row not in bad}
    found = {"rows": rows, "bad": len(bad), "in the side file": len(told)}
    if (status, told) != (3, list(bad)) or lengths != right:
        raise SystemExit(f"status {status}, bad rows {told}: {found}")
    return found


def _share_done(parts: Path, rows: int) -> float:
    try:
        text = (parts / "manifest.json").read_text()
    except FileNotFoundError:
        return 0.0
    found = re.search(r'"chunk_rows": (\d+)', text)
    size = int(found[1]) if found else rows
    return len(list(parts.glob("part-*.json"))) * size / rows


def _resident_mib(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the .npy")
    parser.add_argument("--texts", type=int, default=200_000, help="of the Parquet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save")
    args = parser.parse_args()
    found: dict[str, list[float]] = defaultdict(list)
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bulk-") as folder:
        todo = jobs(Path(folder), args.rows, args.texts)
        flags = ("--frontends", "1", "--devices", "cpu", "--max-batch", "256", "--max-wait-ms", "1")
        with serving(["bench.bulk:Rows", "bench.bulk:Paced", "bench.bulk:Texts"], *flags) as pool:
            start_s = {job.model: start_cpu_s(pool, job) for job in todo}
            rows["CPU s of the command's start"] = {
                model: round(cpu_s["cpu"], 2) for model, cpu_s in start_s.items()
            }
            for _ in range(args.rounds):
                for job in todo:
                    rates = client_rates(pool, job) | run_rates(pool, job)
                    for name, cpu_s in start_s[job.model].items():
                        rates[name] -= cpu_s
                    rates["share"] = rates["run"] / rates["client"]
                    rates["cpu share"] = rates["client cpu"] / rates["cpu"]
                    for name, value in rates.items():
                        found[f"{job.model}: {name}"].append(value)
            for job in todo:
                rows[f"{job.model}: equal after three kills"] = killed(pool, job)
            rows["texts: one bad row in 10,000"] = with_bad_rows(pool, Path(folder), args.texts)
    words = {
        "client": "rows/s of Client.infer",
        "run": "rows/s of batchpool run",
        "share": "of the client's rate",
        "client cpu": "CPU s of Client.infer and the pool",
        "client own cpu": "CPU s of Client.infer alone",
        "cpu": "CPU s of batchpool run and the pool",
        "own cpu": "CPU s of batchpool run alone",
        "cpu share": "of the client's rows per CPU s",
        "whole": "rows/s with start and join",
        "tenth": "MiB resident at 10 %",
        "end": "MiB resident at 100 %",
    }
    for name, values in found.items():
        model, _, what = name.partition(": ")
        rows[f"{model}: {words[what]}"] = spread(values, _DIGITS.get(what, 0))
    report(f"bulk runs, {args.rows} rows and {args.texts} texts", rows, args.save)


if __name__ == "__main__":
    main()
