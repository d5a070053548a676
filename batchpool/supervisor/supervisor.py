"""The supervisor: starts the pool's processes, watches them, ends them. No torch, no HTTP.

One thread, one loop: signals only enqueue, the loop acts. It returns the exit status:

    0  stopped by SIGTERM or SIGINT, every accepted request answered
    1  stopped, but drain_s passed or a second signal came while requests were under way
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Sequence
from typing import Any

from batchpool.control.channel import Closed
from batchpool.core.errors import NotReady
from batchpool.core.layout.states import PoolState
from batchpool.process.bootstrap import EXIT_GAVE_UP
from batchpool.shm.resource_errors import raise_descriptor_limit, text_of
from batchpool.shm.ring import require_memory_order
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.control_server import ControlServer, attached_frontend
from batchpool.supervisor.drain import Drain
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.host.sd_notify import Notifier
from batchpool.supervisor.host.service_status import ServiceStatus
from batchpool.supervisor.host.signals import Signals
from batchpool.supervisor.host.socket_activation import ActivatedSockets
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.controller import OnDone, ReloadController
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.resources import PoolResources
from batchpool.supervisor.status import pool_status, status_line

_LOG = logging.getLogger("batchpool.supervisor")
_DEAF_NS = 1_000_000_000


def run(plan: Plan, notifier: Notifier, activated: ActivatedSockets, words: Sequence[str]) -> int:
    """Serve a plan until a signal ends it; raises StartError when it cannot start.

    notifier: who is told of its state. activated: sockets it is not to open itself. words: the
    command line, as "serve pool.toml", which a reload reads again.
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


