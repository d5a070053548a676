"""All processes of a pool but the supervisor: start, plan changes in a reload, ends, replacement.

batcher      `batchpool/supervisor/fleet/batcher_child.py`; a new one takes over from shared memory
front ends   `batchpool/supervisor/fleet/frontend_children.py`; a new one gets new lanes
workers      `batchpool/supervisor/fleet/workers.py`
tasks        `batchpool/supervisor/fleet/task_child.py`; a new one finds all tasks in their store
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from batchpool.control.process_messages import CloseLane, EvictLane, MoveLanes, RemoveModel
from batchpool.core.errors import StartError
from batchpool.log import setup
from batchpool.supervisor.children.child import LAST_WAIT_NS, Child
from batchpool.supervisor.children.roles import BATCHER, TASKS, WORKER
from batchpool.supervisor.children.watchdog import Watchdog
from batchpool.supervisor.fleet.batcher_child import BatcherChild
from batchpool.supervisor.fleet.frontend_children import FrontendChildren
from batchpool.supervisor.fleet.task_child import TaskChild
from batchpool.supervisor.fleet.workers import WorkerFleet
from batchpool.supervisor.plan.plan import ModelPlan, Plan
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import PoolResources


# methods: one for each change of the plan, of models and lanes, and of processes
class ProcessFleet:
    """All children. `watch(child)` and `unwatch(child)` add it to and take it from an event loop.

    entries: the models by number, also those that come or leave in a reload. closed: drained by an
    operator, to be opened again. ending: only workers are left, which end.
    """

    def __init__(
        self,
        resources: PoolResources,
        watch: Callable[[Child], None],
        unwatch: Callable[[Child], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._resources = resources
        self._unwatch = unwatch
        self._clock_ns = clock_ns
        plan = resources.plan
        self.entries = dict(plan.entries)
        self.batcher = BatcherChild(resources, self.entries, watch, clock_ns)
        self.frontends = FrontendChildren(resources, watch, clock_ns)
        self.tasks = TaskChild(resources, watch, clock_ns)
        self.workers = WorkerFleet(resources, watch, clock_ns, self.batcher.send)
        configs = [model.config for model in plan.models]
        self._watchdog = Watchdog(
            plan.server, configs, resources.state_page, resources.heartbeats, clock_ns()
        )
        self._ended: list[Child] = []  # killed, since the pool ends
        self.was_ready = False
        self.stopping = False
        self.ending = False
        self.closed = False

    def start_all(self) -> None:
        """Start every process of the plan."""
        self.batcher.start(self.workers, takeover=False)
        for i in range(self._resources.plan.frontends):
            self.frontends.start(i)
        self.tasks.start()
        for worker_slot in self.workers.worker_slots:
            self.workers.start(worker_slot)

    # -- a reload -----------------------------------------------------------------------

    def plan_begins(self, old: Plan, new: Plan) -> None:
        """Workers of both plans may serve from now on; the old plan is in force."""
        self._judge_by(new, old, between=True)
        kept = [(old.entries[entry], model) for entry, model in new.entries.items()
                if entry in old.entries]  # fmt: skip
        if any(was.config.max_batch > now.config.max_batch for was, now in kept):
            self.batcher.set_limits()

    def plan_counts(self, old: Plan, new: Plan) -> None:
        """The new plan is in force, although workers of the old one may still run a batch."""
        self._resources.plan = new
        self.entries |= new.entries
        self._resources.name_models(new)
        self._judge_by(old, new, between=False)
        self.batcher.set_limits()
        setup.set_level(new.server.log_level)
        self.frontends.send_plan_to_all()
        self.tasks.set_limits()

    def plan_settled(self) -> None:
        """The reload is over: all workers are of the plan in force."""
        between = self.batcher.other_plan is not None
        plan = self._resources.plan
        self._judge_by(plan, plan, between=False)
        if between:
            self.batcher.set_limits()

    def _judge_by(self, other: Plan, plan: Plan, *, between: bool) -> None:
        self.batcher.other_plan = other if between else None
        configs = [model.config for model in (*other.models, *plan.models)]
        self._watchdog.set_limits([other.server, plan.server], configs, self._clock_ns())

    # -- models ---------------------------------------------------------------------------

    def add_entry(self, model: ModelPlan) -> None:
        """Add a model, whose lanes and workers come after it."""
        self.entries[model.entry] = model
        self.batcher.add_model(model)

    def retire_entry(self, model: ModelPlan) -> None:
        """Remove a model of which no lane and no worker is left."""
        del self.entries[model.entry]
        self.batcher.send(RemoveModel(model.entry))

    # -- lanes --------------------------------------------------------------------------

    def open_lane(self, client: ClientConnection, model: ModelPlan, *, handed: bool) -> LaneEntry:
        """Open a lane for a client, which the batcher and the model's workers map.

        handed: the client is told of it now. Raises Overloaded and StartError as `LaneTable.add`.
        """
        layout = model.client_lane if client.frontend is None else model.lane
        bells = client.bells
        assert bells is not None, "a lane is for an attached client"
        entry = self._resources.lanes.add(
            model.entry, client.owner, layout, bells, client=client.number, pinned=client.pinned
        )
        entry.handed = handed
        self.batcher.add_lane(entry)
        self.workers.announce_lane(entry)
        return entry

    def move_lanes(self, entries: Sequence[LaneEntry]) -> None:
        """Let lanes take no more claims: their clients have other lanes, or none."""
        for entry in entries:
            entry.moved = True
        self.batcher.send(MoveLanes(tuple(entry.number for entry in entries)))

    def retire_lane(self, entry: LaneEntry) -> None:
        """Close a lane whose client is gone or has left it. The batcher closes it first, since
        rows may be RUNNING."""
        entry.closing = True
        self.batcher.send(CloseLane(entry.number))
        self.workers.end_sequences(entry)

    def evict_lane(self, entry: LaneEntry) -> None:
        """Close a lane that its client has not left in time."""
        entry.closing = entry.evicted = True
        self.batcher.send(EvictLane(entry.number))
        self.workers.end_sequences(entry)

    def lane_closed(self, number: int) -> None:
        """The batcher has closed a lane: the workers drop it, and its number is free again."""
        entry = self._resources.lanes.get(number)
        if entry is None:
            return
        self.workers.drop_lane(entry)
        self._resources.lanes.remove(number)

    # -- ends and replacement -----------------------------------------------------------

    def all_serve(self) -> bool:
        """True if every worker of every model is warm, and front ends and tasks are served."""
        warm = all(worker_slot.ready for worker_slot in self.workers.worker_slots)
        return warm and self.frontends.all_serve() and self.tasks.serves()

    def on_gone(self, child: Child) -> None:
        """A child has ended and was reaped. Raises StartError before the pool was ready once."""
        self._unwatch(child)
        useful = child.state in ("running", "serving")
        child.state = "gone"
        if child.role is WORKER:
            self.workers.gone(child, was_ready=self.was_ready, stopping=self.stopping)
        elif child.role is BATCHER:
            self.batcher.ended(useful)
        elif child.role is TASKS:
            self.tasks.ended(child, useful=useful, stopping=self.stopping)
        else:
            self.frontends.ended(child, useful=useful, stopping=self.stopping)
        child.close()
        if not self.was_ready and not self.stopping and child.role is not WORKER:
            if child.role is TASKS and child.cause:
                raise StartError(f"{child.slot.name} {child.cause}")
            raise StartError(f"{child.slot.name} {child.reason()} before the pool was ready")

    def tick(self) -> int:
        """Judge, flush and start what is due; returns when something is next due
        (CLOCK_MONOTONIC ns)."""
        now_ns = self._clock_ns()
        self._watchdog.look(now_ns, self.watched(), [*self.workers], was_ready=self.was_ready)
        due_ns = [now_ns + self._watchdog.look_ns]
        for child in self.everybody():
            child.flush()
        batcher_ns = self.batcher.start_if_due(self.workers, now_ns)
        if batcher_ns is not None:
            due_ns.append(batcher_ns)
        if not self.stopping:
            due_ns += self.frontends.start_if_due(now_ns)
            due_ns += self.tasks.start_if_due(now_ns)
        return min(*due_ns, self.workers.tick(now_ns))

    def watched(self) -> list[Child | None]:
        """The batcher, the front ends and the task process, by their indices in the heartbeats
        page."""
        tasks = [self.tasks.child] if self.tasks.is_wanted else []
        return [self.batcher.child, *self.frontends.children, *tasks]

    def without_heartbeat(self, since_ns: int) -> list[str]:
        """Names of those without a heartbeat since since_ns (CLOCK_MONOTONIC)."""
        return self._watchdog.without_heartbeat(self.watched(), since_ns)

    def everybody(self) -> list[Child]:
        """Every child process that there is."""
        workers = [worker_slot.child for worker_slot in self.workers]
        return [child for child in (*self.watched(), *workers) if child is not None]

    def end(self, *, answered: bool) -> None:
        """Begin the end of all: workers unload their models, the others are killed.

        answered: as in `WorkerFleet.end_all`. Nothing is started or missed from now on.
        """
        self.stopping = self.ending = True
        for child in self.watched():
            if child is not None:
                child.kill()
                self._unwatch(child)
                self._ended.append(child)
        self.batcher.child = None
        self.frontends.children[:] = [None] * len(self.frontends.children)
        self.tasks.child = None
        self.workers.end_all(answered=answered)

    def kill_all(self) -> None:
        """End every child now and reap it."""
        children = [*self.everybody(), *self._ended]
        for child in children:
            child.kill()
        until_ns = time.monotonic_ns() + LAST_WAIT_NS
        for child in children:
            child.reap(until_ns)
            child.close()
