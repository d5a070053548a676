"""Processes that descend from this one: the CPU time they used, and their end.

A server may fork, leave its process group and orphan its children; as the subreaper this
process inherits the orphans, so all it started can be found by their parents.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")
_KILL_S = 10.0


@dataclass(frozen=True)
class Process:
    parent: int
    state: str
    cpu_s: float


def adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def parse(stat: bytes) -> Process:
    """A line of /proc/PID/stat; a program's name may hold spaces and parentheses."""
    fields = stat[stat.rindex(b")") + 2 :].split()
    ticks = int(fields[11]) + int(fields[12])
    return Process(int(fields[1]), fields[0].decode(), ticks / _TICKS)


def processes() -> dict[int, Process]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found[int(entry)] = parse(Path(f"/proc/{entry}/stat").read_bytes())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def descendants(of: int, found: dict[int, Process]) -> dict[int, Process]:
    """All below a process, itself not."""
    children: dict[int, list[int]] = {}
    for pid, process in found.items():
        children.setdefault(process.parent, []).append(pid)
    below: dict[int, Process] = {}
    to_do = list(children.get(of, []))
    while to_do:
        pid = to_do.pop()
        if pid not in below:
            below[pid] = found[pid]
            to_do += children.get(pid, [])
    return below


def ours(spared: frozenset[int] = frozenset()) -> dict[int, Process]:
    """The processes below this one that still run, without `spared` and those below them."""
    found = processes()
    return descendants(os.getpid(), {pid: p for pid, p in found.items() if pid not in spared})


def cpu_s(before: dict[int, Process], after: dict[int, Process]) -> float:
    """User and system time between two looks; a process that ended meanwhile counts nothing."""
    return sum(
        process.cpu_s - (before[pid].cpu_s if pid in before else 0.0)
        for pid, process in after.items()
    )


def end_all(spared: frozenset[int]) -> bool:
    """SIGKILL for all of them, again until none is left; whether none is."""
    until = time.monotonic() + _KILL_S
    while left := ours(spared):
        for pid, process in left.items():
            if process.state == "Z":
                if process.parent == os.getpid():
                    os.waitpid(pid, os.WNOHANG)
            else:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
