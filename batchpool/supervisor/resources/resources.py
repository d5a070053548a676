"""Resources that live as long as the pool: segments, listeners, the control socket, lanes.

Every descriptor is kept here, so that a new batcher or worker is handed the same lanes again.
"""

from __future__ import annotations

import itertools
import os
import time

from batchpool.core.config.paths import task_socket_path
from batchpool.core.layout.segments import heartbeats_layout, state_page_layout
from batchpool.core.metrics.segments import (
    counters_layout,
    flight_recorder_layout,
    tracebacks_layout,
)
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.heartbeat import Heartbeats
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.segment import create, remove_leftovers
from batchpool.shm.stats.counters import Counters
from batchpool.supervisor.host.listen import (
    ControlSocket,
    HttpUnixSocket,
    PassedSocket,
    TaskSocket,
    listen_http,
)
from batchpool.supervisor.host.socket_activation import ActivatedSockets
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.resources.lane_table import LaneTable
from batchpool.supervisor.resources.metrics import SupervisorMetrics


class PoolResources:
    """The pool's sockets, state page, heartbeats, counters, flight recorder, bells and lanes.

    tracebacks_fd, tracebacks_read_fd: -1 where no tasks are kept. activated: sockets that systemd
    holds for it. Raises StartError for what cannot be had.
    """

    def __init__(self, plan: Plan, activated: ActivatedSockets) -> None:
        self.plan = plan
        self.activated = activated
        # The port first: two pools by their defaults collide in both, and people know the port.
        server = plan.server
        if activated.has_http:
            self.listeners = activated.listeners(plan.frontends)
        elif server.port:
            self.listeners = listen_http(server.host, server.port, plan.frontends)
        else:
            self.listeners = [[] for _ in range(plan.frontends)]
        self.control: ControlSocket | PassedSocket
        self._http_unix: HttpUnixSocket | None = None
        try:
            if server.uds:
                self._http_unix = HttpUnixSocket(server.uds, server.uds_mode, server.uds_group)
                for listening in self.listeners:
                    listening.append(self._http_unix.sock)
            if activated.clients is not None:
                self.control = PassedSocket(activated.clients)
            else:
                self.control = ControlSocket(plan.socket)
        except BaseException:
            self.close_listeners()
            raise
        self.leftovers = remove_leftovers()
        self.task_socket = self._open_task_socket() if server.tasks else None
        self.state_page_fd = create(state_page_layout(), sealed=False)
        # Clients may map the state page, but not writable.
        self.state_page_read_fd = _read_only(self.state_page_fd)
        self.state_page = PoolStatePage(self.state_page_fd, writable=True)
        self.heartbeats_fd = create(heartbeats_layout(plan.heartbeats), sealed=False)
        self.heartbeats = Heartbeats(self.heartbeats_fd, plan.heartbeats, writable=False)
        self.counters_fd = create(counters_layout(plan.frontends), sealed=False)
        self.counters = Counters(self.counters_fd, plan.frontends)
        self.metrics = SupervisorMetrics(self.counters, time.time_ns() - time.monotonic_ns())
        self.flight_recorder_fd = create(flight_recorder_layout(), sealed=False)
        self.flight_recorder_read_fd = _read_only(self.flight_recorder_fd)
        self.tracebacks_fd = self.tracebacks_read_fd = -1
        if server.tasks:
            self.tracebacks_fd = create(tracebacks_layout(), sealed=False)
            self.tracebacks_read_fd = _read_only(self.tracebacks_fd)
        self.batcher_bell = Doorbell()
        self.max_lanes = plan.max_lanes  # of the first plan: tables do not grow
        self.lanes = LaneTable(self.max_lanes, self.metrics.forget)

    def _open_task_socket(self) -> TaskSocket:
        try:
            return TaskSocket(task_socket_path(self.plan.socket))
        except BaseException:
            self.close_listeners()
            self.control.close()
            raise

    def name_models(self, plan: Plan) -> None:
        """Write the models' names into the counters before a process counts there, and raise the
        edition, by which clients see that the plan has changed."""
        for model in plan.models:
            self.counters.name_model(model.entry, model.spec.name)
        self.state_page.edition.set(self.state_page.edition.get() + 1)

    def close_listeners(self) -> None:
        """Let go of the HTTP sockets; a front end that still listens has its own."""
        for listener in itertools.chain(*self.listeners):
            listener.close()
        if self._http_unix is not None:
            self._http_unix.close()
            self._http_unix = None

    def close(self) -> None:
        for entry in self.lanes:
            self.lanes.remove(entry.number)
        self.close_listeners()
        self.control.close()
        if self.task_socket is not None:
            self.task_socket.close()
        self.batcher_bell.close()
        for fd in (
            *(
                self.flight_recorder_read_fd,
                self.flight_recorder_fd,
                self.counters_fd,
                self.heartbeats_fd,
            ),
            *(self.state_page_read_fd, self.state_page_fd),
            *(self.tracebacks_read_fd, self.tracebacks_fd),
        ):
            if fd >= 0:
                os.close(fd)


def _read_only(fd: int) -> int:
    """Another descriptor of the same memory, which cannot be mapped writable."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
