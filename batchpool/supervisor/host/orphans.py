"""The supervisor as process 1 of a container inherits processes whose parents have ended."""

from __future__ import annotations

import os
from collections.abc import Container

INIT = 1


def reap_orphans(own: Container[int]) -> int:
    """Reap the processes that have ended and that this one did not start; returns how many.

    own: the pids of its children, which others reap. It stops at the first of those that has ended,
    since the kernel names only one at a time.
    """
    reaped = 0
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:
                return reaped
            os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            return reaped
        reaped += 1
