"""An array whose pages were made private keeps its values, its place and its writability."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from batchpool.core.tensors.dtypes import Array
from batchpool.shm.private_pages import make_private

PAGES = 8


def mapped() -> tuple[int, Array, Array]:
    """A descriptor, and its memory as two processes would map it."""
    fd = os.memfd_create("pages")
    os.ftruncate(fd, PAGES * mmap.PAGESIZE)
    one, other = (np.frombuffer(mmap.mmap(fd, 0), np.uint8) for _ in range(2))
    one[:] = np.arange(one.size) % 251
    return fd, one, other


@pytest.mark.parametrize(("first", "size"), [(5000, 3), (4096, 4096), (4090, 10000), (0, 1)])
def test_what_the_other_side_writes_is_not_seen_any_more(first: int, size: int) -> None:
    fd, one, other = mapped()
    os.close(fd)
    part = one[first : first + size]
    before, address = one.copy(), part.ctypes.data
    make_private(part)
    other[:] = 0
    np.testing.assert_array_equal(part, before[first : first + size])
    assert part.ctypes.data == address
    part[0] = 99
    assert not other.any()
    begin, end = first // 4096, -(-(first + size) // 4096)
    shared = [i for i in range(PAGES) if not begin <= i < end]
    assert not any(one[i * 4096 : (i + 1) * 4096].any() for i in shared), "others stay shared"
    make_private(part)
    assert part[0] == 99, "a second time changes nothing"


def test_nothing_is_made_private_of_an_empty_array() -> None:
    fd, one, other = mapped()
    os.close(fd)
    make_private(one[7:7])
    other[:] = 3
    assert (one == 3).all()


def test_where_there_is_no_memory_all_stays_as_it_was() -> None:
    fd, one, other = mapped()
    os.close(fd)
    endless = np.lib.stride_tricks.as_strided(one, (1 << 50,), (1,))
    with pytest.raises(OSError, match="no private copy of 11258999068"):
        make_private(endless)
    other[:] = 3
    assert (one == 3).all()
