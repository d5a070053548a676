"""The task process as the supervisor keeps it: its start, its socket, its replacement."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from batchpool.control.task_messages import SetTasks, StartTasks, TasksFailed, TasksServing
from batchpool.core.config.paths import batch_folder, task_folder
from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child, ProcessSlot, log_flags, start_child
from batchpool.supervisor.children.roles import TASKS
from batchpool.supervisor.fleet.batcher_child import log_end
from batchpool.supervisor.resources.catalog import server_form
from batchpool.supervisor.resources.resources import PoolResources


class TaskChild:
    """The task process: `child`, None between two of them and where the pool keeps no tasks.

    Its listening socket is the supervisor's, so that who asks while there is no process waits for
    the next one. has_failed: its last process could not use the store; the reason is the slot's
    last error.
    """

    def __init__(
        self,
        resources: PoolResources,
        watch: Callable[[Child], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._resources = resources
        self._watch = watch
        self._clock_ns = clock_ns
        self._start_at_ns: int | None = None
        self.slot = ProcessSlot(TASKS.name)
        self.child: Child | None = None

    @property
    def is_wanted(self) -> bool:
        """True if the pool keeps tasks."""
        return self._resources.task_socket is not None

    def start(self) -> None:
        """Start it, if it is wanted. Raises StartError as `start_child`."""
        resources, plan = self._resources, self._resources.plan
        if resources.task_socket is None:
            return
        child = start_child(
            TASKS, self.slot, started_ns=self._clock_ns(), flags=log_flags(plan.server)
        )
        self.child = child
        self._start_at_ns = None
        place = plan.server, os.environ, os.geteuid()
        message = StartTasks(
            server_form(plan), task_folder(*place), plan.socket, plan.heartbeats,
            plan.heartbeats - 1, batch_folder(*place) if plan.server.batches else "",
        )  # fmt: skip
        socket_fd = resources.task_socket.sock.fileno()
        child.send(message, [socket_fd, resources.heartbeats_fd, resources.tracebacks_read_fd])
        self._watch(child)

    def says(self, child: Child, message: TasksServing | TasksFailed) -> None:
        """Take a message of the process."""
        match message:
            case TasksServing():
                child.state = "serving"
            case TasksFailed():
                child.cause = f"failed: {message.error}"

    def ended(self, child: Child, *, useful: bool, stopping: bool) -> None:
        """Its process has ended. useful, stopping: as of `FrontendChildren.ended`."""
        self.child = None
        if TASKS.is_followed(stopping=stopping):
            log_end(child)
            self._start_at_ns = self._clock_ns() + int(child.slot.backoff_s(useful) * 1e9)

    def start_if_due(self, now_ns: int) -> list[int]:
        """Start it if its time has come; returns the time of the next attempt, if there is one
        (CLOCK_MONOTONIC ns)."""
        at_ns = self._start_at_ns
        if at_ns is None or at_ns > now_ns:
            return [] if at_ns is None else [at_ns]
        try:
            self.start()
        except StartError as exc:
            self._start_at_ns = now_ns + int(self.slot.start_failed_s(exc) * 1e9)
            return [self._start_at_ns]
        return []

    def set_limits(self) -> None:
        """Tell it the settings that a reload has changed."""
        server = self._resources.plan.server
        if self.child is not None and self.child.state == "serving":
            self.child.send(SetTasks(server.stall_timeout_s, server.log_level))

    def serves(self) -> bool:
        """True if it answers, or need not."""
        return not self.is_wanted or (self.child is not None and self.child.state == "serving")

    def stop(self) -> None:
        """Send it SIGTERM, and start none any more."""
        self._start_at_ns = None
        if self.child is not None:
            self.child.kill(signal.SIGTERM)
