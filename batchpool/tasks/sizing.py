"""Formulas of what a load of tasks needs: workers, cores, boxes, memory, servers, network. Pure.

Costs of a task are those that bench.tasks and bench.boxes measured on a busy machine of 2 cores,
without compiled modules: a faster one needs less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from batchpool.core.errors import ConfigError

# CPU of one task (us): submitted, waited for and collected over HTTP.
FRONT_END_US, TASK_PROCESS_US, OTHERS_US = 200, 230, 40
REDIS_US = 130  # put, claimed, ended, collected, with appendfsync everysec, 16 at a time
# Bytes of a task beside its bodies, and the part by which an allocator rounds those up.
REDIS_RECORD_BYTES, REDIS_ROUNDING = 2400, 1.25
DISK_RECORD_BYTES, PAGE_BYTES = 512, 4096
# Resident memory of processes (MiB), without the model's own.
SUPERVISOR_MIB, BATCHER_MIB, FRONT_END_MIB, TASK_PROCESS_MIB, WORKER_MIB = 27, 30, 41, 25, 27
BUSY_MOST, REDIS_BUSY_MOST = 0.7, 0.6  # shares of a core, or a worker, that leave room for bursts
LANE_SLOTS_MOST, LANE_BYTES_MOST = 4096, 2**30
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Demand:
    """A load of tasks of one row each.

    rate: tasks/s. input_bytes, output_bytes: of one task. batch: rows, which take batch_ms in a
    worker. boxes, with so many workers and front ends each. wait_s: from the submission to the end.
    collect_s: from the end until the caller reads the result, which is dropped grace_s later;
    uncollected: the part of results that nobody reads, which stay ttl_s. store: "redis" or
    "sqlite". copies: of each server's memory, 2 with a replica.

    Raises ConfigError for a number that is out of range.
    """

    rate: float
    input_bytes: int
    output_bytes: int
    batch_ms: float
    batch: int
    workers: int = 1
    frontends: int = 1
    boxes: int = 1
    wait_s: float = 1.0
    collect_s: float = 2.0
    grace_s: float = 60.0
    uncollected: float = 0.0
    ttl_s: float = 3600.0
    store: str = "redis"
    copies: int = 1

    def __post_init__(self) -> None:
        for name in ("rate", "batch_ms", "batch", "workers", "frontends", "boxes", "copies"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} = {getattr(self, name):g}: expected more than 0")
        for name in ("input_bytes", "output_bytes", "wait_s", "collect_s", "grace_s", "ttl_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} = {getattr(self, name):g}: expected 0 or more")
        if not 0 <= self.uncollected <= 1:
            raise ConfigError(f"uncollected = {self.uncollected:g}: expected a part from 0 to 1")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: its name, value and unit, and the formula with the numbers in it."""

    name: str
    value: float
    unit: str
    formula: str


def figures(demand: Demand) -> list[Figure]:
    """All numbers that follow from a demand, those that they need before them."""
    found = _compute(demand)
    kept = _kept(demand)
    found += kept
    by_name = {figure.name: figure.value for figure in kept}
    store = _redis if demand.store == "redis" else _sqlite
    found += store(demand, by_name["open tasks"], by_name["results kept"])
    return found + _memory_of_a_box(demand)


def _compute(d: Demand) -> list[Figure]:
    rows_s = d.batch / (d.batch_ms / 1000)
    workers = math.ceil(d.rate / (BUSY_MOST * rows_s))
    by_tasks = math.ceil(d.rate * TASK_PROCESS_US / 1e6 / BUSY_MOST)
    boxes = max(math.ceil(workers / d.workers), by_tasks)
    load = d.rate / (d.boxes * d.workers * rows_s)
    cpu_us = FRONT_END_US + TASK_PROCESS_US + OTHERS_US
    return [
        Figure("rows a worker runs", rows_s, "/s", f"{d.batch} / {d.batch_ms:g} ms"),
        Figure("workers needed", workers, "", f"{d.rate:g} / ({BUSY_MOST:g} x {rows_s:g} rows/s)"),
        Figure(
            "boxes for the task processes", by_tasks, "",
            f"{d.rate:g} x {TASK_PROCESS_US} us / {BUSY_MOST:g} of a core, one process a box",
        ),
        Figure(
            "boxes needed", boxes, "",
            f"the most of {workers} workers / {d.workers} a box and {by_tasks}",
        ),
        Figure(
            "load of the workers given", load, "",
            f"{d.rate:g} / ({d.boxes} boxes x {d.workers} workers x {rows_s:g} rows/s)",
        ),
        Figure(
            "cores of all boxes", d.rate * cpu_us / 1e6, "",
            f"{d.rate:g} x ({FRONT_END_US} front end + {TASK_PROCESS_US} task process +"
            f" {OTHERS_US} others) us",
        ),
    ]  # fmt: skip


