"""A process that has no more descriptors, for a while."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def open_files() -> int:
    """The number of this process's descriptors, after garbage of other tests was collected."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def no_descriptors(but: int = 0) -> Iterator[None]:
    """No descriptor can be had meanwhile, or only so many."""
    gc.collect()  # what it gives back meanwhile could be had
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 1 + but
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for _ in range(but):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
