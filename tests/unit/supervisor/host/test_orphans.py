"""Orphans that process 1 inherits are reaped, its own children are not."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes, os, time
from batchpool.supervisor.host.orphans import reap_orphans

PR_SET_CHILD_SUBREAPER = 36  # inherits orphans as process 1 does
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()

assert reap_orphans(()) == 0, "there is no child at all"
for _ in range(3):
    parent = os.fork()
    if parent == 0:
        if os.fork():
            os._exit(0)
        time.sleep(0.01)
        os._exit(0)  # an orphan by now
    os.waitpid(parent, 0)
until_s, reaped = time.monotonic() + 20, 0
while children() and time.monotonic() < until_s:
    reaped += reap_orphans(())
assert (reaped, children()) == (3, [])

own = os.fork()
if own == 0:
    os._exit(7)
os.waitid(os.P_PID, own, os.WEXITED | os.WNOWAIT)
assert reap_orphans({own}) == 0
assert os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]) == 7, "it is there for who started it"
"""


def test_orphans_are_reaped_and_own_children_are_not() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