def _kept(d: Demand) -> list[Figure]:
    """Tasks that are in the stores at any moment, of all boxes."""
    collected = 1 - d.uncollected
    results = d.rate * (collected * (d.collect_s + d.grace_s) + d.uncollected * d.ttl_s)
    return [
        Figure("open tasks", d.rate * d.wait_s, "", f"{d.rate:g} x {d.wait_s:g} s"),
        Figure(
            "results kept", results, "",
            f"{d.rate:g} x ({collected:g} x ({d.collect_s:g} + {d.grace_s:g}) s +"
            f" {d.uncollected:g} x {d.ttl_s:g} s)",
        ),
    ]  # fmt: skip


def _redis(d: Demand, open_tasks: float, results: float) -> list[Figure]:
    of_task = REDIS_ROUNDING * d.input_bytes + REDIS_RECORD_BYTES
    of_result = REDIS_ROUNDING * d.output_bytes + REDIS_RECORD_BYTES
    memory = open_tasks * of_task + results * of_result
    counted = open_tasks * (d.input_bytes + REDIS_RECORD_BYTES) + results * (
        d.output_bytes + REDIS_RECORD_BYTES
    )
    shards = math.ceil(d.rate * REDIS_US / 1e6 / REDIS_BUSY_MOST)
    return [
        Figure(
            "memory of Redis", memory * d.copies / _MIB, "MiB",
            f"{d.copies} x ({open_tasks:g} x ({REDIS_ROUNDING:g} x {d.input_bytes} +"
            f" {REDIS_RECORD_BYTES}) + {results:g} x ({REDIS_ROUNDING:g} x {d.output_bytes} +"
            f" {REDIS_RECORD_BYTES})) bytes",
        ),
        Figure(
            "tasks_max_mib at least", math.ceil(counted / _MIB), "MiB",
            f"{open_tasks:g} x ({d.input_bytes} + {REDIS_RECORD_BYTES}) + {results:g} x"
            f" ({d.output_bytes} + {REDIS_RECORD_BYTES}) bytes, rounded up",
        ),
        Figure(
            "Redis servers (shards)", shards, "",
            f"{d.rate:g} x {REDIS_US} us / {REDIS_BUSY_MOST:g} of a core",
        ),
        Figure(
            "network of each server", d.rate / shards * 2 * (d.input_bytes + d.output_bytes) / 1e6,
            "MB/s",
            f"{d.rate:g} / {shards} x 2 x ({d.input_bytes} + {d.output_bytes}) bytes, both ways",
        ),
    ]  # fmt: skip


def _on_pages(body: int) -> int:
    """Bytes of a body on the disk: short ones lie beside their record."""
    return body if body < PAGE_BYTES // 4 else -(-body // PAGE_BYTES) * PAGE_BYTES


def _sqlite(d: Demand, open_tasks: float, results: float) -> list[Figure]:
    """Of one box: each has a database of its own, with its part of the tasks."""
    given, answered = _on_pages(d.input_bytes), _on_pages(d.output_bytes)
    of_task, of_result = given + DISK_RECORD_BYTES, answered + DISK_RECORD_BYTES
    size = (open_tasks * of_task + results * of_result) / d.boxes
    return [
        Figure(
            "disk of a box", size / _MIB, "MiB",
            f"({open_tasks:g} x ({given} + {DISK_RECORD_BYTES}) + {results:g} x"
            f" ({answered} + {DISK_RECORD_BYTES})) bytes / {d.boxes} boxes, in pages of 4 KiB",
        ),
        Figure("tasks_max_mib at least", math.ceil(size / _MIB), "MiB", "the disk, rounded up"),
        Figure(
            "writes to the disk of a box", d.rate / d.boxes * 2 * (given + answered) / 1e6, "MB/s",
            f"{d.rate:g} / {d.boxes} x 2 x ({given} + {answered}) bytes: the log and the database",
        ),
    ]  # fmt: skip


def _memory_of_a_box(d: Demand) -> list[Figure]:
    processes = (
        SUPERVISOR_MIB + BATCHER_MIB + TASK_PROCESS_MIB
        + d.frontends * FRONT_END_MIB + d.workers * WORKER_MIB
    )  # fmt: skip
    row = max(1, d.input_bytes + d.output_bytes)
    slots = LANE_SLOTS_MOST
    while slots > max(1, d.batch) and slots * row > LANE_BYTES_MOST:
        slots //= 2
    rings = slots * row / _MIB
    return [
        Figure(
            "memory of a box's processes", processes, "MiB",
            f"{SUPERVISOR_MIB} + {BATCHER_MIB} + {TASK_PROCESS_MIB} + {d.frontends} x"
            f" {FRONT_END_MIB} + {d.workers} x {WORKER_MIB}, without the model's own",
        ),
        Figure(
            "rings of a box's front ends", rings, "MiB",
            f"{slots} slots x ({d.input_bytes} + {d.output_bytes}) bytes in /dev/shm; batchpool"
            " check tells them exactly",
        ),
    ]  # fmt: skip
