"""Messages and ends of the supervisor's children, passed on to the parts that act on them."""

from __future__ import annotations

import logging
from functools import partial
from typing import assert_never

from batchpool.control.channel import Closed
from batchpool.control.edges import BadPacket, FromBatcher
from batchpool.control.messages import FrontendServing
from batchpool.control.process_messages import (
    BatcherRunning,
    ConfigurationRead,
    Discovered,
    DiscoveryFailed,
    Drained,
    LaneBroken,
    LaneClosed,
    WorkerBroken,
    WorkerFailed,
    WorkerHandled,
    WorkerIdle,
    WorkerReady,
)
from batchpool.control.task_messages import TasksFailed, TasksServing
from batchpool.process.bootstrap import EXIT_GAVE_UP
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.children.roles import DISCOVERY, FromChild
from batchpool.supervisor.control_server import ControlServer, attached_frontend
from batchpool.supervisor.drain import Drain
from batchpool.supervisor.event_loop import EventLoop
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.reload.controller import ReloadController
from batchpool.supervisor.resources.client_connection import ClientConnection

_LOG = logging.getLogger("batchpool.supervisor")


class ChildEvents:
    """Keeps the children's descriptors in the event loop and routes what comes from them.

    frontends: front ends as clients, by pid. requests_given_up: a front end ended with requests
    under way, since their time was up.
    """

    def __init__(
        self,
        loop: EventLoop,
        process_fleet: ProcessFleet,
        control_server: ControlServer,
        reload_controller: ReloadController,
        drain: Drain,
    ) -> None:
        self._loop = loop
        self._process_fleet = process_fleet
        self._control_server = control_server
        self._reload_controller = reload_controller
        self._drain = drain
        self.frontends: dict[int, ClientConnection] = {}
        self.requests_given_up = False

    def watch(self, child: Child) -> None:
        """Add a child that was started."""
        if child.pidfd >= 0:
            self._loop.add(child.pidfd, partial(self._check_end, child))
        self._loop.add(child.channel.fileno(), partial(self._receive, child))
        if child.role.is_client:
            index = self._process_fleet.frontends.children.index(child)
            owner = self._process_fleet.frontends.owner_of(child)
            self.frontends[child.pid] = attached_frontend(owner, child.channel, index)

    def unwatch(self, child: Child) -> None:
        """Remove a child that has ended."""
        if child.pidfd >= 0:
            self._loop.remove(child.pidfd)
        self._loop.remove(child.channel.fileno())

    def poll_ends(self) -> None:
        """Notice the ends of children without a pidfd, where the kernel has none."""
        discovery = self._reload_controller.discovery
        children = self._process_fleet.everybody() + ([] if discovery is None else [discovery])
        for child in children:
            if child.pidfd < 0 and child.is_gone():
                self._ended(child)

    def _check_end(self, child: Child) -> None:
        if child.is_gone():
            self._receive(child)  # messages from before its end
            self._ended(child)

    def _receive(self, child: Child) -> None:
        if child.closed:
            return
        while True:
            try:
                message, fds = child.channel.receive(child.role.edge)
            except BlockingIOError:
                return
            except Closed:
                # The end itself is noticed by the pidfd; a closed channel stays readable.
                self._loop.remove(child.channel.fileno())
                return
            except BadPacket as exc:
                child.terminate(f"could not be understood: {exc}")
                return
            self._route(child, message, fds)

    def _route(self, child: Child, message: FromChild, fds: list[int]) -> None:
        match message:
            case WorkerReady() | WorkerFailed():
                self._process_fleet.workers.says(child, message)
            case ConfigurationRead() | Discovered() | DiscoveryFailed():
                self._reload_controller.discovered(message)
            case TasksServing() | TasksFailed():
                self._process_fleet.tasks.says(child, message)
                if isinstance(message, TasksServing) and child.slot.restarts:
                    _LOG.info("tasks (pid %d) serves again", child.pid)
            case FrontendServing():
                child.state = "serving"
                self._process_fleet.frontends.send_plan(
                    child
                )  # they may have changed since it asked
                if child.slot.restarts:
                    _LOG.info("%s (pid %d) serves again", child.slot.name, child.pid)
            case (
                BatcherRunning() | LaneClosed() | LaneBroken()
                | WorkerBroken() | WorkerIdle() | WorkerHandled() | Drained()
            ):  # fmt: skip
                self._route_batcher(child, message)
            case _:
                if not self._control_server.handle(self.frontends[child.pid], message, fds):
                    child.terminate("could not be answered")

    def _route_batcher(self, batcher: Child, message: FromBatcher) -> None:
        match message:
            case BatcherRunning():
                batcher.state = "running"
                if batcher.slot.restarts:
                    _LOG.info("the new batcher (pid %d) has taken over", batcher.pid)
            case LaneClosed():
                self._process_fleet.lane_closed(message.lane)
            case LaneBroken():
                self._control_server.lane_broken(message.lane, message.damage)
            case WorkerBroken():
                self._process_fleet.workers.broken(message)
            case WorkerIdle():
                self._process_fleet.workers.idle(message.worker, message.duty)
            case WorkerHandled():
                self._process_fleet.workers.handled(message.worker)
            case Drained():
                self._drain.batcher_reported(message.drain, message.empty)
            case _:
                assert_never(message)

    def _ended(self, child: Child) -> None:
        if child.role.is_client:
            client = self.frontends.pop(child.pid, None)
            if client is not None:
                self._control_server.drop(client)
            if child.process.returncode == EXIT_GAVE_UP:
                self.requests_given_up = True
        if child.role is DISCOVERY:
            self.unwatch(child)
            self._reload_controller.discovery_ended(child)
            child.close()
        else:
            self._process_fleet.on_gone(child)
