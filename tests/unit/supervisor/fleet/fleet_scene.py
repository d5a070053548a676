"""A fleet of children without processes: what each of them was told can be read."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.channel import Channel, close_all, pair
from batchpool.control.edges import TO_BATCHER, TO_FRONTEND, TO_WORKER
from batchpool.control.messages import Message
from batchpool.core.errors import StartError
from batchpool.core.layout.segments import state_page_layout
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.segment import create
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.roles import BATCHER, FRONTEND, Role
from batchpool.supervisor.fleet import batcher_child, frontend_children, workers
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from batchpool.supervisor.resources.lane_table import LaneTable
from tests.unit.supervisor.children.watchdog_scene import ProcessDouble

S = 1_000_000_000


class StartedChildren:
    """Starts children without processes, while there is `room`. started: their names, in order.
    flags: of the last one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.room = True
        self.started: list[str] = []
        self.flags: list[str] = []
        self._ends: dict[int, tuple[Role, Channel]] = {}
        for module in (batcher_child, frontend_children, workers):
            patch.setattr(module, "start_child", self._start)

    def _start(
        self, role: Role, slot: ProcessSlot, *, started_ns: int, flags: Any = (), **_: Any
    ) -> Child:
        if not self.room:
            raise StartError(f"cannot start {slot.name}: no room")
        ours, theirs = pair()
        for channel in (ours, theirs):
            channel.sock.setblocking(False)
        pid = 10 + len(self._ends)
        self._ends[pid] = role, theirs
        self.started.append(slot.name)
        self.flags = [*map(str, flags)]
        return Child(role, slot, cast(Any, ProcessDouble(pid)), ours, -1, started_ns)

    def say(self, child: Child | None, message: Message) -> None:
        """Let a child say this; the supervisor reads it at its next turn."""
        assert child is not None
        self._ends[child.pid][1].send(message)

    def told(self, child: Child | None) -> list[Any]:
        """The messages that a child got since the last look."""
        return [message for message, _ in self.told_with(child)]

    def told_with(self, child: Child | None) -> list[tuple[Any, tuple[int, ...]]]:
        """The messages that a child got, with the identities of the descriptors."""
        assert child is not None
        role, theirs = self._ends[child.pid]
        edge: Any = {BATCHER: TO_BATCHER, FRONTEND: TO_FRONTEND}.get(role, TO_WORKER)
        found: list[tuple[Any, tuple[int, ...]]] = []
        while True:
            try:
                message, fds = theirs.receive(edge)
            except BlockingIOError:
                return found
            found.append((message, tuple(map(identity, fds))))
            close_all(fds)

    def close(self) -> None:
        for _, theirs in self._ends.values():
            theirs.close()


def identity(fd: int) -> int:
    """A number that tells whether two descriptors are of the same counter or segment."""
    with open(f"/proc/self/fdinfo/{fd}") as facts:
        for line in facts:
            if line.startswith("eventfd-id:"):
                return int(line.split()[1])
    return -os.fstat(fd).st_ino


class FleetScene:
    """A fleet, its lanes and its clients. watched, unwatched: children, in order. named: the plans
    whose models were written into the counters."""

    def __init__(self, patch: pytest.MonkeyPatch, plan: Plan) -> None:
        self.now_ns = 100 * S
        self.children = StartedChildren(patch)
        self.told = self.children.told
        self.told_with = self.children.told_with
        self.watched: list[Child] = []
        self.unwatched: list[Child] = []
        self.named: list[Plan] = []
        self._clients: list[ClientConnection] = []
        page_fd = create(state_page_layout(), sealed=False)
        self.state_page = PoolStatePage(page_fd, writable=True)
        os.close(page_fd)
        self.lanes = LaneTable(8)
        self.fds = [os.eventfd(0) for _ in range(6)]
        self.resources = SimpleNamespace(
            plan=plan,
            state_page=self.state_page,
            metrics=SimpleNamespace(row_for=lambda worker_slot, all_slots: worker_slot.plan.index),
            heartbeats=SimpleNamespace(last_ns=lambda word, started_ns: self.now_ns),
            lanes=self.lanes,
            max_lanes=8,
            name_models=self.named.append,
            task_socket=None,
            batcher_bell=SimpleNamespace(fd=self.fds[0]),
            heartbeats_fd=self.fds[1],
            counters_fd=self.fds[2],
            flight_recorder_fd=self.fds[3],
            flight_recorder_read_fd=self.fds[4],
            tracebacks_fd=-1,
            tracebacks_read_fd=-1,
            listeners=[[SimpleNamespace(fileno=lambda: self.fds[5])]] * plan.frontends,
        )
        self.fleet = ProcessFleet(
            cast(Any, self.resources), self.watched.append, self.unwatched.append,
            lambda: self.now_ns,
        )  # fmt: skip

    def client(self, name: str = "client", frontend: int | None = None) -> ClientConnection:
        """An attached client: local if it has no place as a front end."""
        ours, theirs = pair()
        theirs.close()
        bells = HeldBells.of_local_client() if frontend is None else HeldBells.of_frontend()
        number = len(self._clients) + 1 if frontend is None else 0
        client = ClientConnection(name, ours, None, -1, frontend, bells, number=number)
        self._clients.append(client)
        return client

    def end(self, child: Child | None, state: str = "", status: int = -9) -> None:
        """Let a child end in this state, and the fleet learn of it."""
        assert child is not None
        cast(Any, child.process).returncode = status
        child.state = state or child.state
        self.fleet.on_gone(child)

    def close(self) -> None:
        for entry in self.lanes:
            self.lanes.remove(entry.number)
        for client in self._clients:
            client.close()
            client.channel.close()
        for child in self.watched:
            child.close()
        self.children.close()
        for worker_slot in self.fleet.workers:
            if worker_slot.bell is not None:
                worker_slot.bell.close()
                os.close(worker_slot.fd)
        close_all(self.fds)
