"""Freed memory goes back to the system."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from batchpool.process.heap import limited_memory

SCRIPT = """
from batchpool.process.heap import return_large_blocks

return_large_blocks()

def held_mib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssAnon"))

before = held_mib()
for _ in range(3):
    grown = bytearray()  # as a body that arrives in many reads
    for _ in range(24 * 4):
        grown += bytes(1 << 18)
    kept = bytearray(1 << 16)  # stands behind it
    del grown
print(held_mib() - before)
"""


def test_bodies_that_were_freed_are_not_held() -> None:
    """Without the call it is the size of a body: 25 MiB."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(run.stdout) <= 10


def test_more_memory_than_allowed_is_an_error_and_all_is_as_before_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limited_memory(64 << 20):
        assert len(bytearray(16 << 20)) == 16 << 20
        with pytest.raises(MemoryError):
            bytearray(256 << 20)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    with pytest.raises(KeyError), limited_memory(1 << 20):
        raise KeyError
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(256 << 20)) == 256 << 20
