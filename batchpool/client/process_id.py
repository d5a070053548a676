"""Which process this is, without asking the kernel each time.

A client belongs to the process that opened it. Asking for the pid is a system call, which
costs as much as writing a row; a fork tells us by itself.
"""

from __future__ import annotations

import os

_here = os.getpid()


def _after_fork() -> None:
    global _here  # noqa: PLW0603 - the one fact of this file
    _here = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


def this_process() -> int:
    """This process's pid; right after a fork, too."""
    return _here