class Supervisor:
    """The loop around holdings, staff, desk and herald."""

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
        self._poll = select.poll()
        self._fds: dict[int, Any] = {}
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
        self._edges: dict[int, ClientConnection] = {}  # front end's pid -> it as a client
        self._reloading = ReloadController(
            self._resources, self._process_fleet, self._service_status, words,
            self._watch, self._attached, time.monotonic_ns,
        )  # fmt: skip
        self._drain = Drain(self._resources.lanes)
        self._given_up = False  # a front end left with requests under way
        self._deadline_ns = 0
        self._deaf_until_ns = 0  # to new clients
        self._register(self._signals.fileno(), "signals")
        self._register(self._resources.control.sock.fileno(), "control")

    def _register(self, fd: int, what: Any) -> None:
        self._fds[fd] = what
        self._poll.register(fd, select.POLLIN)

    def _attached(self) -> list[ClientConnection]:
        """Every client that may have lanes."""
        return [
            who for who in (*self._edges.values(), *self._control_server.local) if who.bell_fd >= 0
        ]

    def _forget(self, fd: int) -> None:
        if self._fds.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _status(self) -> dict[str, Any]:
        status = pool_status(self._resources, self._process_fleet, self._started_ns)
        if self._process_fleet.closed and self._drain.is_over(time.monotonic_ns()):
            status["state"] = "drained"
        reloading = self._reloading
        return {
            **status,
            "reload": reloading.state() or None,
            "last_reload": reloading.last or None,
        }

    def _status_line(self) -> str:
        reloading = self._reloading
        return status_line(self._resources, self._process_fleet, reloading.state(), reloading.last)

    # -- the loop -----------------------------------------------------------------------

    def run(self) -> int:
        if self._resources.leftovers:
            _LOG.info("removed %d segments of dead pools", len(self._resources.leftovers))
        plan = self._resources.plan
        self._resources.state_page.state.set(int(PoolState.STARTING))
        names = ", ".join(f"{m.spec.name} ({len(m.workers)} workers)" for m in plan.models)
        _LOG.info("loading %s", names)
        self._process_fleet.start_all()
        while True:
            due_ns = min(self._process_fleet.tick(), self._service_status.tick(time.monotonic_ns()))
            if self._process_fleet.stopping:
                status = self._end_of_drain()
                if status is not None:
                    return status
                due_ns = min(due_ns, time.monotonic_ns() + 20_000_000, self._deadline_ns)
            elif not self._process_fleet.was_ready and self._process_fleet.all_serve():
                self._announce_ready()
            self._reloading.tick()
            self._keep_ledger()
            self._wait(due_ns)

    def _keep_ledger(self) -> None:
        resources, process_fleet = self._resources, self._process_fleet
        posts = [process_fleet.batcher_slot, *process_fleet.frontend_slots]
        served = {
            entry: model.spec.name
            for entry, model in process_fleet.entries.items()
            if entry in resources.plan.entries or resources.counters.alive[entry]
        }
        resources.ledger.look(
            self._started_ns,
            resources.state_page,
            served,
            list(zip(posts, process_fleet.watched(), strict=True)),
            process_fleet.workers,
            resources.lanes,
            time.monotonic_ns(),
        )

    def _wait(self, due_ns: int) -> None:
        now_ns = time.monotonic_ns()
        if 0 < self._deaf_until_ns <= now_ns:
            self._deaf_until_ns = 0
            self._register(self._resources.control.sock.fileno(), "control")
        timeout_ms = max(0.0, (due_ns - now_ns) / 1e6)
        ready = self._poll.poll(timeout_ms)
        # Before any death is judged: one signal may have gone to the whole group.
        self._act_on_signals()
        for fd, _ in ready:
            what = self._fds.get(fd)
            if what == "signals":
                self._signals.clear()
            elif what == "control":
                self._accept()
            elif isinstance(what, Child):
                self._child_event(what, fd)
            elif isinstance(what, ClientConnection):
                self._client_event(what, fd)
        discovery = self._reloading.discovery
        for child in (
            *self._process_fleet.everybody(),
            *([] if discovery is None else [discovery]),
        ):
            if child.pidfd < 0 and child.is_gone():
                self._gone(child)

    def _announce_ready(self) -> None:
        self._process_fleet.was_ready = True
        self._resources.state_page.state.set(int(PoolState.READY))
        plan = self._resources.plan
        names = ", ".join(m.spec.name for m in plan.models)
        took_s = (time.monotonic_ns() - self._started_ns) / 1e9
        urls = self._resources.activated.urls or [plan.url]
        _LOG.info("ready after %.1f s: %s serves %s", took_s, ", ".join(urls), names)
        _LOG.info("local clients: %s", plan.socket)
        self._service_status.ready(time.monotonic_ns())

    # -- children -----------------------------------------------------------------------

    def _watch(self, child: Child) -> None:
        if child.pidfd >= 0:
            self._register(child.pidfd, child)
        self._register(child.channel.fileno(), child)
        if child.role == "frontend":
            index = self._process_fleet.frontends.index(child)
            owner = self._process_fleet.owner_of(child)
            self._edges[child.pid] = attached_frontend(owner, child.channel, index)

    def _unwatch(self, child: Child) -> None:
        if child.pidfd >= 0:
            self._forget(child.pidfd)
        self._forget(child.channel.fileno())

    def _child_event(self, child: Child, fd: int) -> None:
        if fd == child.pidfd:
            if child.is_gone():
                self._hear(child)  # its last words
                self._gone(child)
        elif not child.closed:
            self._hear(child)

    def _hear(self, child: Child) -> None:
        while True:
            try:
                message, fds = child.channel.receive()
            except BlockingIOError:
                return
            except Closed:
                # The end itself is noticed elsewhere; a closed channel alone would spin here.
                self._forget(child.channel.fileno())
                return
            except ValueError as exc:
                child.terminate(f"could not be understood: {exc}")
                return
            if child.role == "worker":
                self._process_fleet.workers.says(child, message)
            elif child.role == "discovery":
                self._reloading.discovered(message)
            elif child.role == "frontend":
                if message["op"] == "serving":
                    child.state = "serving"
                    self._process_fleet.tell_facts(child)  # as they are now; it asked a while ago
                    if child.slot.restarts:
                        _LOG.info("%s (pid %d) serves again", child.slot.name, child.pid)
                elif not self._control_server.handle(self._edges[child.pid], message, fds):
                    child.terminate("could not be answered")
            else:
                self._batcher_says(child, message)

    def _batcher_says(self, batcher: Child, message: dict[str, Any]) -> None:
        op = message["op"]
        if op == "running":
            batcher.state = "running"
            if batcher.slot.restarts:
                _LOG.info("the new batcher (pid %d) has taken over", batcher.pid)
        elif op == "lane_closed":
            self._process_fleet.lane_closed(message["lane"])
        elif op == "idle":
            self._process_fleet.workers.idle(message["worker"], message["turn"])
        elif op == "worker_handled":
            self._process_fleet.workers.handled(message["worker"])
        elif op == "drained":
            self._drain.batcher_says(message["turn"], message["empty"])

    def _gone(self, child: Child) -> None:
        if child.role == "frontend":
            edge = self._edges.pop(child.pid, None)
            if edge is not None:
                self._control_server.drop(edge)
            if child.process.returncode == EXIT_GAVE_UP:
                self._given_up = True
        if child.role == "discovery":
            self._unwatch(child)
            self._reloading.discovery_ended(child)
            child.close()
        else:
            self._process_fleet.on_gone(child)

    # -- local clients ------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            who = self._control_server.accept()
        except OSError as exc:  # they wait, and are looked at again later, not in circles
            _LOG.error("no client can be taken: %s", text_of(exc))
            self._forget(self._resources.control.sock.fileno())
            self._deaf_until_ns = time.monotonic_ns() + _DEAF_NS
            return
        if who is not None:
            self._register(who.channel.fileno(), who)
            if who.pidfd >= 0:
                self._register(who.pidfd, who)

    def _client_event(self, who: ClientConnection, fd: int) -> None:
        # The pidfd is readable when the process has died, even if a forked child of it still
        # holds the socket.
        if fd == who.pidfd or not self._control_server.hear(who):
            self._forget(who.channel.fileno())
            if who.pidfd >= 0:
                self._forget(who.pidfd)
            self._control_server.drop(who)

    # -- what operators ask -------------------------------------------------------------

    def reload(self, told: OnDone | None) -> None:
        """As soon as that can be; told at its end."""
        self._reloading.request(told)

    def cancel_reload(self) -> str:
        """Give up the reload under way."""
        return self._reloading.cancel()

    def drain(self, on: bool | None) -> tuple[bool, bool, int]:
        """Take no new requests, or take them again; None only looks. Returns whether it drains,
        whether all is answered, and the rows under way.

        Asking for what is so already changes nothing.
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
            self._process_fleet.drain(0)
        over = self._process_fleet.closed and self._drain.is_over(time.monotonic_ns())
        return self._process_fleet.closed, over, self._drain.rows()

    def _close_gates(self) -> None:
        self._resources.state_page.state.set(int(PoolState.DRAINING))
        self._process_fleet.drain(self._drain.begin())

    # -- the end ------------------------------------------------------------------------

    def _act_on_signals(self) -> None:
        for name, is_reload in self._signals.take():
            if is_reload:
                _LOG.info("%s: reload", name)
                self._reloading.request()
            elif not self._process_fleet.stopping:
                self._stop(name)
            else:
                _LOG.warning("%s again: stopping at once", name)
                self._deadline_ns = 0

    def _stop(self, name: str) -> None:
        drain_s = self._resources.plan.server.drain_s
        _LOG.info("%s: accepted requests get %g s to finish", name, drain_s)
        self._process_fleet.stopping = True
        self._deadline_ns = time.monotonic_ns() + int(drain_s * 1e9)
        self._close_gates()
        self._service_status.stopping()
        self._reloading.stop()
        # Connections that nobody will accept any more are refused at once; those to a socket of
        # systemd's wait there for the next pool.
        self._resources.close_listeners()
        self._process_fleet.stop_frontends()

    def _end_of_drain(self) -> int | None:
        """The exit status once everything is answered or the time is up; None before."""
        now_ns = time.monotonic_ns()
        answered = self._drain.batcher_done and not any(self._process_fleet.frontends)
        over = answered and self._drain.is_over(now_ns)
        left = self._drain.rows()
        if self._given_up and not any(self._process_fleet.frontends):
            _LOG.error("stopped with requests under way: they were given up, their time was up")
            return 1
        if over and not left:
            _LOG.info("stopped: every accepted request was answered")
            return 0
        if now_ns < self._deadline_ns and not over:
            return None
        if left == 0:
            _LOG.info("stopped: no request was under way")
            return 0
        if answered:
            _LOG.info("stopped: %d answered rows were not fetched by their clients", left)
            return 0
        _LOG.error("stopped with %d rows under way: the time to drain was up", left)
        return 1

    def close(self) -> None:
        """End every child, let everything go. Also after a failed start."""
        self._resources.state_page.state.set(int(PoolState.STOPPED))
        self._process_fleet.kill_all()
        self._reloading.close()
        for edge in self._edges.values():
            edge.close()
        for who in list(self._control_server.local):
            who.close()
        self._resources.close()
        logging.shutdown()
