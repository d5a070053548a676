"""What bounds a model's batches, and its workers as the decision sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchpool.core.config.schema import ModelConfig
from batchpool.core.scheduler.batch_sizes import padded_size
from batchpool.core.scheduler.estimators import ServiceTime

NEVER_NS = 2**63 - 1
_TARGET_SHARE = 0.85  # of the target; the rest is for the way to the caller


@dataclass(frozen=True)
class Limits:
    """What bounds a model's batches. depth: batches a worker may have in flight.

    sizes: the only ones the engine takes, rising; () means any. bucketed: rows differ in
    BUCKET. target_ns: of the 99th percentile from submission to answer; 0 means none.
    """

    max_batch: int
    max_wait_ns: int
    depth: int = 2
    draining: bool = False
    adaptive: bool = False
    max_wait_peak_ns: int = 0
    target_ns: int = 0
    sizes: tuple[int, ...] = ()
    bucketed: bool = False

    @classmethod
    def of(cls, config: ModelConfig) -> Limits:
        """What a model's configuration says."""
        return cls(
            max_batch=config.max_batch,
            max_wait_ns=round(config.max_wait_ms * 1e6),
            adaptive=config.policy == "adaptive",
            max_wait_peak_ns=round(config.max_wait_peak_ms * 1e6),
            target_ns=round(config.target_p99_ms * 1e6),
            sizes=config.batch_sizes,
        )

    @property
    def within_ns(self) -> float:
        """How much of the target the pool itself may use; 0 without one."""
        return _TARGET_SHARE * self.target_ns

    def padded(self, n: int) -> int:
        """The rows that the model is called with for a batch of n rows."""
        return padded_size(self.sizes, n)


@dataclass(frozen=True)
class WorkerView:
    """A worker as the decision sees it. lanes: which it may run, by lane number; None: all.

    time: what is known of its batches. free_at_ns: when it will have run what it has. closed: it
    gets nothing more for now. overdue_since_ns: since when it has run a batch that takes so long
    that it may hang; 0 if none does. It is closed then, and expected to take as long again.
    """

    number: int
    in_flight: int
    lanes: npt.NDArray[np.bool_] | None = None
    time: ServiceTime | None = None
    free_at_ns: int = 0
    closed: bool = False
    overdue_since_ns: int = 0
