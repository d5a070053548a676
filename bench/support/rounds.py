"""Rounds of several measurements in turns, and the cores that a pool uses during one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from bench.process_cost import ran_ns
from bench.support.serving import Served

Rounds: TypeAlias = dict[str, list[float]]  # a value of each round by its name


def run_in_turns(turns: Sequence[Callable[[], None]], rounds: int, values: Rounds) -> None:
    """Run all in turns so many times, and once before to warm up, whose values are dropped."""
    for number in range(rounds + 1):
        for run in turns:
            run()
        if number == 0:
            values.clear()


@contextmanager
def cores_used(served: Served, rounds: Rounds, of: str) -> Iterator[None]:
    """Adds the cores that each role of the pool uses meanwhile."""
    pids = served.pids()
    before, begun_ns = {name: ran_ns(pid) for name, pid in pids.items()}, time.monotonic_ns()
    yield
    took_ns = time.monotonic_ns() - begun_ns
    used: Counter[str] = Counter()
    for name, pid in pids.items():
        used[name.split()[0]] += ran_ns(pid) - before[name]
    for role, spent_ns in used.items():
        rounds[f"{of}: cores, {role}"].append(spent_ns / took_ns)
