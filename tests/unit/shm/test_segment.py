"""Segments: nameless, reserved, sealed, and mapped only if the layout is the expected one."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import posix_ipc
import pytest

from batchpool.core.errors import StartError
from batchpool.core.layout.segments import PAGE, heartbeats_layout, lane_layout, worker_layout
from batchpool.shm import segment
from batchpool.shm.segment import Segment, create, map_checked, remove_leftovers, start_time
from tests.unit.specs import AFFINE, MIXED

LAYOUT = lane_layout(AFFINE, 8)


def ours_in_dev_shm() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("batchpool.")}


@pytest.fixture(params=[False, True], ids=["nameless", "sealed"])
def fd(request: pytest.FixtureRequest) -> Iterator[int]:
    fd = create(LAYOUT, sealed=request.param)
    yield fd
    os.close(fd)


def test_nothing_is_left_in_dev_shm() -> None:
    fds = [create(LAYOUT, sealed=sealed) for sealed in (False, True)]
    assert not any(name.startswith(f"batchpool.{os.getpid()}.") for name in ours_in_dev_shm())
    for fd in fds:
        os.close(fd)


def test_the_whole_segment_is_reserved_zeroed_and_private(fd: int) -> None:
    found = os.fstat(fd)
    assert found.st_size == LAYOUT.total_bytes
    assert found.st_blocks * 512 >= LAYOUT.total_bytes
    assert found.st_nlink == 0
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert not any(os.pread(fd, LAYOUT.total_bytes, PAGE))


def test_a_segment_of_the_pools_own_is_its_users_alone() -> None:
    """C49: no segment can be read or written by others."""
    fd = create(LAYOUT, sealed=False)
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    os.close(fd)


def test_two_mappings_see_each_others_stores(fd: int) -> None:
    ours, theirs = map_checked(fd, LAYOUT), map_checked(fd, LAYOUT)
    state = LAYOUT.columns["state"]
    ours.scalars(state)[3] = 2**32 - 1
    assert theirs.array(state).tolist() == [0, 0, 0, 2**32 - 1, 0, 0, 0, 0]
    deadline = LAYOUT.columns["deadline_ns"]
    theirs.array(deadline)[2:4] = (-1, 2**63 - 1)
    assert ours.scalars(deadline).tolist() == [0, 0, -1, 2**63 - 1, 0, 0, 0, 0]
    at = LAYOUT.words["sq_tail"] // 8
    ours.cells()[at] = 2**64 - 1
    assert theirs.cells()[at] == 2**64 - 1
    x = LAYOUT.columns["in.x"]
    ours.array(x)[5] = 1.5
    assert theirs.array(x)[5].tolist() == [1.5] * 4
    assert theirs.array(x).shape == (8, 4)


def test_the_mapping_outlives_the_descriptor_and_the_segment_object() -> None:
    fd = create(LAYOUT, sealed=True)
    segment_ = map_checked(fd, LAYOUT)
    os.close(fd)
    rows = segment_.array(LAYOUT.columns["in.x"])
    word = segment_.cells()
    del segment_
    rows[0] = 7
    word[LAYOUT.words["gate"] // 8] = 1
    assert rows[0].tolist() == [7] * 4


def test_a_read_only_mapping(fd: int) -> None:
    mapped = map_checked(fd, LAYOUT, writable=False)
    with pytest.raises(TypeError):
        mapped.cells()[1] = 1
    with pytest.raises(ValueError, match="read-only"):
        mapped.array(LAYOUT.columns["state"])[0] = 1


# -- seals ----------------------------------------------------------------------------------


def test_a_sealed_segment_keeps_its_size_whoever_holds_it() -> None:
    fd = create(LAYOUT, sealed=True)
    mapped = map_checked(fd, LAYOUT)
    theirs = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    for holder in (fd, theirs):
        for size in (0, PAGE, LAYOUT.total_bytes + PAGE):
            with pytest.raises(OSError, match="not permitted") as caught:
                os.ftruncate(holder, size)
            assert caught.value.errno == errno.EPERM
        with pytest.raises(OSError, match="not permitted"):
            fcntl.fcntl(holder, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(theirs, b"x", LAYOUT.total_bytes)
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == (
        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
    mapped.array(LAYOUT.columns["in.x"])[:] = 3  # still there, still writable
    os.close(theirs)
    os.close(fd)


# -- another layout -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (lane_layout(AFFINE, 9), "slots"),
        (lane_layout(MIXED, 8), "total_bytes"),
        (worker_layout(8, 8), "slots"),
        (heartbeats_layout(8), "capacity"),
    ],
)
def test_another_layout_is_refused(fd: int, other: segment.Layout, field: str) -> None:
    """C57: by the words of its head, before anything else of it is read."""
    with pytest.raises(ValueError, match=f"segment of another layout: its {field} is 0x"):
        map_checked(fd, other)


def test_the_same_sizes_with_another_digest_are_refused(fd: int) -> None:
    twin = replace(LAYOUT, digest="0" * 32)
    with pytest.raises(ValueError, match="its digest_0 is 0x"):
        map_checked(fd, twin)


@pytest.mark.parametrize("word", range(len(segment.HEAD_FIELDS)))
def test_every_word_of_the_head_is_compared(fd: int, word: int) -> None:
    before = os.pread(fd, 8, 8 * word)
    os.pwrite(fd, (int.from_bytes(before, "little") ^ 1).to_bytes(8, "little"), 8 * word)
    with pytest.raises(ValueError, match=f"its {segment.HEAD_FIELDS[word]} is 0x"):
        map_checked(fd, LAYOUT)


@pytest.mark.parametrize("size", [0, 7, 8, 40, 56, PAGE, LAYOUT.total_bytes - 1])
def test_a_segment_that_is_too_short_is_refused_and_not_a_sigbus(size: int) -> None:
    whole = create(LAYOUT, sealed=False)
    short = os.memfd_create("short")
    os.write(short, os.pread(whole, size, 0))
    with pytest.raises(ValueError, match=r"segment|buffer"):
        map_checked(short, LAYOUT)
    os.close(short)
    os.close(whole)


def test_small_segments_are_mapped_with_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def mapped(fd: int, nbytes: int, flags: int, prot: int) -> mmap.mmap:
        seen.append(flags)
        return real(fd, nbytes, flags, prot)

    real = mmap.mmap
    fd = create(LAYOUT, sealed=True)
    monkeypatch.setattr(segment.mmap, "mmap", mapped)
    Segment.of(fd, LAYOUT.total_bytes)
    monkeypatch.setattr(segment, "_POPULATE_BELOW", LAYOUT.total_bytes - 1)
    Segment.of(fd, LAYOUT.total_bytes)
    os.close(fd)
    assert [bool(flags & mmap.MAP_POPULATE) for flags in seen] == [True, False]


# -- no room --------------------------------------------------------------------------------


@pytest.fixture
def one_mib(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB; only root can mount one."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize(("slots", "fits"), [(8, True), (64 * 1024, False)])
def test_no_room_is_an_error_that_says_so(
    one_mib: Path, monkeypatch: pytest.MonkeyPatch, slots: int, fits: bool
) -> None:
    def in_the_small_one(nbytes: int) -> int:
        path = one_mib / secrets.token_hex(8)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        path.unlink()
        return fd

    monkeypatch.setattr(segment, "_nameless", in_the_small_one)
    layout = lane_layout(AFFINE, slots)
    gc.collect()  # what earlier tests forgot must not go between two looks
    before = set(os.listdir("/proc/self/fd"))
    if fits:
        os.close(create(layout, sealed=False))
    else:
        text = f"cannot reserve shared memory for a lane of {layout.total_bytes} bytes: no room"
        with pytest.raises(StartError, match=text):
            create(layout, sealed=False)
    assert set(os.listdir("/proc/self/fd")) == before
    assert os.statvfs(one_mib).f_bfree * os.statvfs(one_mib).f_frsize == 2**20


def test_a_directory_that_takes_no_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise posix_ipc.PermissionsError("No permission to create this segment")

    monkeypatch.setattr(posix_ipc, "SharedMemory", refuse)
    with pytest.raises(StartError, match=r"cannot create shared memory for a lane .*permission"):
        create(LAYOUT, sealed=False)


# -- leftovers ------------------------------------------------------------------------------


def test_start_times_tell_processes_apart() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert start_time(child.pid) > start_time(1) > 0
    assert start_time(os.getpid()) > 0
    child.communicate(b"\n")
    assert start_time(child.pid) == 0


def test_a_segment_left_between_its_two_calls_is_removed_and_no_other(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    pid, start = os.getpid(), start_time(os.getpid())
    left = {
        f"batchpool.{dead.pid}.{start}.0123456789abcdef",  # its creator is dead
        f"batchpool.{pid}.{start - 1}.aa",  # the pid is another process's by now
    }
    kept = {
        f"batchpool.{pid}.{start}.0123456789abcdef",  # ours, alive
        f"batchpool.{pid}.{start}.ff",
        f"batchpool.{dead.pid}.{start}.XYZ",
        f"batchpool.{dead.pid}.{start}.aa.bak",
        f"batchpool.{dead.pid}.aa",
        f"xbatchpool.{dead.pid}.{start}.aa",
        f"batchpool-lane.{dead.pid}.{start}.aa",
        "sem.other",
    }
    for name in left | kept:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / f"batchpool.{dead.pid}.{start}.dd").mkdir()  # cannot be unlinked: goes on
    assert set(remove_leftovers(str(tmp_path))) == left
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == kept
    assert remove_leftovers(str(tmp_path)) == []
    assert remove_leftovers(str(tmp_path / "nowhere")) == []


def test_a_creator_killed_before_the_unlink_leaves_what_the_next_start_removes() -> None:
    code = (
        "import os, posix_ipc, signal\n"
        "from batchpool.core.layout.segments import state_page_layout\n"
        "from batchpool.shm import segment\n"
        "class Killed(posix_ipc.SharedMemory):\n"
        "    def unlink(self): os.kill(os.getpid(), signal.SIGKILL)\n"
        "posix_ipc.SharedMemory = Killed\n"
        "segment.create(state_page_layout(), sealed=False)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    assert killed.wait(60) == -signal.SIGKILL
    theirs = f"batchpool.{killed.pid}."
    (left,) = [name for name in ours_in_dev_shm() if name.startswith(theirs)]
    assert left in remove_leftovers()
    assert left not in ours_in_dev_shm()


def test_parts_of_a_ring() -> None:
    fd = create(LAYOUT, sealed=True)
    mapped = map_checked(fd, LAYOUT)
    os.close(fd)
    cells, entries, tail, head = segment.ring_parts(mapped, LAYOUT, "sq")
    assert (8 * tail, 8 * head) == (LAYOUT.words["sq_tail"], LAYOUT.words["sq_head"])
    assert entries.dtype == np.uint64
    assert len(entries) == LAYOUT.capacity == 8
    entries[7] = 5
    assert cells[LAYOUT.columns["sq"].offset // 8 + 7] == 5


def test_freed_pages_are_given_back_although_somebody_maps_them() -> None:
    layout = worker_layout(4096, 4)
    fd = segment.create(layout, sealed=True)
    kept = segment.map_checked(fd, layout)
    words = memoryview(kept.map)
    words[-1] = 7
    held = os.fstat(fd).st_blocks * 512
    assert held >= layout.total_bytes
    segment.free_pages(fd, layout.total_bytes)
    assert os.fstat(fd).st_blocks * 512 <= mmap.PAGESIZE
    assert words[-1] == 0
    segment.map_checked(fd, layout)  # the head is still there
    os.close(fd)
