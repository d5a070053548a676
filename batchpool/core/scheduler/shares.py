"""Dividing the rows that wait among idle workers, so that all of them are done the sooner.

Where `spreads` is set, as for stages on the CPU, no worker takes more than its share of the rows
that wait, though a batch is no smaller than pays (`ServiceTime.least_share`). Batches that are
queued behind others are full.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import WorkerView
from batchpool.core.scheduler.queue import I64


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
