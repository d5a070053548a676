"""Control messages between the supervisor and its batcher, workers and discovery.

Each is a struct as in `batchpool/control/messages.py`.
"""

from __future__ import annotations

from typing import Any

from batchpool.control.messages import Form, Message, Natural, Row
from batchpool.core.scheduler.limits import Limits


class StageLimits(Form, frozen=True):
    """The limits of the batches of one stage. stage: a `Stage`."""

    stage: Natural
    limits: Limits


class BatcherModel(Form, frozen=True):
    """One model as the batcher sees it. model: the entry. limits: of its `infer`. attempts: how
    many batches of one stage with a row may fail, the last one with it alone, before it gets the
    error. cpu_stages: its stages besides, which run in processes of their own."""

    model: Natural
    spec: dict[str, Any]
    limits: Limits
    attempts: Natural
    idempotent: bool
    cpu_stages: tuple[StageLimits, ...] = ()


# -- supervisor -> batcher --------------------------------------------------------------------


class StartBatcher(Message, frozen=True, tag="start"):
    """The first message of a batcher. draining: the number of the drain that lasts, 0 for none.
    last: as in `DrainBatcher`. processes: words of the heartbeats page. beat_ns: longest time
    between two heartbeats. tasks: the last of these processes is the task process."""

    descriptors = ("the batcher's bell", "the heartbeats", "the counters", "the flight recorder")

    models: tuple[BatcherModel, ...]
    draining: Natural
    max_lanes: Natural
    processes: Natural
    beat_ns: Natural
    last: bool = False
    tasks: bool = False


class AddModel(Message, frozen=True, tag="add_model"):
    """Another entry, before its lanes and workers."""

    model: BatcherModel


class RemoveModel(Message, frozen=True, tag="remove_model"):
    """An entry without lanes and workers is gone."""

    model: Natural


class AddBatcherLane(Message, frozen=True, tag="add_lane"):
    """A lane to map and open. lane: its number, its place in all tables. arena_bytes: of its arena,
    0 for none. client: the number of its local client, 0 for a front end. moved: its client has
    another one."""

    descriptors = (
        "the lane's segment",
        "the bell that its client hears",
        "of a local client also the bell that it rings",
    )

    lane: Natural
    serial: Natural
    model: Natural
    slots: Natural
    client: Natural
    moved: bool
    arena_bytes: Natural = 0

    def descriptor_count(self) -> int:
        return 3 if self.client else 2


class CloseLane(Message, frozen=True, tag="close_lane"):
    """The client of this lane is gone or has left it: close it once none of its rows runs."""

    lane: Natural


class MoveLanes(Message, frozen=True, tag="move_lanes"):
    """The clients of these lanes have others: their gates say so from now on."""

    lanes: tuple[Natural, ...]


class EvictLane(Message, frozen=True, tag="evict_lane"):
    """The client of this moved lane did not leave it in time: drop its rows and close it."""

    lane: Natural


class AddWorker(Message, frozen=True, tag="add_worker"):
    """A worker, which may be dead already. worker: the number of its process, unique in the pool.
    place: its index among the model's workers of its stage. stage: a `Stage`. row: in the counters,
    -1 for none. on_duty: it gets new batches. duty: the number of its last change of duty."""

    descriptors = ("the worker's segment", "its bell")

    worker: Natural
    place: Natural
    pid: Natural
    model: Natural
    max_batch: Natural
    row: Row
    on_duty: bool
    duty: Natural
    stage: Natural = 0


class WorkerLost(Message, frozen=True, tag="worker_lost"):
    """A worker has ended: take back its rows."""

    worker: Natural
    cause: str


class SetDuty(Message, frozen=True, tag="duty"):
    """From now on new batches go to the workers in `on` and to those in `off` no more.

    duty: the number of this change."""

    duty: Natural
    on: tuple[Natural, ...]
    off: tuple[Natural, ...]


class SetLimits(Message, frozen=True, tag="limits"):
    """The limits of all entries, the heartbeat and the log level as a reload has made them."""

    models: tuple[BatcherModel, ...]
    beat_ns: Natural
    log_level: str


class Begin(Message, frozen=True, tag="begin"):
    """Everything that was there before the batcher has been sent: start. takeover: rows of a former
    batcher may be under way. evicted: lanes whose rows must not run."""

    takeover: bool
    evicted: tuple[Natural, ...]


class DrainBatcher(Message, frozen=True, tag="drain"):
    """Take no new rows. drain: the number of the drain, 0 to take rows again. last: the pool ends,
    so that rows which are published from now on, by claims made before, are not admitted either."""

    drain: Natural
    last: bool = False


# -- batcher -> supervisor --------------------------------------------------------------------


class BatcherRunning(Message, frozen=True, tag="running"):
    """The batcher has made its first step."""


class LaneClosed(Message, frozen=True, tag="lane_closed"):
    """The batcher has unmapped a lane."""

    lane: Natural


