"""The supervisor: starts the processes of the pool, watches them, and ends them.

It imports neither torch nor an HTTP library. One thread runs one loop; signal handlers only
enqueue, the loop acts. `run` returns the exit status:

    0  stopped by SIGTERM or SIGINT, every accepted request answered
    1  stopped, but drain_s passed or a second signal came while requests were under way
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchpool.core.errors import NotReady, StartError
from batchpool.core.layout.states import PoolState
from batchpool.shm.resource_errors import raise_descriptor_limit
from batchpool.shm.ring import require_memory_order
from batchpool.supervisor.child_events import ChildEvents
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.control_server import ControlServer
from batchpool.supervisor.drain import Drain
from batchpool.supervisor.event_loop import EventLoop
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.host.orphans import INIT, reap_orphans
from batchpool.supervisor.host.sd_notify import Notifier
from batchpool.supervisor.host.service_status import ServiceStatus
from batchpool.supervisor.host.signals import Signals
from batchpool.supervisor.host.socket_activation import ActivatedSockets
from batchpool.supervisor.loading_log import LoadingLog
from batchpool.supervisor.local_clients import LocalClients
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.controller import OnDone, ReloadController
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.resources import PoolResources
from batchpool.supervisor.status import pool_status, status_line

_LOG = logging.getLogger("batchpool.supervisor")
_DRAIN_LOOK_NS = 20_000_000  # between two looks at a drain before the end
_END_LOOK_NS = 250_000_000  # between two looks at workers that end, where no descriptor tells


def run(plan: Plan, notifier: Notifier, activated: ActivatedSockets, words: Sequence[str]) -> int:
    """Serve a plan until a signal ends it; raises StartError when it cannot start.

    notifier: the service manager. activated: sockets that systemd passed. words: the command line
    of `batchpool`, as "serve pool.toml", which a reload reads again.
    """
    require_memory_order()
    raise_descriptor_limit()
    signals = Signals()
    try:
        supervisor = Supervisor(plan, notifier, activated, words, signals)
        try:
            return supervisor.run()
        finally:
            supervisor.close()
    finally:
        signals.close()


@dataclass(frozen=True)
class _Outcome:
    """The end of a pool. status: of the process. text: what follows "stopped" in the log. answered:
    every row is, so that no worker has a batch."""

    status: int
    text: str
    answered: bool
    level: int = logging.INFO


def _failed(text: str) -> _Outcome:
    return _Outcome(1, text, answered=False, level=logging.ERROR)


# methods: one for each step of a pool's life and each request of an operator
class Supervisor:
    """The life of one pool: start, ready, drain, stop. Each part of it has an object of its own."""

    def __init__(
        self,
        plan: Plan,
        notifier: Notifier,
        activated: ActivatedSockets,
        words: Sequence[str],
        signals: Signals,
    ) -> None:
        self._signals = signals
        self._started_ns = time.monotonic_ns()
        self._resources = PoolResources(plan, activated)
        self._loop = EventLoop()
        self._process_fleet = ProcessFleet(
            self._resources, self._watch, self._unwatch, time.monotonic_ns
        )
        self._control_server = ControlServer(
            self._resources, self._process_fleet, self._status, self
        )
        self._service_status = ServiceStatus(
            notifier,
            plan.server,
            self._status_line,
            self._process_fleet.without_heartbeat,
            self._started_ns,
        )
        self._loading_log = LoadingLog(self._status_line, self._started_ns)
        self._reload_controller = ReloadController(
            self._resources, self._process_fleet, self._service_status, words,
            self._watch, self._attached_clients, time.monotonic_ns,
        )  # fmt: skip
        self._drain = Drain(self._resources.lanes)
        self._child_events = ChildEvents(
            self._loop, self._process_fleet, self._control_server,
            self._reload_controller, self._drain,
        )  # fmt: skip
        self._deadline_ns = 0
        self._at_once = False  # a second signal came
        self._unfetched = 0  # rows that were answered before the last drain
        self._loop.add(signals.fileno(), signals.clear)
        listener = self._resources.control.sock
        self._local_clients = LocalClients(self._loop, listener, self._control_server)

    def _watch(self, child: Child) -> None:
        self._child_events.watch(child)

    def _unwatch(self, child: Child) -> None:
        self._child_events.unwatch(child)

    def _attached_clients(self) -> list[ClientConnection]:
        """Every client that may have lanes."""
        clients = (*self._child_events.frontends.values(), *self._control_server.local)
        return [client for client in clients if client.attached]

    def _status(self) -> dict[str, Any]:
        status = pool_status(self._resources, self._process_fleet, self._started_ns)
        if self._process_fleet.closed and self._drain.is_over(time.monotonic_ns()):
            status["state"] = "drained"
        controller = self._reload_controller
        return {
            **status,
            "reload": controller.state() or None,
            "last_reload": controller.last or None,
        }

    def _status_line(self) -> str:
        controller = self._reload_controller
        return status_line(
            self._resources, self._process_fleet, controller.state(), controller.last
        )

    # -- the loop -----------------------------------------------------------------------

    def run(self) -> int:
        """Start every process and serve until the pool has stopped; returns the exit status."""
        try:
            self._start()
            outcome = self._serve()
        except StartError:
            self._end_workers(answered=True)
            raise
        self._end_workers(answered=outcome.answered)
        _LOG.log(outcome.level, "stopped%s", outcome.text)
        return outcome.status

    def _serve(self) -> _Outcome:
        """Serve until the pool is to end."""
        while True:
            due_ns = min(self._process_fleet.tick(), self._service_status.tick(time.monotonic_ns()))
            if self._process_fleet.stopping:
                outcome = self._outcome()
                if outcome is not None:
                    return outcome
                due_ns = min(due_ns, time.monotonic_ns() + _DRAIN_LOOK_NS, self._deadline_ns)
            elif not self._process_fleet.was_ready:
                if self._process_fleet.all_serve():
                    self._announce_ready()
                else:
                    due_ns = min(due_ns, self._loading_log.tick(time.monotonic_ns()))
            self._reload_controller.tick()
            self._update_gauges()
            self._wait(due_ns)

    def _start(self) -> None:
        if self._resources.leftovers:
            _LOG.info("removed %d segments of dead pools", len(self._resources.leftovers))
        self._resources.state_page.state.set(int(PoolState.STARTING))
        self._loading_log.begin(self._resources.plan.models)
        self._process_fleet.start_all()

    def _update_gauges(self) -> None:
        resources, process_fleet = self._resources, self._process_fleet
        slots = [process_fleet.batcher.slot, *process_fleet.frontends.slots]
        children = [process_fleet.batcher.child, *process_fleet.frontends.children]
        tasks = process_fleet.tasks
        served = {
            entry: model.spec.name
            for entry, model in process_fleet.entries.items()
            if entry in resources.plan.entries or resources.counters.alive[entry]
        }
        resources.metrics.look(
            self._started_ns,
            resources.state_page,
            served,
            list(zip(slots, children, strict=True)),
            process_fleet.workers,
            resources.lanes,
            time.monotonic_ns(),
            (tasks.slot, tasks.child) if tasks.is_wanted else None,
        )

    def _wait(self, due_ns: int) -> None:
        now_ns = time.monotonic_ns()
        due_ns = min(due_ns, self._local_clients.tick(now_ns))
        ready = self._loop.wait(max(0.0, (due_ns - now_ns) / 1e6))
        # Signals come first: one may have gone to the whole process group, so that children end.
        self._act_on_signals()
        self._loop.dispatch(ready)
        self._child_events.poll_ends()
        if os.getpid() == INIT:
            discovery = self._reload_controller.discovery
            own = {child.pid for child in self._process_fleet.everybody()}
            reap_orphans(own | ({discovery.pid} if discovery is not None else set()))

    def _announce_ready(self) -> None:
        self._process_fleet.was_ready = True
        self._resources.state_page.state.set(int(PoolState.READY))
        plan = self._resources.plan
        names = ", ".join(m.spec.name for m in plan.models)
        took_s = (time.monotonic_ns() - self._started_ns) / 1e9
        urls = self._resources.activated.urls(plan.scheme) or plan.urls
        _LOG.info("ready after %.1f s: %s serves %s", took_s, ", ".join(urls), names)
        _LOG.info("local clients: %s", plan.socket)
        self._service_status.ready(time.monotonic_ns())

    # -- operations, requested over the control socket ----------------------------------

    def reload(self, on_done: OnDone | None) -> None:
        """Reload as soon as possible. on_done: called at its end."""
        self._reload_controller.request(on_done)

    def cancel_reload(self) -> str:
        """Cancel the reload under way; returns the consequence in words."""
        return self._reload_controller.cancel()

    def drain(self, on: bool | None) -> tuple[bool, bool, int]:
        """Start a drain (True), end it (False), or change nothing (None).

        Returns (draining, every row is answered, rows under way). Raises NotReady while the pool
        loads or stops.
        """
        if self._process_fleet.stopping or not self._process_fleet.was_ready:
            raise NotReady(
                f"the pool is {'stopping' if self._process_fleet.stopping else 'loading'}"
            )
        if on and not self._process_fleet.closed:
            _LOG.info("draining: no new requests until `batchpool drain --undo`")
            self._process_fleet.closed = True
            self._close_gates()
        elif on is False and self._process_fleet.closed:
            _LOG.info("taking requests again")
            self._process_fleet.closed = False
            self._resources.state_page.state.set(int(PoolState.READY))
            self._process_fleet.batcher.set_drain(0)
        over = self._process_fleet.closed and self._drain.is_over(time.monotonic_ns())
        return self._process_fleet.closed, over, self._drain.rows()

    def _close_gates(self) -> None:
        self._resources.state_page.state.set(int(PoolState.DRAINING))
        self._process_fleet.batcher.set_drain(self._drain.begin())

    # -- the end ------------------------------------------------------------------------

    def _act_on_signals(self) -> None:
        for name, is_reload in self._signals.take():
            if is_reload:
                _LOG.info("%s: reload", name)
                self._reload_controller.request()
            elif not self._process_fleet.stopping:
                self._stop(name)
            else:
                _LOG.warning("%s again: stopping at once", name)
                self._deadline_ns = 0
                self._at_once = True

    def _stop(self, name: str) -> None:
        drain_s = self._resources.plan.server.drain_s
        _LOG.info("%s: accepted requests get %g s to finish", name, drain_s)
        self._process_fleet.stopping = True
        self._deadline_ns = time.monotonic_ns() + int(drain_s * 1e9)
        self._close_gates()
        self._service_status.stopping()
        self._reload_controller.stop()
        # New connections are refused from now on, or wait for the next pool in a socket of systemd.
        self._resources.close_listeners()
        self._process_fleet.frontends.stop()
        self._process_fleet.tasks.stop()

    def _outcome(self) -> _Outcome | None:
        """The outcome once every row is answered or the time is up; None before."""
        now_ns = time.monotonic_ns()
        fleet = self._process_fleet
        askers = [*fleet.frontends.children, fleet.tasks.child]
        answered = self._drain.batcher_done and not any(askers)
        over = answered and self._drain.is_over(now_ns)
        if over and not self._drain.last:
            # A claim made before the drain may be published this late, and must not be admitted.
            self._unfetched = self._drain.rows()
            self._process_fleet.batcher.set_drain(self._drain.begin(last=True), last=True)
            return None
        left = self._unfetched if self._drain.last else self._drain.rows()
        if self._child_events.requests_given_up and not any(self._process_fleet.frontends.children):
            return _failed(" with requests under way: they were given up, their time was up")
        if over and not left:
            return _Outcome(0, ": every accepted request was answered", answered=True)
        if now_ns < self._deadline_ns and not over:
            return None
        if left == 0:
            return _Outcome(0, ": no request was under way", answered)
        if answered:
            text = f": {left} answered rows were not fetched by their clients"
            return _Outcome(0, text, answered=True)
        return _failed(f" with {left} rows under way: the time to drain was up")

    def _end_workers(self, *, answered: bool) -> None:
        """Let the workers unload their models, all at the same time, and wait for their ends: at
        most unload_timeout_s, and not after a second signal. answered: every row is."""
        self._resources.state_page.state.set(int(PoolState.STOPPED))
        self._local_clients.drop_attached()
        if self._at_once:
            return
        self._process_fleet.end(answered=answered)
        workers = self._process_fleet.workers
        while not self._at_once:
            now_ns = time.monotonic_ns()
            due_ns = min(workers.kill_overdue(now_ns), self._service_status.tick(now_ns))
            if not workers.are_to_end():
                return
            for child in self._process_fleet.everybody():
                child.flush()
            self._wait(min(due_ns, now_ns + _END_LOOK_NS))

    def close(self) -> None:
        """End every child and free all resources, also after a failed start."""
        self._resources.state_page.state.set(int(PoolState.STOPPED))
        self._process_fleet.kill_all()
        self._reload_controller.close()
        for client in (*self._child_events.frontends.values(), *self._control_server.local):
            client.close()
        self._resources.close()
        logging.shutdown()
