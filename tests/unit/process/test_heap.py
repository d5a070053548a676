"""Freed memory goes back to the system."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from batchpool.process.heap import limited_memory

BEGIN = """
from batchpool.process.heap import return_free_memory, return_large_blocks

return_large_blocks()

def held_mib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssAnon"))

"""
LARGE = """
before = held_mib()
for _ in range(3):
    grown = bytearray()  # as a body that arrives in many reads
    for _ in range(24 * 4):
        grown += bytes(1 << 18)
    kept = bytearray(1 << 16)  # stands behind it
    del grown
print(held_mib() - before)
"""
SMALL = """
before = held_mib()
blocks = [b"a" * (100_000 + 1000 * (n % 17)) for n in range(1000)]
kept = blocks[::50]  # each of them stands behind freed ones
del blocks
held = held_mib()
return_free_memory()
print(held - before, held_mib() - before)
"""
OF_A_THREAD = """
import threading

kept = []
before = held_mib()

def work():
    blocks = [b"a" * (100_000 + 1000 * (n % 17)) for n in range(1000)]
    kept.append(blocks[::50])

for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
held = held_mib()
return_free_memory()
print(held - before, held_mib() - before)
"""


def run(script: str) -> list[int]:
    words = [sys.executable, "-c", BEGIN + script]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_bodies_that_were_freed_are_not_held() -> None:
    """Without the call it is the size of a body: 25 MiB."""
    assert run(LARGE)[0] <= 10


def test_freed_blocks_between_kept_ones_are_not_held() -> None:
    held_mib, left_mib = run(SMALL)
    assert held_mib >= 90  # by the C library alone
    assert left_mib <= 10


def test_what_a_thread_has_freed_is_not_held() -> None:
    """A thread had a heap of its own, of which nobody knew how much of it was free."""
    held_mib, left_mib = run(OF_A_THREAD)
    assert held_mib >= 90
    assert left_mib <= 15


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