class LaneBroken(Message, frozen=True, tag="lane_broken"):
    """The batcher takes no more rows from a lane, in which its client wrote what no correct client
    writes. damage: what was found."""

    lane: Natural
    damage: str


class WorkerHandled(Message, frozen=True, tag="worker_handled"):
    """The batcher has taken back every row of a lost worker."""

    worker: Natural


class WorkerBroken(Message, frozen=True, tag="worker_broken"):
    """The batcher gives a worker no more batches, in whose segment somebody wrote what no process
    of the pool writes; it takes the rows back when the worker has ended. damage: what was found.
    useful: it had finished a good batch."""

    worker: Natural
    damage: str
    useful: bool


class WorkerIdle(Message, frozen=True, tag="idle"):
    """A worker off duty since the change with this number has nothing in flight."""

    worker: Natural
    duty: Natural


class Drained(Message, frozen=True, tag="drained"):
    """All rows are answered since the drain with this number (empty), or some came in after all,
    by a claim made just before it."""

    drain: Natural
    empty: bool


# -- supervisor <-> worker --------------------------------------------------------------------


class StartWorker(Message, frozen=True, tag="start"):
    """The first message of a worker. place: its index among the model's workers of its stage.
    stage: a `Stage`. import_name: MODULE:CLASS. options: arguments of its `__init__`. row: in the
    counters, -1 for none. spec: as the class declares it. max_elements: of each input of a batch of
    `infer`, padded; 0 for any number. fused_rows: the most rows of a call of each other stage, by
    its label, where the worker runs all of them; none where it does not. tracebacks: it keeps those
    of its exceptions, in a row as in the counters."""

    descriptors = (
        "the worker's segment",
        "its bell",
        "the batcher's bell",
        "the counters",
        "where it keeps them, the tracebacks",
    )

    place: Natural
    import_name: str
    options: dict[str, Any]
    spec: dict[str, Any]
    device: str
    max_batch: Natural
    batch_sizes: tuple[Natural, ...]
    max_lanes: Natural
    frontends: Natural
    row: Row
    stage: Natural = 0
    max_elements: Natural = 0
    fused_rows: dict[str, Natural] = {}
    tracebacks: bool = False

    def descriptor_count(self) -> int:
        return 5 if self.tracebacks else 4


class AddWorkerLane(Message, frozen=True, tag="add_lane"):
    """A lane to map. pinned: GPUs may read and write it directly. arena_bytes: of its arena, 0 for
    none. rings: the worker rings the lane's client, as that of a generator does."""

    descriptors = ("the lane's segment", "where the worker rings, the bell that its client hears")

    lane: Natural
    serial: Natural
    slots: Natural
    pinned: bool
    arena_bytes: Natural = 0
    rings: bool = False

    def descriptor_count(self) -> int:
        return 2 if self.rings else 1


class DropLane(Message, frozen=True, tag="drop_lane"):
    """The batcher has closed a lane: unmap it."""

    lane: Natural


class EndSequences(Message, frozen=True, tag="end_sequences"):
    """To a generator's worker: the client of this lane is gone or has left it, so that its
    sequences end now, and those that still come."""

    lane: Natural


class ReturnSequences(Message, frozen=True, tag="return_sequences"):
    """To a generator's worker: give all sequences back, and those that still come, since another
    worker goes on with them. on: false where the worker serves again after all."""

    on: bool = True


class EndWorker(Message, frozen=True, tag="end"):
    """Unload the model and end, once no batch is in flight."""


class WorkerReady(Message, frozen=True, tag="ready"):
    """The model is loaded and warm. rows, seconds: of the slowest batch of the warm-up."""

    rows: Natural = 0
    seconds: float = 0.0


class WorkerFailed(Message, frozen=True, tag="failed"):
    """The worker is about to end. error: the reason in one line."""

    error: str


# -- discovery -> supervisor ------------------------------------------------------------------


class ProbedForm(Form, frozen=True):
    """A model as its class declares it. cuda: its framework was built for GPUs. options: as the
    class takes them."""

    import_name: str
    spec: dict[str, Any]
    cuda: bool
    options: dict[str, Any]


class ConfigurationRead(Message, frozen=True, tag="read"):
    """The configuration was read, and its models are probed next, unless the supervisor ends the
    process because the pool cannot take this one. made_by: as of `Discovered`."""

    made_by: str
    server: dict[str, Any]
    cores: Natural


class Discovered(Message, frozen=True, tag="discovered"):
    """The configuration and the machine, from which a plan is made. made_by: the version of
    batchpool that read them; its fields may be unknown to another one."""

    made_by: str
    server: dict[str, Any]
    models: tuple[dict[str, Any], ...]
    probed: tuple[ProbedForm, ...]
    visible: tuple[str, ...]
    cores: Natural


class DiscoveryFailed(Message, frozen=True, tag="refused"):
    """The configuration is wrong, or a model cannot be described."""

    error: str
