"""Which cgroups hold for us, on trees of version 1, version 2, both, and in containers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from batchpool.shm.cgroups import CgroupLevel, cgroup_levels


def fake_proc(root: Path, memberships: Iterable[str], mounts: Iterable[str]) -> Path:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in memberships))
    (proc / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    return proc


def v2_mount(at: Path, root: str = "/") -> str:
    return f"26 1 0:24 {root} {at} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def v1_mount(at: Path, controllers: str, root: str = "/") -> str:
    return f"35 31 0:32 {root} {at} rw,relatime - cgroup cgroup rw,{controllers}"


def test_version_2_lists_ours_and_every_parent(tmp_path: Path) -> None:
    top = tmp_path / "cg"
    proc = fake_proc(tmp_path, ["0::/system.slice/pool.service"], [v2_mount(top)])
    assert cgroup_levels("memory", proc) == [
        CgroupLevel(2, top / "system.slice" / "pool.service", "/system.slice/pool.service"),
        CgroupLevel(2, top / "system.slice", "/system.slice"),
        CgroupLevel(2, top, "/"),
    ]


def test_version_1_takes_the_hierarchy_of_the_controller(tmp_path: Path) -> None:
    memory, cpu = tmp_path / "cg" / "memory", tmp_path / "cg" / "cpu,cpuacct"
    proc = fake_proc(
        tmp_path,
        ["9:name=systemd:/x", "4:memory:/jobs/one", "3:cpu,cpuacct:/slow"],
        [v1_mount(cpu, "cpu,cpuacct"), v1_mount(memory, "memory")],
    )
    assert [level.path for level in cgroup_levels("memory", proc)] == [
        memory / "jobs" / "one",
        memory / "jobs",
        memory,
    ]
    assert [level.path for level in cgroup_levels("cpu", proc)] == [cpu / "slow", cpu]
    assert {level.version for level in cgroup_levels("cpu", proc)} == {1}


def test_both_versions_at_once_are_both_listed(tmp_path: Path) -> None:
    one, two = tmp_path / "memory", tmp_path / "unified"
    proc = fake_proc(tmp_path, ["4:memory:/a", "0::/b"], [v1_mount(one, "memory"), v2_mount(two)])
    assert [(level.version, level.path) for level in cgroup_levels("memory", proc)] == [
        (1, one / "a"),
        (1, one),
        (2, two / "b"),
        (2, two),
    ]


def test_a_container_sees_only_its_part_of_the_path(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    proc = fake_proc(
        tmp_path, ["4:memory:/docker/abc/child"], [v1_mount(top, "memory", "/docker/abc")]
    )
    assert [level.path for level in cgroup_levels("memory", proc)] == [top / "child", top]


@pytest.mark.parametrize("path", ["/elsewhere", "/docker/abcd", "/../../host"])
def test_a_path_outside_of_the_mount_leaves_the_mounted_top(tmp_path: Path, path: str) -> None:
    top = tmp_path / "memory"
    root = "/" if ".." in path else "/docker/abc"
    proc = fake_proc(tmp_path, [f"4:memory:{path}"], [v1_mount(top, "memory", root)])
    assert [level.path for level in cgroup_levels("memory", proc)] == [top]


def test_blanks_in_a_mount_point_are_unescaped(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, ["0::/"], ["1 1 0:1 / /cg\\040here rw - cgroup2 none rw"])
    assert [level.path for level in cgroup_levels("memory", proc)] == [Path("/cg here")]


def test_no_mount_and_no_proc_mean_no_levels(tmp_path: Path) -> None:
    assert cgroup_levels("memory", fake_proc(tmp_path, ["0::/"], ["junk", "1 2 3 - x"])) == []
    assert cgroup_levels("memory", tmp_path / "nowhere") == []


def test_files_of_a_level(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("4096\n")
    (tmp_path / "memory.high").write_text("max\n")
    (tmp_path / "quota").write_text("-1\n")
    (tmp_path / "memory.stat").write_text("active_file 7\ninactive_file 12\n")
    level = CgroupLevel(2, tmp_path, "/")
    assert level.read_number("memory.max") == 4096
    assert level.read_number("memory.high") is None
    assert level.read_number("quota") is None
    assert level.read_number("missing") is None
    assert level.read("missing") == ""
    assert level.read_field("memory.stat", "inactive_file") == 12
    assert level.read_field("memory.stat", "file") == 0
