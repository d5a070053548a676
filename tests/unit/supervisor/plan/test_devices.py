"""Which GPUs a child may use and under which name; how many cores there are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batchpool.core.errors import StartError
from batchpool.supervisor.plan.devices import (
    available_cores,
    gpu_count,
    visible_devices,
)

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2"


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,3", ["2", "3"]),
        ("3, 1", ["3", "1"]),
        (UUID, [UUID]),
        ("GPU-89", ["GPU-89"]),
        (f"{MIG},MIG-1/0/0", [MIG, "MIG-1/0/0"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("1,4,2", ["1"]),
        ("NoDevFiles", []),
        ("0,,1", ["0"]),
        ("0,two", ["0"]),
        ("00", ["00"]),
    ],
)
def test_entries_of_the_parent_are_kept_unchanged(value: str | None, visible: list[str]) -> None:
    """C61: numbers, UUIDs, prefixes, MIG, empty and -1."""
    assert visible_devices(value, 4) == visible


@pytest.mark.parametrize("value", [None, "0", "2,3", UUID, MIG])
def test_a_box_without_gpus_has_none_whatever_is_set(value: str | None) -> None:
    assert visible_devices(value, 0) == []


@pytest.mark.parametrize(("value", "entry"), [("0,0", "0"), (f"{UUID},{UUID}", UUID)])
def test_a_repeated_entry_is_refused(value: str, entry: str) -> None:
    """C61: 0,0 would be two workers on one GPU."""
    with pytest.raises(StartError) as caught:
        visible_devices(value, 4)
    assert str(caught.value).startswith(
        f"CUDA_VISIBLE_DEVICES={value}: {entry} stands there twice,"
    )


def smi(directory: Path, script: str) -> str:
    """A directory with a program nvidia-smi of this text; to be used as PATH."""
    directory.mkdir()
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(directory)


def test_device_nodes_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert gpu_count(tmp_path, path="") == 3


def test_without_nodes_the_driver_s_program_is_asked(tmp_path: Path) -> None:
    path = smi(
        tmp_path / "bin",
        'echo "GPU 0: NVIDIA H100 (UUID: GPU-1)"; echo "  MIG 1g.10gb Device 0: (UUID: MIG-1)";'
        ' echo "GPU 1: NVIDIA H100 (UUID: GPU-2)"',
    )
    assert gpu_count(tmp_path, path) == 2
    assert gpu_count(tmp_path / "no such directory", path) == 2


@pytest.mark.parametrize("script", ["echo 'No devices were found'", "echo 'GPU 0: x'; exit 9"])
def test_a_program_that_finds_none_means_none(tmp_path: Path, script: str) -> None:
    assert gpu_count(tmp_path, smi(tmp_path / "bin", script)) == 0


def test_neither_nodes_nor_program_means_none(tmp_path: Path) -> None:
    assert gpu_count(tmp_path, path=str(tmp_path)) == 0


def cpu_proc(root: Path, membership: str, filesystem: str) -> tuple[Path, Path]:
    proc, top = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(membership + "\n")
    (proc / "self" / "mountinfo").write_text(f"35 31 0:32 / {top} rw - {filesystem}\n")
    (top / "a" / "b").mkdir(parents=True)
    return proc, top


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


@pytest.mark.usefixtures("sixteen_cores")
class TestAvailableCores:
    def test_affinity_alone(self, tmp_path: Path) -> None:
        assert available_cores(tmp_path) == 16

    @pytest.mark.parametrize(
        ("own", "parent", "cores"),
        [
            ("max 100000", "max 100000", 16),
            ("400000 100000", "max 100000", 4),
            ("max 100000", "250000 100000", 3),
            ("400000 100000", "200000 100000", 2),
            ("10000 100000", "max 100000", 1),
            ("6400000 100000", "max 100000", 16),
        ],
    )
    def test_version_2_quota(self, tmp_path: Path, own: str, parent: str, cores: int) -> None:
        """C63: a cgroup's quota counts."""
        proc, top = cpu_proc(tmp_path, "0::/a/b", "cgroup2 cgroup2 rw")
        (top / "a" / "b" / "cpu.max").write_text(own + "\n")
        (top / "a" / "cpu.max").write_text(parent + "\n")
        assert available_cores(proc) == cores

    @pytest.mark.parametrize(("quota_us", "cores"), [("-1", 16), ("150000", 2), ("50000", 1)])
    def test_version_1_quota(self, tmp_path: Path, quota_us: str, cores: int) -> None:
        proc, top = cpu_proc(tmp_path, "3:cpu,cpuacct:/a/b", "cgroup cgroup rw,cpu,cpuacct")
        (top / "a" / "cpu.cfs_quota_us").write_text(quota_us + "\n")
        (top / "a" / "cpu.cfs_period_us").write_text("100000\n")
        assert available_cores(proc) == cores


def test_nothing_here_imports_torch() -> None:
    code = "import sys, batchpool.supervisor.plan.discover; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "False"
