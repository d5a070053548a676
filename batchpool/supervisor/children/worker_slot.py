"""A worker's place, who is in it, and how long that one has been over its batch."""

from __future__ import annotations

from dataclasses import dataclass

from batchpool.core.config.schema import ServerConfig
from batchpool.core.layout.states import DispatchReason
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.plan.plan import ModelPlan, WorkerPlan


@dataclass
class WorkerSlot:
    """One worker's place: a model on a device. The rest is of the worker in it now.

    model: its entry. of: what is served there; server: by which settings. part: "" for whoever has
    the seat, else "replacement" or "standby", the other two of a reload, or "predecessor", who serves what
    is left of an entry. on_duty: whether new batches go to it. turn: which change of duty that was;
    a batcher's word on an earlier one is out of date.
    """

    entry: int
    plan: WorkerPlan
    process_slot: ProcessSlot
    model: ModelPlan
    server: ServerConfig
    swap_role: str = ""
    on_duty: bool = True
    turn: int = 0
    child: Child | None = None
    number: int = 0
    row: int = -1  # in the counters
    fd: int = -1
    bell: Doorbell | None = None
    worker_segment: WorkerSegment | None = None
    ready: bool = False
    start_at_ns: int | None = None
    waiting_since_ns: int | None = None  # since when a batch is seen that it does not begin
    waiting_after: int = 0  # the last batch it began, at that time

    @property
    def label(self) -> tuple[str, int, str]:
        """(model, worker, device): whose counts these are, in the counters."""
        gpu = self.plan.cuda_visible
        return (
            self.model.spec.name,
            self.plan.index,
            self.plan.device if gpu is None else f"gpu {gpu}",
        )

    @property
    def name(self) -> str:
        """Who sits here, for people: "worker 0 of minilm", "replacement of worker 0 of minilm"."""
        return (
            f"{self.swap_role} of {self.process_slot.name}"
            if self.swap_role
            else self.process_slot.name
        )

    @property
    def serves(self) -> bool:
        """Whether it is warm, and not about to end."""
        return self.ready and self.child is not None and not self.child.terminating

    def was_useful(self) -> bool:
        """Whether it finished a good batch, or had suspects aboard, whose fault its end may be."""
        worker_segment = self.worker_segment
        assert worker_segment is not None
        aboard = worker_segment.token != worker_segment.freed
        apart = bool((aboard & (worker_segment.reason == int(DispatchReason.APART))).any())
        return apart or worker_segment.good.get() > 0

    def over_batch_ns(self, now_ns: int) -> int:
        """How long the worker has had its oldest batch; 0 when it has none.

        It says itself when a batch became the oldest in flight. One that was stopped while idle
        says nothing: a batch it does not begin counts from when that was first seen here.
        """
        assert self.worker_segment is not None
        if self.worker_segment.running.get():
            self.waiting_since_ns = None
            return now_ns - self.worker_segment.progress_ns.get()
        began = self.worker_segment.launched.get()
        if self.worker_segment.sq_consumer().pending() == 0:
            self.waiting_since_ns = None
        elif self.waiting_since_ns is None or began != self.waiting_after:
            self.waiting_since_ns, self.waiting_after = now_ns, began
        return 0 if self.waiting_since_ns is None else now_ns - self.waiting_since_ns
