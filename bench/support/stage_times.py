"""Where rows were while they were in the pool, from the counters of /metrics before and after."""

from __future__ import annotations

import os
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.support.rounds import Rounds
from bench.support.serving import Served

_TIMES = {  # histogram: name of the part
    "batchpool_queue_seconds": "queued",
    "batchpool_batch_seconds": "dispatch to completion",
    "batchpool_worker_gather_seconds": "gather",
    "batchpool_worker_compute_seconds": "compute",
    "batchpool_worker_scatter_seconds": "scatter",
}
_ROWS = "batchpool_batch_rows"
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def stage_times(served: Served, rounds: Rounds, of: str) -> Iterator[None]:
    """Adds for each stage the mean rows of a batch and the mean times of a row's queue and of a
    batch, in ms, and for each role how often it slept and its system time."""
    before, slept, kernel_s = _counted(served.port), _sleeps(served), _kernel_s(served)
    yield
    after, now_slept, now_kernel_s = _counted(served.port), _sleeps(served), _kernel_s(served)
    grown = {key: after[key] - before.get(key, 0.0) for key in after}
    for (name, stage, kind), total in sorted(grown.items()):
        count = grown.get((name, stage, "count"), 0.0)
        if kind != "sum" or not count:
            continue
        if name == _ROWS:
            rounds[f"{of}: {stage}: rows of a batch"].append(total / count)
            rounds[f"{of}: {stage}: batches"].append(count)
        else:
            rounds[f"{of}: {stage}: {_TIMES[name]}, mean ms"].append(total / count * 1e3)
    for role, n in now_slept.items():
        rounds[f"{of}: sleeps, {role}"].append(n - slept[role])
        rounds[f"{of}: in the kernel, {role}, s"].append(now_kernel_s[role] - kernel_s[role])


def _counted(port: int) -> dict[tuple[str, str, str], float]:
    """The sums and counts by (histogram, stage, "sum" or "count")."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        if family.name in _TIMES or family.name == _ROWS:
            for sample in family.samples:
                kind = sample.name.removeprefix(f"{family.name}_")
                if kind in ("sum", "count"):
                    found[family.name, sample.labels["stage"], kind] += sample.value
    return found


def _sleeps(served: Served) -> Counter[str]:
    """The times that the main threads of each role went to sleep."""
    found: Counter[str] = Counter()
    for name, pid in served.pids().items():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                found[name.split()[0]] += int(line.split()[1])
    return found


def _kernel_s(served: Served) -> dict[str, float]:
    """The system time of each role, in s."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, pid in served.pids().items():
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[12])
        found[name.split()[0]] += ticks / _TICKS
    return found
