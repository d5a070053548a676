"""The one process that a worker is: what its model forks must not go on as a second worker.

Such a process has the worker's descriptors and shared memory. If it came out of the model's method,
by an exception or a return, it would publish the same batch once more, take the next ones beside
its parent, and so destroy the worker's rings, which no batcher could read any more.
"""

from __future__ import annotations

import logging
import os

_LOG = logging.getLogger("batchpool.worker")
_pids: list[int] = []  # of the worker: none where the process is no worker


def claim() -> None:
    """This process is the worker."""
    _pids[:] = [os.getpid()]


def end_if_forked() -> None:
    """End this process at once if a model's code has forked it; called where that code ends."""
    if _pids and os.getpid() not in _pids:
        _LOG.error(
            "a process that the model forked in worker process %d came out of the model's method:"
            " it ends here; the model should end it itself, with os._exit",
            _pids[0],
        )
        os._exit(1)
