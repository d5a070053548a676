"""The supervisor's children: who must be there, who is, and what to do when one is not.

batcher     restarted at once if it ever ran; the new one takes over from shared memory
front end   restarted; its lanes are closed and it gets new ones
workers     see supervisor/fleet/workers.py
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence

from batchpool.control.edges import ToBatcher
from batchpool.control.messages import PlanChanged
from batchpool.control.process_messages import (
    AddBatcherLane,
    AddModel,
    BatcherModel,
    Begin,
    CloseLane,
    DrainBatcher,
    EvictLane,
    MoveLanes,
    RemoveModel,
    SetLimits,
    StartBatcher,
)
from batchpool.core.config.schema import ModelConfig, ServerConfig
from batchpool.core.errors import StartError
from batchpool.core.scheduler.decide import Limits
from batchpool.shm.heartbeat import beat_interval_ns, frontend_post
from batchpool.supervisor.children.child import LAST_WAIT_NS, Child, ProcessSlot, start_child
from batchpool.supervisor.children.roles import BATCHER, FRONTEND, WORKER
from batchpool.supervisor.children.watchdog import Watchdog
from batchpool.supervisor.fleet.workers import WorkerFleet
from batchpool.supervisor.plan.plan import ModelPlan, Plan
from batchpool.supervisor.resources.catalog import lane_form, model_forms, server_form
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import PoolResources

_LOG = logging.getLogger("batchpool.supervisor")


class ProcessFleet:
    """All children. `watch(child)` and `unwatch(child)` are the supervisor's event loop."""

    def __init__(
        self,
        resources: PoolResources,
        watch: Callable[[Child], None],
        unwatch: Callable[[Child], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._resources = resources
        self._watch = watch
        self._unwatch = unwatch
        self._clock_ns = clock_ns
        self.batcher_slot = ProcessSlot("batcher")
        self.batcher: Child | None = None
        self.frontend_slots = [ProcessSlot(f"frontend {i}") for i in range(self._plan.frontends)]
        self.frontends: list[Child | None] = [None] * self._plan.frontends
        self._frontend_at_ns: dict[int, int] = {}
        self._batcher_at_ns: int | None = None
        self.workers = WorkerFleet(resources, watch, clock_ns, self.tell_batcher, self.flags)
        configs = [model.config for model in self._plan.models]
        self._watchdog = Watchdog(
            self._plan.server, configs, resources.state_page, resources.heartbeats, clock_ns()
        )
        self._other: Plan | None = None  # in a reload, until its commit: the plan that may come
        self.entries = dict(self._plan.entries)  # those that come and those that leave too
        self.was_ready = False
        self.stopping = False
        self.closed = False  # drained by an operator, to be opened again
        self.drain_turn = 0  # of the drain that lasts, for whatever reason; 0 for none

    # -- starting -----------------------------------------------------------------------

    def start_all(self) -> None:
        self.start_batcher(takeover=False)
        for i in range(self._plan.frontends):
            self.start_frontend(i)
        for worker_slot in self.workers.worker_slots:
            self.workers.start(worker_slot)

    @property
    def _plan(self) -> Plan:
        """The plan of now: a reload may change it."""
        return self._resources.plan

    @staticmethod
    def flags(server: ServerConfig) -> list[str]:
        """What every child is started with."""
        return ["--log-level", server.log_level, "--log-format", server.log_format]

    def tell_batcher(self, message: ToBatcher, fds: Sequence[int] = ()) -> None:
        """A message to the batcher, if there is one."""
        if self.batcher is not None:
            self.batcher.send(message, fds)

    def drain(self, turn: int) -> None:
        """Tell the batcher, and each one after it, to take no new rows; 0: to take them again."""
        self.drain_turn = turn
        self.tell_batcher(DrainBatcher(turn))

    def start_batcher(self, *, takeover: bool) -> None:
        resources = self._resources
        child = start_child(
            BATCHER,
            self.batcher_slot,
            started_ns=self._clock_ns(),
            flags=self.flags(self._plan.server),
        )
        self.batcher = child
        self._batcher_at_ns = None
        start = StartBatcher(
            models=self._limits(),
            draining=self.drain_turn,
            max_lanes=resources.max_lanes,
            processes=self._plan.posts,
            beat_ns=beat_interval_ns(self._plan.server.stall_timeout_s),
        )
        fds = [resources.batcher_bell.fd, resources.heartbeats_fd]
        child.send(start, [*fds, resources.counters_fd, resources.flight_recorder_fd])
        for entry in resources.lanes:
            self._tell_lane(child, entry)
        self.workers.introduce_all(child.send)
        evicted = tuple(entry.number for entry in resources.lanes if entry.evicted)
        child.send(Begin(takeover, evicted))
        for entry in resources.lanes:
            if entry.closing and not entry.evicted:
                child.send(CloseLane(entry.number))
        self.workers.report_lost(child.send)
        self._watch(child)

    def _limits(self) -> tuple[BatcherModel, ...]:
        """How the batches of each entry are formed. Where workers for batches of two sizes may
        serve, by what is right for both: the plan with the smaller ones."""
        other = {} if self._other is None else self._other.entries
        forms = []
        for entry, model in self.entries.items():
            rival = other.get(entry, model)
            config = min(model.config, rival.config, key=lambda config: config.max_batch)
            forms.append(_batcher_model(model, config))
        return tuple(forms)

    def _tell_lane(self, batcher: Child, entry: LaneEntry) -> None:
        message = AddBatcherLane(
            lane=entry.number,
            serial=entry.serial,
            model=entry.model,
            slots=entry.layout.slots,
            local=entry.local,
            moved=entry.moved,
        )
        batcher.send(message, [entry.fd, entry.bell_fd])

    def start_frontend(self, i: int) -> None:
        resources = self._resources
        own = {
            "--listen-fd": resources.listeners[i].fileno(),
            "--heartbeats-fd": resources.heartbeats_fd,
            "--counters-fd": resources.counters_fd,
            "--flight-recorder-fd": resources.flight_recorder_read_fd,
            "--posts": self._plan.posts,
            "--post": frontend_post(i),
        }
        child = start_child(
            FRONTEND,
            self.frontend_slots[i],
            started_ns=self._clock_ns(),
            flags=[
                *(str(word) for flag in own.items() for word in flag),
                *self.flags(self._plan.server),
            ],
            fds=[number for flag, number in own.items() if flag.endswith("-fd")],
        )
        self.frontends[i] = child
        self._frontend_at_ns.pop(i, None)
        self._watch(child)

    # -- a reload -----------------------------------------------------------------------

    def plan_begins(self, old: Plan, new: Plan) -> None:
        """Workers of both plans may serve from now on; the old one counts."""
        self._go_by(new, old, between=True)
        kept = [(old.entries[entry], model) for entry, model in new.entries.items()
                if entry in old.entries]  # fmt: skip
        if any(was.config.max_batch > now.config.max_batch for was, now in kept):
            self._tell_limits()

    def plan_counts(self, old: Plan, new: Plan) -> None:
        """The new plan counts, although workers of the old one may still be over a batch."""
        self._resources.plan = new
        self.entries |= new.entries
        self._resources.name_models(new)
        self._go_by(old, new, between=False)
        self._tell_limits()
        logging.getLogger().setLevel(new.server.log_level.upper())
        for child in self.frontends:
            if child is not None:
                self.tell_facts(child)

    def plan_settled(self) -> None:
        """The reload is over: all workers are of the plan that counts."""
        between = self._other is not None
        self._go_by(self._plan, self._plan, between=False)
        if between:
            self._tell_limits()

    def _go_by(self, other: Plan, plan: Plan, *, between: bool) -> None:
        self._other = other if between else None
        configs = [model.config for model in (*other.models, *plan.models)]
        self._watchdog.set_limits([other.server, plan.server], configs, self._clock_ns())

    def _tell_limits(self) -> None:
        server = self._plan.server
        beat_ns = beat_interval_ns(server.stall_timeout_s)
        self.tell_batcher(SetLimits(self._limits(), beat_ns, server.log_level))

    def tell_facts(self, frontend: Child) -> None:
        """To a front end: what it is to know of server and models, with lanes that it does not
        know. Not before it serves: it would take this for the answer to a question of its own."""
        if frontend.state != "serving":
            return
        owner = self.owner_of(frontend)
        plan, state_page = self._plan, self._resources.state_page
        lanes = [
            lane
            for lane in self._resources.lanes.of_owner(owner)
            if not lane.handed and lane.model in plan.entries
        ]
        for lane in lanes:
            lane.handed = True
        message = PlanChanged(
            model_forms(plan),
            server_form(plan),
            state_page.edition.get(),
            tuple(map(lane_form, lanes)),
        )
        frontend.send(message, [lane.fd for lane in lanes])

    def owner_of(self, frontend: Child) -> str:
        """A front end's name in the book of lanes."""
        return f"frontend {self.frontends.index(frontend)} (pid {frontend.pid})"

    # -- entries --------------------------------------------------------------------------

    def add_entry(self, model: ModelPlan) -> None:
        """Another entry, whose lanes and workers come after it."""
        self.entries[model.entry] = model
        self.tell_batcher(AddModel(_batcher_model(model, model.config)))

    def retire_entry(self, model: ModelPlan) -> None:
        """Nothing is left of it."""
        del self.entries[model.entry]
        self.tell_batcher(RemoveModel(model.entry))

    # -- lanes --------------------------------------------------------------------------

    def open_lane(self, who: ClientConnection, model: ModelPlan, *, handed: bool) -> LaneEntry:
        """A new lane of a client, which the batcher and the model's workers map. Overloaded and
        StartError as `LaneTable.add`. handed: the client is told of it now."""
        local = who.frontend is None
        layout = model.client_lane if local else model.lane
        entry = self._resources.lanes.add(
            model.entry, who.owner, layout, who.bell_fd, local=local, pinned=who.pinned
        )
        entry.handed = handed
        if self.batcher is not None:
            self._tell_lane(self.batcher, entry)
        self.workers.announce_lane(entry)
        return entry

    def move_lanes(self, entries: Sequence[LaneEntry]) -> None:
        """Their clients have other lanes, or none: they claim no more there."""
        for entry in entries:
            entry.moved = True
        self.tell_batcher(MoveLanes(tuple(entry.number for entry in entries)))

    def retire_lane(self, entry: LaneEntry) -> None:
        """Its client is gone, or has left it: the batcher lets it go first, since rows may be
        RUNNING."""
        entry.closing = True
        self.tell_batcher(CloseLane(entry.number))

    def evict_lane(self, entry: LaneEntry) -> None:
        """The same although its client has not left it."""
        entry.closing = entry.evicted = True
        self.tell_batcher(EvictLane(entry.number))

    def lane_closed(self, number: int) -> None:
        """The batcher has let it go: so do the workers, and the number is free again."""
        entry = self._resources.lanes.get(number)
        if entry is None:
            return
        self.workers.drop_lane(entry)
        self._resources.lanes.remove(number)

    # -- what children say and how they end ---------------------------------------------

    def all_serve(self) -> bool:
        """Whether every worker of every model is warm and every front end listens."""
        listening = (child is not None and child.state == "serving" for child in self.frontends)
        return all(worker_slot.ready for worker_slot in self.workers.worker_slots) and all(
            listening
        )

    def on_gone(self, child: Child) -> None:
        """A child has ended and was reaped. StartError before the pool was ready once."""
        self._unwatch(child)
        useful = child.state in ("running", "serving")
        child.state = "gone"
        now_ns = self._clock_ns()
        if child.role is WORKER:
            self.workers.gone(child, was_ready=self.was_ready, stopping=self.stopping)
        elif child.role is BATCHER:
            self.batcher = None
            self._note(child)
            self._batcher_at_ns = now_ns + int(child.slot.backoff_s(useful) * 1e9)
        else:
            i = self.frontends.index(child)
            self.frontends[i] = None
            if not self.stopping:
                self._note(child)
                delay_s = child.slot.backoff_s(useful)
                self._frontend_at_ns[i] = now_ns + int(delay_s * 1e9)
        child.close()
        if not self.was_ready and not self.stopping and child.role is not WORKER:
            raise StartError(f"{child.slot.name} {child.reason()} before the pool was ready")

    def _note(self, child: Child) -> None:
        child.slot.last_error = child.reason()
        _LOG.warning("%s (pid %d) %s", child.slot.name, child.pid, child.exit_text())

    # -- time ---------------------------------------------------------------------------

    def tick(self) -> int:
        """Do what is due; returns when something is next due (CLOCK_MONOTONIC ns)."""
        now_ns = self._clock_ns()
        self._watchdog.look(now_ns, self.watched(), [*self.workers], was_ready=self.was_ready)
        due_ns = now_ns + self._watchdog.look_ns
        for child in self.everybody():
            child.flush()
        if self._batcher_at_ns is not None and not self.batcher:
            if self._batcher_at_ns <= now_ns:
                self._batcher_again(now_ns)
            due_ns = min(due_ns, self._batcher_at_ns or due_ns)
        for i, at_ns in list(self._frontend_at_ns.items()):
            if at_ns <= now_ns and not self.stopping:
                self._frontend_again(i, now_ns)
            due_ns = min(due_ns, self._frontend_at_ns.get(i, due_ns))
        return min(due_ns, self.workers.tick(now_ns))

    def _batcher_again(self, now_ns: int) -> None:
        try:
            self.start_batcher(takeover=True)
        except StartError as exc:
            self._batcher_at_ns = now_ns + int(self.batcher_slot.start_failed_s(exc) * 1e9)

    def _frontend_again(self, i: int, now_ns: int) -> None:
        try:
            self.start_frontend(i)
        except StartError as exc:
            self._frontend_at_ns[i] = now_ns + int(self.frontend_slots[i].start_failed_s(exc) * 1e9)

    def watched(self) -> list[Child | None]:
        """The batcher and the front ends, by their indices in the heartbeats page."""
        return [self.batcher, *self.frontends]

    def without_heartbeat(self, since_ns: int) -> list[str]:
        """Names of those without a heartbeat since since_ns (CLOCK_MONOTONIC)."""
        return self._watchdog.without_heartbeat(self.watched(), since_ns)

    def everybody(self) -> list[Child]:
        workers = [worker_slot.child for worker_slot in self.workers]
        return [child for child in (*self.watched(), *workers) if child is not None]

    def stop_frontends(self, sig: signal.Signals = signal.SIGTERM) -> None:
        self._frontend_at_ns.clear()
        for child in self.frontends:
            if child is not None:
                child.kill(sig)

    def kill_all(self) -> None:
        """End every child now and reap it."""
        for child in self.everybody():
            child.kill()
        until_ns = time.monotonic_ns() + LAST_WAIT_NS
        for child in self.everybody():
            child.reap(until_ns)
            child.close()


def _batcher_model(model: ModelPlan, config: ModelConfig) -> BatcherModel:
    """A model as the batcher sees it. config: the one that sets the limits of its batches."""
    return BatcherModel(
        model=model.entry,
        spec=model.spec.to_wire(),
        limits=Limits.of(config),
        attempts=model.config.attempts,
        idempotent=model.config.idempotent,
    )
