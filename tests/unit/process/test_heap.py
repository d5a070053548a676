"""Freed memory goes back to the system."""

from __future__ import annotations

import subprocess
import sys

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
