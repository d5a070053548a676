"""Load of other processes on the machine, before and while a server is measured.

The machine's busy time (/proc/stat, steal of a virtual machine included) less that of the server,
of the load and of this process is other people's. A figure that was taken beside them says
little: `run` tells how much it was, `sweep` waits for a quiet moment and measures again.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from bench.peers import family

NOISE_CORES = 0.3  # above it a figure is measured again, if there is patience
_TICKS = os.sysconf("SC_CLK_TCK")
_WINDOW_S = 0.3


def busy_s(stat: str) -> float:
    """Of all cores, by the first line of /proc/stat: all but idle and waiting for a disk."""
    fields = [int(field) for field in stat.split(maxsplit=9)[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS


@dataclass(frozen=True)
class Look:
    """At one moment. own_s: of this process and of the children it waited for."""

    at_s: float
    busy_s: float
    own_s: float
    servers: dict[int, family.Process]


@dataclass(frozen=True)
class Use:
    """Between two looks: the server's CPU time, and the cores that others used."""

    server_s: float
    others_cores: float


def look() -> Look:
    with Path("/proc/stat").open() as stat:
        busy = busy_s(stat.readline())
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(one.ru_utime + one.ru_stime for one in used)
    return Look(time.monotonic(), busy, own, family.ours())


def between(before: Look, after: Look) -> Use:
    server_s = family.cpu_s(before.servers, after.servers)
    others_s = after.busy_s - before.busy_s - server_s - (after.own_s - before.own_s)
    return Use(server_s, max(0.0, others_s / (after.at_s - before.at_s)))


def await_quiet(until_s: float) -> None:
    """Until others are quiet for a moment, or it is that late (CLOCK_MONOTONIC)."""
    while time.monotonic() < until_s:
        before = look()
        time.sleep(_WINDOW_S)
        if between(before, look()).others_cores < NOISE_CORES:
            return
