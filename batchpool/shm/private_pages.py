"""Shared pages made private where they are, so that arrays in them outlive the segment's contents.

The pool frees the pages of a lane whose client has gone, after which they read as zeros for all who
still map them. Whoever shows arrays of such a lane makes their pages its own before it goes: a copy
of them is moved over the old mapping in one step (mremap), so that every pointer stays right and no
reader sees anything in between.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from batchpool.core.tensors.dtypes import Array

_MAYMOVE, _FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
)


def make_private(array: Array) -> None:
    """Make the pages in which a contiguous array lies this process's own, with what they hold now.

    Other contents of these pages are cut off from the segment too. Raises OSError where there is no
    memory, with everything as it was.
    """
    if array.nbytes == 0:
        return
    begin = array.__array_interface__["data"][0]
    start = begin // mmap.PAGESIZE * mmap.PAGESIZE
    stop = -(-(begin + array.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    nbytes = stop - start
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
    if copy == _FAILED:
        raise _error(nbytes)
    ctypes.memmove(copy, start, nbytes)
    if _libc.mremap(copy, nbytes, nbytes, _MAYMOVE | _FIXED, start) == _FAILED:
        raise _error(nbytes)


def _error(nbytes: int) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"no private copy of {nbytes} bytes: {os.strerror(number)}")
