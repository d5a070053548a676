"""What there is to run on: GPUs as the workers will see them, and CPU cores.

Nothing here imports torch or touches CUDA: a process that did could not start clean
workers. GPUs are named as CUDA_VISIBLE_DEVICES names them, and a worker gets one entry of
that list unchanged, because a number in it counts real devices, not the list's entries.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from batchpool.core.errors import StartError
from batchpool.shm.cgroups import PROC, CgroupLevel, cgroup_levels

_NODE = re.compile(r"nvidia\d+")
_SMI_TIMEOUT_S = 30.0


def gpu_count(dev: Path = Path("/dev"), path: str | None = None) -> int:
    """How many NVIDIA GPUs this process may open. path: where to look for nvidia-smi.

    A GPU is a device node /dev/nvidia<number>. Where there is none, `nvidia-smi -L` is asked:
    it makes the driver create nodes that nobody has needed since boot, and it knows hosts
    that have no nodes at all. /proc/driver/nvidia is not believed: it lists the host's GPUs
    in every container, also those that were given none.
    """
    try:
        nodes = sum(1 for name in os.listdir(dev) if _NODE.fullmatch(name))
    except OSError:
        nodes = 0
    return nodes or _count_by_smi(path)


def _count_by_smi(path: str | None) -> int:
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return 0
    try:
        answer = subprocess.run(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    if answer.returncode != 0:
        return 0
    # MIG instances follow indented under their GPU.
    return sum(1 for line in answer.stdout.splitlines() if line.startswith("GPU "))


def visible_devices(env_value: str | None, gpu_count: int) -> list[str]:
    """The GPUs a child may use, each as an entry for its CUDA_VISIBLE_DEVICES.

    env_value: our own CUDA_VISIBLE_DEVICES, None when it is not set. Its entries are kept as
    they are (numbers, GPU-..., MIG-...). As for CUDA, an entry that is no device (-1, a
    number that is too large, anything else) ends the list. A repeated entry, for which CUDA
    shows no device at all without a word, is a StartError.
    """
    if gpu_count == 0:
        return []
    if env_value is None:
        return [str(i) for i in range(gpu_count)]
    entries: list[str] = []
    for entry in (part.strip() for part in env_value.split(",")):
        if not _is_device(entry, gpu_count):
            break
        if entry in entries:
            raise StartError(
                f"CUDA_VISIBLE_DEVICES={env_value}: {entry} stands there twice, for which CUDA"
                " shows no device at all; for more workers on a GPU set workers_per_device"
            )
        entries.append(entry)
    return entries


def _is_device(entry: str, gpu_count: int) -> bool:
    if entry.isascii() and entry.isdigit():
        return int(entry) < gpu_count
    return entry.startswith(("GPU-", "MIG-"))


def available_cores(proc: Path = PROC) -> int:
    """CPU cores this process may use: its affinity, cut by the CPU quotas of its cgroups."""
    cores = len(os.sched_getaffinity(0))
    quotas = [quota for level in cgroup_levels("cpu", proc) if (quota := _quota_of(level))]
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas)]))


def _quota_of(level: CgroupLevel) -> float | None:
    """The cores a cgroup's CPU quota amounts to; None without a quota."""
    if level.version == 2:
        words = level.read("cpu.max").split()
        if len(words) != 2 or words[0] == "max":
            return None
        return int(words[0]) / int(words[1])
    quota_us = level.read_number("cpu.cfs_quota_us")
    period_us = level.read_number("cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us else None


def threads_per_worker(cores_available: int, cpu_workers: int) -> int:
    """Threads of computation for each of `cpu_workers` processes: together about the cores."""
    return max(1, cores_available // max(1, cpu_workers))


def thread_settings(threads: int, env: Mapping[str, str]) -> dict[str, str]:
    """What to add to a worker's environment, so that its libraries use `threads` threads.

    Every OpenMP and BLAS library reads OMP_NUM_THREADS unless a variable of its own is set,
    so what the user has set wins.
    """
    return {} if env.get("OMP_NUM_THREADS") else {"OMP_NUM_THREADS": str(threads)}
