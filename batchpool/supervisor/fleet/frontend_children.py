"""The front ends' processes as the supervisor keeps them: start, plan changes, replacement."""

from __future__ import annotations

import signal
from collections.abc import Callable

from batchpool.control.messages import PlanChanged
from batchpool.core.errors import StartError
from batchpool.shm.heartbeat import frontend_word
from batchpool.supervisor.children.child import Child, ProcessSlot, log_flags, start_child
from batchpool.supervisor.children.roles import FRONTEND
from batchpool.supervisor.fleet.batcher_child import log_end
from batchpool.supervisor.resources.catalog import lane_form, model_forms, server_form
from batchpool.supervisor.resources.resources import PoolResources


class FrontendChildren:
    """All front ends of a pool. children[i] fills slots[i]; None between two processes."""

    def __init__(
        self,
        resources: PoolResources,
        watch: Callable[[Child], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._resources = resources
        self._watch = watch
        self._clock_ns = clock_ns
        self._start_at_ns: dict[int, int] = {}
        count = resources.plan.frontends
        self.slots = [ProcessSlot(f"{FRONTEND.name} {i}") for i in range(count)]
        self.children: list[Child | None] = [None] * count

    def start(self, i: int) -> None:
        """Start front end i on its listening sockets. Raises StartError as `start_child`."""
        resources, plan = self._resources, self._resources.plan
        listening = [listener.fileno() for listener in resources.listeners[i]]
        fds = {
            "--heartbeats-fd": resources.heartbeats_fd,
            "--counters-fd": resources.counters_fd,
            "--flight-recorder-fd": resources.flight_recorder_read_fd,
        }
        own = {
            "--listen-fds": ",".join(map(str, listening)),
            **fds,
            "--heartbeats": plan.heartbeats,
            "--tasks": int(plan.server.tasks),
            "--heartbeat": frontend_word(i),
        }
        child = start_child(
            FRONTEND,
            self.slots[i],
            started_ns=self._clock_ns(),
            flags=[*(str(word) for flag in own.items() for word in flag), *log_flags(plan.server)],
            fds=[*listening, *fds.values()],
        )
        self.children[i] = child
        self._start_at_ns.pop(i, None)
        self._watch(child)

    def ended(self, child: Child, *, useful: bool, stopping: bool) -> None:
        """A process has ended. useful: it served, so that the next one starts at once. stopping:
        the pool stops, so that none follows."""
        i = self.children.index(child)
        self.children[i] = None
        if FRONTEND.is_followed(stopping=stopping):
            log_end(child)
            self._start_at_ns[i] = self._clock_ns() + int(child.slot.backoff_s(useful) * 1e9)

    def start_if_due(self, now_ns: int) -> list[int]:
        """Start those whose time has come; returns the times of the next attempts
        (CLOCK_MONOTONIC ns)."""
        for i, at_ns in list(self._start_at_ns.items()):
            if at_ns <= now_ns:
                try:
                    self.start(i)
                except StartError as exc:
                    delay_ns = int(self.slots[i].start_failed_s(exc) * 1e9)
                    self._start_at_ns[i] = now_ns + delay_ns
        return list(self._start_at_ns.values())

    def send_plan(self, child: Child) -> None:
        """Tell a front end the models and settings of now, with lanes that it does not know yet.

        Nothing is sent before it serves: it would take the message for the answer to its own
        question.
        """
        if child.state != "serving":
            return
        resources, plan = self._resources, self._resources.plan
        lanes = [
            lane
            for lane in resources.lanes.of_owner(self.owner_of(child))
            if not lane.handed and lane.model in plan.entries
        ]
        for lane in lanes:
            lane.handed = True
        message = PlanChanged(
            model_forms(plan),
            server_form(plan),
            resources.state_page.edition.get(),
            tuple(map(lane_form, lanes)),
        )
        child.send(message, [lane.fd for lane in lanes])

    def send_plan_to_all(self) -> None:
        """Tell every front end the models and settings of now."""
        for child in self.children:
            if child is not None:
                self.send_plan(child)

    def owner_of(self, child: Child) -> str:
        """The name of a front end in the table of lanes."""
        return f"{FRONTEND.name} {self.children.index(child)} (pid {child.pid})"

    def all_serve(self) -> bool:
        """True if every front end listens."""
        return all(child is not None and child.state == "serving" for child in self.children)

    def stop(self) -> None:
        """Send SIGTERM to all, and start none any more."""
        self._start_at_ns.clear()
        for child in self.children:
            if child is not None:
                child.kill(signal.SIGTERM)
