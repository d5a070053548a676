"""Every limit of shared memory is found with its exact room, and the smallest one is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from batchpool.core.errors import StartError
from batchpool.shm.memory_limits import Limit, check_room, read_limits, size_text

MIB = 1 << 20
SHM = Path("/dev/shm")


def tmpfs(blocks: int, available: int, block_bytes: int = 4096) -> os.statvfs_result:
    return os.statvfs_result((block_bytes, block_bytes, blocks, blocks, available, 0, 0, 0, 0, 255))


def always(result: os.statvfs_result) -> Callable[[Path], os.statvfs_result]:
    return lambda path: result


class Machine:
    """A fake /proc with the cgroup trees it points to."""

    def __init__(self, root: Path, available_kib: int) -> None:
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text(
            f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {available_kib} kB\n"
        )
        (self.proc / "self" / "cgroup").write_text("")
        (self.proc / "self" / "mountinfo").write_text("")

    def joins(self, membership: str, mount: str) -> None:
        with (self.proc / "self" / "cgroup").open("a") as file:
            file.write(membership + "\n")
        with (self.proc / "self" / "mountinfo").open("a") as file:
            file.write(f"35 31 0:32 / {self.cgroups} rw - {mount}\n")

    def has(self, path: str, **files: str | int) -> None:
        directory = self.cgroups / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, available_kib=8 * 1024 * 1024)


def test_a_machine_without_cgroups(machine: Machine) -> None:
    assert read_limits(machine.proc, SHM, always(tmpfs(100, 40))) == [
        Limit("/dev/shm size", 40 * 4096),
        Limit("free memory of the machine, MemAvailable", 8 << 30),
    ]


def test_memfds_do_not_count_in_dev_shm(machine: Machine) -> None:
    assert read_limits(machine.proc, shm_dir=None) == [
        Limit("free memory of the machine, MemAvailable", 8 << 30)
    ]


def test_a_tmpfs_without_a_size_is_no_limit(machine: Machine) -> None:
    limits = read_limits(machine.proc, SHM, always(tmpfs(0, 0)))
    assert [limit.name for limit in limits] == ["free memory of the machine, MemAvailable"]


def test_a_missing_dev_shm_has_no_room(machine: Machine, tmp_path: Path) -> None:
    limits = read_limits(machine.proc, tmp_path / "none")
    assert limits[0] == Limit(f"{tmp_path / 'none'} cannot be used: No such file or directory", 0)


def test_version_2_counts_every_parent_and_gives_back_idle_cache(machine: Machine) -> None:
    machine.joins("0::/jobs/pool", "cgroup2 cgroup2 rw")
    machine.has("jobs/pool", memory__max="max", memory__high="max", memory__current=50 * MIB)
    machine.has(
        "jobs",
        memory__max=300 * MIB,
        memory__high=200 * MIB,
        memory__current=120 * MIB,
        memory__stat=f"anon 1\ninactive_file {20 * MIB}\nactive_file 5",
    )
    machine.has("")  # the top has no memory files
    assert read_limits(machine.proc, shm_dir=None)[1:] == [
        Limit("memory.max of cgroup /jobs", 200 * MIB),
        Limit("memory.high of cgroup /jobs", 100 * MIB),
    ]


def test_a_cgroup_above_its_limit_has_no_room(machine: Machine) -> None:
    machine.joins("0::/a", "cgroup2 cgroup2 rw")
    machine.has("a", memory__max=10 * MIB, memory__current=11 * MIB)
    assert read_limits(machine.proc, shm_dir=None)[1:] == [Limit("memory.max of cgroup /a", 0)]


def test_more_idle_cache_than_use_is_no_extra_room(machine: Machine) -> None:
    machine.joins("0::/a", "cgroup2 cgroup2 rw")
    machine.has("a", memory__max=10, memory__current=4, memory__stat="inactive_file 6")
    assert read_limits(machine.proc, shm_dir=None)[1:] == [Limit("memory.max of cgroup /a", 10)]


def test_version_1_with_parents_and_its_number_for_no_limit(machine: Machine) -> None:
    machine.joins("4:memory:/docker/abc", "cgroup cgroup rw,memory")
    machine.has(
        "docker/abc",
        memory__limit_in_bytes=512 * MIB,
        memory__usage_in_bytes=200 * MIB,
        memory__stat=f"inactive_file 1\ntotal_inactive_file {50 * MIB}",
    )
    machine.has("docker", memory__limit_in_bytes=400 * MIB, memory__usage_in_bytes=300 * MIB)
    machine.has("", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=7000 * MIB)
    assert read_limits(machine.proc, shm_dir=None)[1:] == [
        Limit("memory.limit_in_bytes of cgroup /docker/abc", 362 * MIB),
        Limit("memory.limit_in_bytes of cgroup /docker", 100 * MIB),
    ]


def test_room_is_measured_against_the_smallest() -> None:
    limits = [Limit("first", 30 * MIB), Limit("/dev/shm size", 15 * MIB), Limit("third", 1 << 40)]
    check_room(15 * MIB, limits)
    with pytest.raises(StartError) as caught:
        check_room(1_288_490_189, limits)
    assert str(caught.value) == (
        "shared memory: needs 1.2 GiB, but only 15.0 MiB are available (limit: /dev/shm size);"
        " lower slots, max_batch or frontends, or raise that limit"
    )


def test_one_byte_too_many_is_told_in_bytes() -> None:
    with pytest.raises(StartError, match="needs 15728641 bytes, but only 15728640 bytes are"):
        check_room(15 * MIB + 1, [Limit("x", 15 * MIB)])


def test_no_known_limit_refuses_nothing() -> None:
    check_room(1 << 60, [])


def test_this_machine_has_limits_with_room() -> None:
    limits = read_limits()
    assert "/dev/shm size" in {limit.name for limit in limits}
    check_room(4096, limits)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (MIB - 1, "1.0 MiB"),
        (MIB, "1.0 MiB"),
        (15 * MIB, "15.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (3 << 39, "1.5 TiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert size_text(size) == text
