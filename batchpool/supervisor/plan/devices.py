"""The devices of this machine: GPUs as the workers will see them, and CPU cores.

Nothing here imports torch or uses CUDA: a process with a CUDA context could not start clean
workers. GPUs are named as in CUDA_VISIBLE_DEVICES, and each worker gets one item of that list
unchanged, because a number in it counts physical devices, not the items of the list.
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
    """Count the NVIDIA GPUs that this process may open. path: the search path for nvidia-smi.

    A GPU is a device node /dev/nvidia<number>. Where there is none, `nvidia-smi -L` is run: it
    makes the driver create nodes that were not needed since boot, and works on hosts without nodes.
    /proc/driver/nvidia is not used: in every container it lists the host's GPUs, also in one that
    may use none of them.
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
        result = subprocess.run(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    if result.returncode != 0:
        return 0
    # Indented lines are MIG instances of the GPU above.
    return sum(1 for line in result.stdout.splitlines() if line.startswith("GPU "))


def visible_devices(env_value: str | None, gpu_count: int) -> list[str]:
    """The GPUs that workers may use, each as a value for a worker's CUDA_VISIBLE_DEVICES.

    env_value: CUDA_VISIBLE_DEVICES of this process, None when it is not set. Its items are kept as
    they are (numbers, GPU-..., MIG-...). As for CUDA, an item that is no device (-1, a number that
    is too large, anything else) ends the list. Raises StartError for a repeated item, with which
    CUDA silently shows no device at all.
    """
    if gpu_count == 0:
        return []
    if env_value is None:
        return [str(i) for i in range(gpu_count)]
    devices: list[str] = []
    for device in (part.strip() for part in env_value.split(",")):
        if not _is_device(device, gpu_count):
            break
        if device in devices:
            raise StartError(
                f"CUDA_VISIBLE_DEVICES={env_value}: {device} stands there twice, for which CUDA"
                " shows no device at all; for more workers on a GPU set workers_per_device"
            )
        devices.append(device)
    return devices


def _is_device(device: str, gpu_count: int) -> bool:
    if device.isascii() and device.isdigit():
        return int(device) < gpu_count
    return device.startswith(("GPU-", "MIG-"))


def available_cores(proc: Path = PROC) -> int:
    """The CPU cores this process may use: its affinity, limited by its cgroups' quotas."""
    cores = len(os.sched_getaffinity(0))
    quotas = [quota for level in cgroup_levels("cpu", proc) if (quota := _quota_of(level))]
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas)]))


def _quota_of(level: CgroupLevel) -> float | None:
    """The CPU quota of a cgroup as a number of cores; None without a quota."""
    if level.version == 2:
        words = level.read("cpu.max").split()
        if len(words) != 2 or words[0] == "max":
            return None
        return int(words[0]) / int(words[1])
    quota_us = level.read_number("cpu.cfs_quota_us")
    period_us = level.read_number("cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us else None


def cpu_stage_settings(threads: int, env: Mapping[str, str]) -> dict[str, str]:
    """Further environment variables of a process that pre- or postprocesses: it sees no GPU, and
    libraries written in Rust (rayon) take `threads` threads unless the user has said otherwise."""
    rayon = {} if env.get("RAYON_NUM_THREADS") else {"RAYON_NUM_THREADS": str(threads)}
    return {"CUDA_VISIBLE_DEVICES": "", **rayon}
