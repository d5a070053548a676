"""Shared-memory segments: reserved, nameless, mapped, and never taken away under a reader.

One function makes both kinds. Segments of the pool's own processes come from shm_open and are
unlinked at once; their names carry the creator's pid and start time, so that a starting
supervisor can remove those which a kill between the two calls left behind. Lanes of local
clients are memfds sealed against resizing, because any holder of a shm_open descriptor could
truncate it and kill its other readers with SIGBUS.

Memory is reserved (posix_fallocate), so that a full /dev/shm is an error here and not a
SIGBUS at the first touch.

A mapping is unmapped when the last array on it is gone, never while one is in use.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import secrets
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import posix_ipc

from batchpool.core.errors import StartError
from batchpool.core.layout.segments import HEAD_FIELDS, LANE_MAGIC, VERSION, Column, Layout
from batchpool.core.tensors.dtypes import Array
from batchpool.shm.resource_errors import text_of

PREFIX = "batchpool"
_POPULATE_BELOW = 64 * 2**20
_NAME = re.compile(rf"{PREFIX}\.(\d+)\.(\d+)\.[0-9a-f]+\Z")


class Cells(Protocol):
    """Integers by index: a memoryview, or a simulator's stand-in."""

    def __getitem__(self, at: int, /) -> int: ...
    def __setitem__(self, at: int, value: int, /) -> None: ...


class Octets(Protocol):
    """Bytes by slices: a memoryview, or a simulator's stand-in. A slice of it has `tobytes`."""

    def __getitem__(self, part: slice, /) -> Any: ...
    def __setitem__(self, part: slice, value: bytes | memoryview, /) -> None: ...


class Memory(Protocol):
    """Memory under lanes and worker segments: a mapped segment, or a simulator's stand-in."""

    def cells(self) -> Cells:
        """The whole segment as u64 words."""

    def scalars(self, column: Column) -> Cells:
        """A one-dimensional column for single loads and stores."""

    def array(self, column: Column) -> Array:
        """A column for loads and stores by index, slice or array."""

    def octets(self, column: Column) -> Octets:
        """A column of bytes for loads and stores of runs of them."""


@dataclass
class Segment:
    """One mapped segment."""

    fd: int
    nbytes: int
    map: mmap.mmap

    @classmethod
    def of(cls, fd: int, nbytes: int, *, writable: bool = True) -> Segment:
        """Map a descriptor; the caller keeps the descriptor and may close it any time."""
        size = os.fstat(fd).st_size
        if size < nbytes:
            raise ValueError(f"segment has {size} bytes; {nbytes} were expected")
        flags = mmap.MAP_SHARED
        if nbytes <= _POPULATE_BELOW:
            flags |= mmap.MAP_POPULATE  # later page faults would cost the first requests
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return cls(fd, nbytes, mmap.mmap(fd, nbytes, flags, prot))

    @classmethod
    def blank(cls, nbytes: int) -> Segment:
        """Zeros that nobody shares, in the place of a segment that cannot be mapped."""
        return cls(-1, nbytes, mmap.mmap(-1, nbytes))

    def cells(self) -> memoryview:
        return memoryview(self.map).cast("Q")

    def scalars(self, column: Column) -> memoryview:
        view = memoryview(self.map)[column.offset : column.offset + column.nbytes]
        return view.cast("I") if column.dtype == "u4" else view.cast("q")

    def array(self, column: Column) -> Array:
        count = column.nbytes // int(column.dtype[1:])
        flat = np.frombuffer(self.map, np.dtype(column.dtype), count, column.offset)
        return flat.reshape(column.shape)

    def octets(self, column: Column) -> memoryview:
        return memoryview(self.map)[column.offset : column.offset + column.nbytes]


def create(layout: Layout, *, sealed: bool, whose: str = "") -> int:
    """Make and reserve a segment for a layout, write its head; return its descriptor.

    whose: for the StartError where it cannot be had.
    """
    purpose = f"{layout.kind} of {layout.total_bytes} bytes{f', of {whose}' if whose else ''}"
    try:
        fd = _sealable(layout) if sealed else _nameless(layout.total_bytes)
    except (OSError, posix_ipc.Error) as exc:
        raise StartError(f"cannot create shared memory for a {purpose}: {text_of(exc)}") from exc
    try:
        os.ftruncate(fd, layout.total_bytes)
        os.posix_fallocate(fd, 0, layout.total_bytes)
        head = np.zeros(len(HEAD_FIELDS), dtype=np.uint64)
        head[:] = _head_of(layout)
        os.pwrite(fd, head.tobytes(), 0)
        if sealed:
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError as exc:
        os.close(fd)
        full = exc.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG)
        why = "no room" if full else text_of(exc)
        raise StartError(f"cannot reserve shared memory for a {purpose}: {why}") from exc
    return fd


def free_pages(fd: int, nbytes: int) -> None:
    """Give the memory of a segment back but for its first page, whoever still has its descriptor or
    maps it. It reads as zeros then; what is written to it counts for its writer."""
    with mmap.mmap(fd, nbytes) as memory:
        memory.madvise(mmap.MADV_REMOVE, mmap.PAGESIZE)


def _sealable(layout: Layout) -> int:
    return os.memfd_create(f"{PREFIX}-{layout.kind}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _nameless(nbytes: int) -> int:
    name = f"/{PREFIX}.{os.getpid()}.{start_time(os.getpid())}.{secrets.token_hex(8)}"
    segment = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
    segment.unlink()
    os.set_inheritable(segment.fd, False)
    return int(segment.fd)


def _head_of(layout: Layout) -> list[int]:
    digest = int(layout.digest, 16)
    low, high = digest & (2**64 - 1), digest >> 64
    return [
        LANE_MAGIC,
        VERSION,
        layout.slots,
        layout.capacity,
        layout.total_bytes,
        low,
        high,
    ]


def map_checked(fd: int, layout: Layout, *, writable: bool = True) -> Segment:
    """Map a segment after its head was compared with the layout; ValueError on a mismatch."""
    raw = os.pread(fd, 8 * len(HEAD_FIELDS), 0).ljust(8 * len(HEAD_FIELDS), b"\0")
    if damage := head_damage(memoryview(raw).cast("Q"), layout):
        raise ValueError(damage)
    return Segment.of(fd, layout.total_bytes, writable=writable)


def head_damage(cells: Cells, layout: Layout) -> str:
    """The first word of a head that is not that of a layout, in words; "" if all are."""
    for at, (field, want) in enumerate(zip(HEAD_FIELDS, _head_of(layout), strict=True)):
        if (have := cells[at]) != want:
            return f"segment of another layout: its {field} is {have:#x}, {want:#x} was expected"
    return ""


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def remove_leftovers(folder: str = "/dev/shm") -> list[str]:
    """Remove our segments there whose creator is dead; return their names."""
    removed = []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or start_time(int(match[1])) == int(match[2]):
            continue
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:
            continue  # another user's, or gone already
        removed.append(name)
    return removed


def word(layout: Layout, name: str) -> int:
    """The index of a named word among the segment's u64 cells."""
    return layout.words[name] // 8


def ring_parts(memory: Memory, layout: Layout, ring: str) -> tuple[Cells, Array, int, int]:
    """(cells, entries, tail index, head index) of the ring "sq" or "cq"."""
    entries = memory.array(layout.columns[ring])
    return memory.cells(), entries, word(layout, f"{ring}_tail"), word(layout, f"{ring}_head")
