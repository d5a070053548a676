"""Limits on the shared memory that may be reserved, and the name of the tightest.

Pages of shared memory count in four places: the size of /dev/shm (segments there, not
memfds), the machine's memory, and the memory limit of our cgroup and of each parent of it.
Passing the first ends in SIGBUS, the others in the OOM killer, both long after the mistake;
so the sum is compared before anything is reserved.

A cgroup's room is limit - current + inactive_file: page cache that was not used lately is
charged to it but the kernel gives it back before it refuses, which is also how Kubernetes
reckons a working set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from batchpool.core.errors import StartError
from batchpool.shm.cgroups import PROC, CgroupLevel, cgroup_levels

SHM_DIR = Path("/dev/shm")
# Version 1 writes "no limit" as the largest whole number of pages.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True)
class Limit:
    """Bytes that one limit still allows. name: as the operator knows it."""

    name: str
    available_bytes: int


def size_text(size_bytes: int) -> str:
    """Bytes for people: "512 bytes", "15.0 MiB"."""
    if size_bytes < 1024:
        return f"{size_bytes} bytes"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        # 1023.95 and more would be written as 1024.0
        if size < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def read_limits(
    proc: Path = PROC,
    shm_dir: Path | None = SHM_DIR,
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
) -> list[Limit]:
    """Every limit that holds for this process now.

    shm_dir None leaves /dev/shm out: memfds do not count there.
    """
    limits = [] if shm_dir is None else _of_directory(shm_dir, statvfs)
    limits += _of_machine(proc)
    for level in cgroup_levels("memory", proc):
        limits += _of_cgroup(level)
    return limits


def check_room(needed_bytes: int, limits: Iterable[Limit]) -> None:
    """Raise StartError, naming the smallest limit, when `needed_bytes` are not available."""
    smallest = min(limits, key=lambda limit: limit.available_bytes, default=None)
    if smallest is None or needed_bytes <= smallest.available_bytes:
        return
    needed, available = size_text(needed_bytes), size_text(smallest.available_bytes)
    if needed == available:  # they differ by less than the rounding
        needed, available = f"{needed_bytes} bytes", f"{smallest.available_bytes} bytes"
    raise StartError(
        f"shared memory: needs {needed}, but only {available} are available"
        f" (limit: {smallest.name});"
        " lower slots, max_batch or frontends, or raise that limit"
    )


def _of_directory(path: Path, statvfs: Callable[[Path], os.statvfs_result]) -> list[Limit]:
    try:
        room = statvfs(path)
    except OSError as exc:
        return [Limit(f"{path} cannot be used: {exc.strerror}", 0)]
    if room.f_blocks == 0:
        return []  # a tmpfs mounted with size=0 has no limit of its own
    return [Limit(f"{path} size", room.f_bavail * room.f_frsize)]


def _of_machine(proc: Path) -> list[Limit]:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        words = line.split()
        if words and words[0] == "MemAvailable:":
            return [Limit("free memory of the machine, MemAvailable", int(words[1]) * 1024)]
    return []


def _of_cgroup(level: CgroupLevel) -> list[Limit]:
    files: tuple[str, ...]
    if level.version == 2:
        files, current, cached = ("memory.max", "memory.high"), "memory.current", "inactive_file"
    else:
        files, current = ("memory.limit_in_bytes",), "memory.usage_in_bytes"
        cached = "total_inactive_file"
    used = level.read_number(current)
    if used is None:
        return []
    working_set = max(0, used - level.read_field("memory.stat", cached))
    limits = []
    for file in files:
        most = level.read_number(file)
        if most is not None and most < _NO_LIMIT_BYTES:
            name = f"{file} of cgroup {level.name}"
            limits.append(Limit(name, max(0, most - working_set)))
    return limits
