"""Dividing the rows that wait among idle workers, so that all of them are done the sooner.

Where `spreads` is set, as for stages on the CPU, no worker takes more than its share of the rows
that wait, though a batch is no smaller than pays (`ServiceTime.least_share`). Batches that are
queued behind others are full.

Rows that come one by one would all leave alone, as long as a worker is idle: the more workers there
are, the smaller are the batches, and the more of them the batcher has to send and take back, which
everybody waits for. So fewer rows than pay are held for company while another worker is busy, for
as long as a call without rows takes: what a batch of their own would cost besides. Where all others
are idle, rows leave at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import I64
from batchpool.core.scheduler.worker_view import WorkerView


def held_ns(n: int, time: ServiceTime | None) -> int:
    """The time for which n rows are held for company while another worker is busy, from when the
    first of them came; 0 where so many pay, or where nobody knows.

    time: of the idle worker that they would go to.
    """
    if time is None or not time.known or n >= time.least_share:
        return 0
    return int(time.base_ns)


def share_of(n: int, idle: int, time: ServiceTime | None) -> int:
    """The rows that one of so many idle workers takes of n: an equal part, but no fewer than pay.

    time: of the worker, where its batches are measured.
    """
    return max(-(-n // idle), 1 if time is None else time.least_share)


def able(workers: Iterable[WorkerView], lanes: I64 | None) -> int:
    """The number of workers that may run a row of these lanes; None: all may run every row."""
    return sum([_may_run(worker.lanes, lanes) for worker in workers])


def _may_run(mask: npt.NDArray[Any] | None, lanes: I64 | None) -> bool:
    return mask is None or lanes is None or bool(mask[lanes].any())
