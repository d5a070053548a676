"""The return of freed memory to the system.

glibc keeps freed blocks of up to 32 MiB in the heap once one of them has been freed, so that a
process would hold what its callers once sent at most for as long as it lives.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MMAPPED_BYTES = 4 << 20  # a block so large takes longer to fill than to map
_KEPT_BYTES = 8 << 20
_FREE_BYTES = 4 << 20

_C = ctypes.CDLL(None)


class _MallocFigures(ctypes.Structure):
    """The `struct mallinfo2` of glibc. fordblks: free bytes in the heap, returned ones included."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def return_large_blocks() -> None:
    """Give blocks of 4 MiB and more back to the system when they are freed, and what is free at the
    end of the heap beyond 8 MiB. Call it before any thread is started: all of them share one heap
    then, since `mallinfo2` tells of no other one, so that what they freed would stay. Does nothing
    for a C library without `mallopt`."""
    try:
        mallopt = _C.mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, _MMAPPED_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Give the whole pages that are free within the heap back to the system, if 4 MiB are free.

    What stands behind a freed block keeps it in the heap: after many bodies of many sizes a heap
    of 600 MiB may hold 30 MiB. Takes 40 us per MiB that is given back, and 0.1 ms where all is
    given back already. Does nothing for a C library without `mallinfo2`.
    """
    try:
        figures, trim = _C.mallinfo2, _C.malloc_trim
    except AttributeError:
        return
    figures.restype = _MallocFigures
    if figures().fordblks > _FREE_BYTES:
        trim(0)


@contextmanager
def limited_memory(more_bytes: int) -> Iterator[None]:
    """Allocations beyond so many bytes more than now raise MemoryError within the block.

    For a process of one thread: the limit is that of the process's address space.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    most = now_bytes + more_bytes
    limits = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
