"""A pool's processes before and after, with the descriptors and memory that they hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batchpool.client.control import ask_status
from bench.chaos.strikes import open_descriptors, zombies_of
from bench.support.serving import Served

SETTLE_S = 20.0
MEMORY_MOST = 1.1
_POINTS = 20  # of a curve


@dataclass(frozen=True)
class Standing:
    """A pool's processes, and the descriptors and memory that they hold."""

    pids: dict[str, int]
    descriptors: dict[str, int]
    rss_mib: dict[str, float]
    lanes: int
    claimed: int
    zombies: int

    @classmethod
    def of(cls, served: Served) -> Standing:
        pids = served.pids()
        lanes = ask_status(served.socket)["lanes"]
        return cls(
            pids,
            {name: open_descriptors(pid) for name, pid in pids.items()},
            {name: private_mib(pid) for name, pid in pids.items()},
            len(lanes),
            sum(lane["claimed"] for lane in lanes),
            zombies_of(served.pid),
        )


def private_mib(pid: int) -> float:
    """Private memory of a process: the lanes, which are shared, are not counted."""
    fields = Path(f"/proc/{pid}/status").read_text().split()
    return round(int(fields[fields.index("RssAnon:") + 1]) / 1024, 1)


def more(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Processes that hold more than before; one is the connection that asks."""
    return {name: n for name, n in now.items() if n > before.get(name, 0) + 2}


def grown(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """Processes with more than MEMORY_MOST times the memory that they had before."""
    return {name: mib for name, mib in now.items() if mib > MEMORY_MOST * before.get(name, mib)}


def settled(served: Served, before: Standing) -> Standing:
    """The pool once what was there for strangers is gone, or after SETTLE_S: what was freed goes
    back to the system every few seconds."""
    give_up_s = time.monotonic() + SETTLE_S
    while True:
        now = Standing.of(served)
        same = now.lanes == before.lanes and now.claimed == 0
        same = same and more(before.descriptors, now.descriptors) == {}
        if (same and grown(before.rss_mib, now.rss_mib) == {}) or time.monotonic() > give_up_s:
            return now
        time.sleep(0.2)


@contextmanager
def memory_curve(served: Served, seconds: float) -> Iterator[dict[str, list[float]]]:
    """The private memory of each process in MiB, at _POINTS times within the block, which takes so
    many seconds; each is the median of five looks around it, as bodies come and go."""
    curve: dict[str, list[float]] = {}
    ends, pids = threading.Event(), served.pids()

    def look() -> None:
        while True:
            looks: list[dict[str, float]] = []
            for _ in range(5):
                if ends.wait(seconds / _POINTS / 5):
                    return
                looks.append({name: private_mib(pid) for name, pid in pids.items()})
            for name in pids:
                middle = sorted(found[name] for found in looks)[2]
                curve.setdefault(name, []).append(middle)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield curve
    finally:
        ends.set()
        looking.join()
