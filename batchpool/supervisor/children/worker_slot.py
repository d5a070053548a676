"""One worker's place in the pool: a model on a device, and the process that fills it now."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from batchpool.control.process_messages import (
    AddWorkerLane,
    DropLane,
    EndWorker,
    ReturnSequences,
)
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.layout.segments import REFUSED_LANE
from batchpool.core.layout.states import DispatchReason
from batchpool.core.tensors.stages import Stage
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.segment import head_damage
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.plan.plan import ModelPlan, Plan, WorkerPlan

_LOG = logging.getLogger("batchpool.supervisor")


def worker_name(worker: WorkerPlan, model: ModelPlan) -> str:
    """The name of a worker's process: "worker 0 of minilm", "preprocess 0 of minilm"."""
    return f"{worker.stage.worker_noun} {worker.index} of {model.spec.name}"


@dataclass
class WorkerSlot:
    """One worker's place in the pool; all fields from `child` on are about the process in it.

    entry: the number of the model's entry in all tables. plan: device and threads. server: the
    settings that apply to this worker. swap_role: its part in a reload as a prefix of its name:
    "" for a worker of the plan, "replacement" for a new one before it takes over, "standby" for an
    old one after that, "predecessor" for one whose entry leaves, "stuck process" for one that does
    not end. on_duty: new batches go to it. duty: the number of its last change of duty; a message
    of the batcher's with an earlier number is out of date.
    number: of the process, unique in the pool. row: its row in the counters. fd: its shared
    segment. untaken: the serials of lanes that it was told of and was not yet seen to have taken,
    by their numbers. start_at_ns: when the next process is to start, None if one runs.
    waiting_since_ns, waiting_after: when work was first seen that the worker has not begun, and the
    last batch it had begun by then. taken: as untaken, of lanes that it was seen to have taken.
    sequence_limits: as a generator's worker said them when it was ready. useful: of a broken
    worker, what the batcher knows of `was_useful`; None while its segment is sound.
    """

    entry: int
    plan: WorkerPlan
    process_slot: ProcessSlot
    model: ModelPlan
    server: ServerConfig
    swap_role: str = ""
    on_duty: bool = True
    duty: int = 0
    child: Child | None = None
    number: int = 0
    row: int = -1
    fd: int = -1
    bell: Doorbell | None = None
    worker_segment: WorkerSegment | None = None
    untaken: dict[int, int] = field(default_factory=dict)
    ready: bool = False
    start_at_ns: int | None = None
    waiting_since_ns: int | None = None
    waiting_after: int = 0
    taken: dict[int, int] = field(default_factory=dict)
    sequence_limits: tuple[int, int] | None = None
    useful: bool | None = None

    @classmethod
    def of(cls, plan: Plan, entry: int, worker: WorkerPlan) -> WorkerSlot:
        """An empty slot for a worker of the plan's model with this number."""
        model = plan.entries[entry]
        slot = ProcessSlot(worker_name(worker, model))
        return cls(entry, worker, slot, model, plan.server)

    @property
    def label(self) -> tuple[str, int, str, Stage]:
        """(model, worker, device, stage): the labels of its metrics."""
        gpu = self.plan.cuda_visible
        return (
            self.model.spec.name,
            self.plan.index,
            self.plan.device if gpu is None else f"gpu {gpu}",
            self.plan.stage,
        )

    @property
    def max_batch(self) -> int:
        """The most rows of a batch of this worker."""
        return self.model.max_batch_of(self.plan)

    @property
    def name(self) -> str:
        """Its name in status and log: "worker 0 of minilm", "standby of worker 0 of minilm"."""
        name = self.process_slot.name
        return f"{self.swap_role} of {name}" if self.swap_role else name

    def where(self, env: Mapping[str, str]) -> str:
        """Its device in words, of a CPU with the threads that it gets in this environment."""
        device, threads = self.plan.device, self.plan.threads
        if not threads.on_cpu:
            return device
        number = threads.number_in(env)
        return f"{device} with {number} thread{'' if number == '1' else 's'}"

    @property
    def serves(self) -> bool:
        """True when the worker is warm and not about to end."""
        child = self.child
        return self.ready and child is not None and not (child.terminating or child.end_by_ns)

    def renew(self, number: int, row: int) -> None:
        """Forget the last process: another one is to start. number, row: its own."""
        self.number, self.row = number, row
        self.ready = False
        self.start_at_ns = self.waiting_since_ns = self.sequence_limits = self.useful = None
        self.untaken.clear()
        self.taken.clear()

    def was_useful(self) -> bool:
        """True when the process finished a good batch, so that its end does not delay the next one.

        One that ran suspect rows counts as useful too: its end may be their fault.
        """
        segment = self.worker_segment
        assert segment is not None
        if self.useful is not None:
            return self.useful
        in_flight = segment.token != segment.freed
        apart = bool((in_flight & (segment.reason == int(DispatchReason.APART))).any())
        return apart or segment.good.get() > 0

    def end(self, now_ns: int) -> None:
        """Let the process unload its model and end. One that is not warm is killed: it hears
        nothing before that. now_ns: CLOCK_MONOTONIC."""
        child = self.child
        if child is None or child.end_by_ns:
            return
        if not self.ready or child.terminating:
            child.kill()
            return
        child.state = "ending"
        self.limit_end(now_ns)
        child.send(EndWorker())

    def limit_end(self, now_ns: int) -> None:
        """Give the process, which is about to end, unload_timeout_s for that."""
        child = self.child
        if child is not None and not child.end_by_ns:
            child.end_by_ns = now_ns + int(self.server.unload_timeout_s * 1e9)

    def return_sequences(self, *, on: bool) -> None:
        """Let a generator's worker give its sequences back, and those that still come; or, with
        `on` false, run them again."""
        if self.ready and self.child is not None and self.model.spec.generates:
            self.child.send(ReturnSequences(on))

    def send_lane(self, message: AddWorkerLane, fds: Sequence[int]) -> None:
        """Tell the process of a lane, which it is to take in time."""
        assert self.child is not None
        self.untaken[message.lane] = message.serial
        self.taken.pop(message.lane, None)
        self.child.send(message, fds)

    def send_drop(self, message: DropLane) -> None:
        """Tell the process that a lane is closed, unless it was not told of it yet."""
        assert self.child is not None
        self.taken.pop(message.lane, None)
        serial = self.untaken.pop(message.lane, None)
        if serial is None or not self.child.withdraw(
            lambda kept: isinstance(kept, AddWorkerLane) and kept.serial == serial
        ):
            self.child.send(message)

    def work_age_ns(self, now_ns: int) -> int:
        """The time for which the worker has had its oldest batch, or a lane to take; 0 when it has
        neither.

        The worker records when a batch became the oldest in flight. One that was stopped while idle
        records nothing: what it does not begin counts from when that was first seen here.
        """
        assert self.worker_segment is not None
        since_ns = self.worker_segment.progress_ns.get()
        # A time to come was written by nobody who reads clocks.
        if self.worker_segment.running.get() and since_ns <= now_ns:
            self.waiting_since_ns = None
            return now_ns - since_ns
        began = self.worker_segment.launched.get()
        if not (self.has_batch() or self._has_untaken_lane()):
            self.waiting_since_ns = None
        elif self.waiting_since_ns is None or began != self.waiting_after:
            self.waiting_since_ns, self.waiting_after = now_ns, began
        return 0 if self.waiting_since_ns is None else now_ns - self.waiting_since_ns

    def has_batch(self) -> bool:
        """True while the worker has a batch, begun or not."""
        segment = self.worker_segment
        assert segment is not None
        if segment.running.get() or segment.sq_consumer().pending():
            return True
        unfinished = segment.finished != segment.token
        return bool((unfinished & (segment.freed != segment.token)).any())  # as the batcher says

    def _has_untaken_lane(self) -> bool:
        """True while there is a lane that the worker has neither taken nor refused."""
        if self.untaken:
            assert self.worker_segment is not None
            lanes = self.worker_segment.lanes
            for number, serial in list(self.untaken.items()):
                if lanes[number] in (serial, REFUSED_LANE):
                    self.taken[number] = self.untaken.pop(number)
        return bool(self.untaken)

    def damage(self) -> str:
        """The damage in the segment of a warm worker that the batcher does not notice, since it
        changes nothing but that the worker gets no rows; "" while there is none."""
        segment = self.worker_segment
        assert segment is not None
        self._has_untaken_lane()
        if damage := head_damage(segment.memory.cells(), segment.layout):
            return damage
        if segment.ready.get() != 1:
            return f"it was ready, and its word says {segment.ready.get()}"
        limits = segment.sequences.get(), segment.kv_tokens.get()
        self.sequence_limits = self.sequence_limits or limits
        if limits != self.sequence_limits:
            return f"its limits of sequences and tokens became {limits}"
        for number, serial in self.taken.items():
            if segment.lanes[number] not in (serial, REFUSED_LANE):
                return f"lane {number} is not mapped any more"
        return ""

    def mark_broken(self, damage: str, *, useful: bool = False) -> None:
        """Kill the process, in whose segment this was found; another one gets a new segment.

        useful: as far as is known without the segment; see `was_useful`.
        """
        child, text = self.child, f"overwrote its shared segment ({damage})"
        if child is None:
            _LOG.error("%s, which has ended, %s", self.name, text)
        elif not child.terminating:
            _LOG.error("%s (pid %d) %s: killing it", self.name, child.pid, text)
            self.useful = useful
            child.terminate(text)


def serving_of(worker_slots: Sequence[WorkerSlot]) -> list[WorkerSlot]:
    """The workers of one model that serve; none where all of a stage are away, since every row
    needs all stages."""
    serving = [worker_slot for worker_slot in worker_slots if worker_slot.serves]
    stages = {worker_slot.plan.stage for worker_slot in worker_slots}
    return serving if {worker_slot.plan.stage for worker_slot in serving} == stages else []
