"""A worker's place, who is in it, and how long that one has been over its batch."""

from __future__ import annotations

from dataclasses import dataclass

from batchpool.core.lifecycle import Reason
from batchpool.pool.children import Child, Post
from batchpool.pool.plan import WorkerPlan
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.records import Records


@dataclass
class Seat:
    """One worker's place: a model on a device. The rest is of the worker in it now."""

    model: int
    plan: WorkerPlan
    post: Post
    child: Child | None = None
    number: int = 0
    fd: int = -1
    bell: Doorbell | None = None
    records: Records | None = None
    ready: bool = False
    start_at_ns: int | None = None
    waiting_since_ns: int | None = None  # since when a batch is seen that it does not begin
    waiting_after: int = 0  # the last batch it began, at that time

    def was_useful(self) -> bool:
        """Whether it finished a good batch, or had suspects aboard, whose fault its end may be."""
        records = self.records
        assert records is not None
        aboard = records.token != records.freed
        apart = bool((aboard & (records.reason == int(Reason.APART))).any())
        return apart or records.good.get() > 0

    def over_batch_ns(self, now_ns: int) -> int:
        """How long the worker has had its oldest batch; 0 when it has none.

        It says itself when a batch became the oldest in flight. One that was stopped while idle
        says nothing: a batch it does not begin counts from when that was first seen here.
        """
        assert self.records is not None
        if self.records.running.get():
            self.waiting_since_ns = None
            return now_ns - self.records.progress_ns.get()
        began = self.records.launched.get()
        if self.records.sq_consumer().pending() == 0:
            self.waiting_since_ns = None
        elif self.waiting_since_ns is None or began != self.waiting_after:
            self.waiting_since_ns, self.waiting_after = now_ns, began
        return 0 if self.waiting_since_ns is None else now_ns - self.waiting_since_ns
