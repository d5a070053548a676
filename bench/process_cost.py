"""What one HTTP request costs each process of the pool, in CPU time, while wrk has it working.

    python -m bench.process_cost [--connections 64 256] [--rounds 3] [--seconds 3] [--save F.json]

Raw bodies of 2 KB to y = 2x + 1, one front end and one worker. The CPU time is the scheduler's own
of all threads, so that what other processes take from the cores counts less than it does in the
rate; but where the caches are full of others' code and data, a request costs more. Run it in a
checkout after `make compile` and in one without, in turns, to see what that gains.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bench.http import post
from bench.machine import report, spread
from bench.models import WIDTH
from bench.serving import serving

_SCRIPT = """
local file = io.open(%s, "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "application/octet-stream"
wrk.headers["Inference-Header-Content-Length"] = "0"
"""


def _ran_ns(pid: int) -> int:
    """CPU time of a process's threads."""
    ran = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            ran += int(stat.read_text().split()[0])
        except OSError:  # the thread has ended
            continue
    return ran


def _load(connections: int, seconds: int, script: Path, url: str) -> tuple[int, float]:
    """How many requests were answered, and how many a second. All must be answered 200."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise SystemExit(f"not every request was answered:\n{said}")
    answered = re.search(r"(\d+) requests in", said)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert answered is not None
    assert rate is not None
    return int(answered[1]), float(rate[1])


def costs(connections: Iterable[int], rounds: int, seconds: int) -> dict[str, list[float]]:
    """Figures of each round by what they are of; the first round of each load warms up."""
    found: dict[str, list[float]] = defaultdict(list)
    x = np.random.default_rng(7).standard_normal(WIDTH, dtype=np.float32)
    flags = ("--frontends", "1", "--devices", "cpu", "--max-batch", "256", "--max-wait-ms", "0")
    with tempfile.TemporaryDirectory() as folder, serving(["bench.models:Affine"], *flags) as pool:
        body, script = Path(folder, "body"), Path(folder, "raw.lua")
        body.write_bytes(x.tobytes())
        script.write_text(_SCRIPT % json.dumps(str(body)))
        url = f"http://127.0.0.1:{pool.port}/v2/models/affine/infer"
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": "0",
        }
        if not post(url, x.tobytes(), headers).endswith((x * 2 + 1).tobytes()):
            raise SystemExit("the first answer is wrong")
        pids = {name: pid for name, pid in pool.pids().items() if name != "supervisor"}
        for n in connections:
            for turn in range(rounds + 1):
                before = {name: _ran_ns(pid) for name, pid in pids.items()}
                answered, rate = _load(n, seconds, script, url)
                us = {k: (_ran_ns(pid) - before[k]) / answered / 1e3 for k, pid in pids.items()}
                if turn:
                    found[f"{n} connections: requests/s"].append(rate)
                    found[f"{n} connections: us a request"].append(sum(us.values()))
                    for name, spent_us in us.items():
                        found[f"{n} connections: us a request, {name}"].append(spent_us)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--save")
    args = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is missing: apt-get install wrk")
    found = costs(args.connections, args.rounds, args.seconds)
    rows = {what: spread(figures, 1) for what, figures in found.items()}
    report("one raw request of 2 KB over HTTP", rows, args.save)


if __name__ == "__main__":
    main()
