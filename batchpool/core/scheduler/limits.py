"""The limits of a model's batches, as the batching decision needs them.

They are sent to the batcher as a message, whose types are read from the class: it is not compiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from batchpool.core.config.schema import ModelConfig
from batchpool.core.scheduler.batch_sizes import padded_size
from batchpool.core.scheduler.element_budget import BucketRows, RowElements
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage

NEVER_NS = 2**63 - 1
_TARGET_SHARE = 0.85  # of the target; the rest is for the response to the caller


@dataclass(frozen=True)
class Limits:
    """The limits of a model's batches.

    max_batch: most rows of a batch.  max_wait_ns: longest wait of a row for others.  depth: batches
    that a worker may have, one running and the others behind it; a few more where they are short.
    draining: rows do not wait any more.  adaptive: the adaptive policy, else the fixed one.
    max_wait_peak_ns: max_wait_ns under heavy load.  target_ns: of the 99th percentile from
    submission to answer; 0 for none.  sizes: the allowed batch sizes, rising; () for any.
    bucketed: rows differ in BUCKET.  max_elements: most elements of each input of a batch, padded;
    0 for any number.  bucket_rows: the rows that these are by bucket, where rows differ in it; None
    for max_batch in all.  later_ns: the expected time of a row after this stage, which its deadline
    has to leave.  spreads: rows that could share a batch are divided among the idle workers.
    background_slowdown: the share by which background rows may lengthen a batch beside others
    (core/scheduler/background.py).  row_elements: of rows that may join those of other buckets
    (core/scheduler/joined_buckets.py); None where they may not.
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
    max_elements: int = 0
    bucket_rows: BucketRows | None = None
    later_ns: int = 0
    background_slowdown: float = math.inf
    spreads: bool = False
    row_elements: RowElements | None = None

    @classmethod
    def of(cls, config: ModelConfig, stage: Stage = Stage.INFER) -> Limits:
        """The limits that a model's configuration sets for the batches of a stage.

        Rows of a stage on the CPU that come together are divided among its idle workers, and wait
        for others no longer than a call's fixed cost: company saves little there, and `infer` is
        where batches pay. The latency target is kept by `infer`.
        """
        slowdown = config.background_slowdown
        if stage is not Stage.INFER:
            most = (
                config.preprocess_max_batch
                if stage is Stage.PREPROCESS
                else config.postprocess_max_batch
            )
            return cls(most, max_wait_ns=0, spreads=True, background_slowdown=slowdown)
        return cls(
            max_batch=config.max_batch,
            max_wait_ns=round(config.max_wait_ms * 1e6),
            adaptive=config.policy == "adaptive",
            max_wait_peak_ns=round(config.max_wait_peak_ms * 1e6),
            target_ns=round(config.target_p99_ms * 1e6),
            sizes=config.batch_sizes,
            max_elements=config.max_batch_elements,
            background_slowdown=slowdown,
        )

    def before(self, later_ns: int) -> Limits:
        """The limits of a stage whose rows need so long after it: it has so much less time."""
        target_ns = max(1, self.target_ns - later_ns) if self.target_ns else 0
        return replace(self, target_ns=target_ns, later_ns=later_ns)

    def of_stage(self, spec: ModelSpec) -> Limits:
        """These limits for a stage of a model, as the sizes of its rows make them. spec: the
        declaration of the stage."""
        bucketed = SizeBuckets(spec).many
        elements = RowElements.of_stage(spec) if bucketed and not self.spreads else None
        if self.max_elements:
            rows = BucketRows.of_stage(spec, self.max_elements, self.max_batch, self.sizes)
        elif spec.sized_by_length:
            rows = BucketRows.by_length(spec, self.max_batch, self.sizes)
        else:
            return replace(self, bucketed=bucketed, row_elements=elements)
        if bucketed:
            return replace(self, bucketed=True, bucket_rows=rows, row_elements=elements)
        return replace(self, max_batch=rows.of(0))

    def most_rows(self, bucket: int) -> int:
        """The most rows of a batch of a bucket."""
        if self.bucket_rows is None:
            return self.max_batch
        return min(self.max_batch, self.bucket_rows.of(bucket))

    @property
    def waits_since(self) -> int:
        """The column of the time since which rows wait for others: company that rows of a stage on
        the CPU are held for begins there, not in an earlier stage."""
        return QueueColumn.SINCE_NS if self.spreads else QueueColumn.SUBMIT_NS

    @property
    def within_ns(self) -> float:
        """The part of the target that the pool itself may use; 0 without a target."""
        return _TARGET_SHARE * self.target_ns

    def padded(self, n: int) -> int:
        """The rows that the model is called with for a batch of n rows."""
        return padded_size(self.sizes, n)
