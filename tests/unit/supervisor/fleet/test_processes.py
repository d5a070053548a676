"""The staff: a batcher or front end that cannot be started now is started later."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.channel import pair
from batchpool.core.errors import StartError
from batchpool.core.layout.segments import MODELS_MOST
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.roles import Role
from batchpool.supervisor.fleet import batcher_child, frontend_children
from batchpool.supervisor.fleet.processes import ProcessFleet
from tests.unit.supervisor.children.watchdog_scene import ProcessDouble
from tests.unit.supervisor.plan.test_diff import plan

S = 1_000_000_000


class Office:
    """A staff of a batcher and a front end, which served and have just died."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = 100 * S
        self.room = False
        self.started: list[str] = []
        self._theirs: list[Any] = []
        fds = SimpleNamespace(fd=0, fileno=lambda: 0)
        resources = SimpleNamespace(
            plan=plan("a", server={"frontends": 1, "stall_timeout_s": 0.0}),
            state_page=SimpleNamespace(
                edition=SimpleNamespace(get=lambda: 1),
                serving=[0] * MODELS_MOST,
                accepting=[0] * MODELS_MOST,
            ),
            heartbeats=None, lanes=[], batcher_bell=fds, listeners=[[fds]], max_lanes=8,
            task_socket=None,
            heartbeats_fd=0, counters_fd=0, flight_recorder_fd=0, flight_recorder_read_fd=0,
            tracebacks_fd=-1, tracebacks_read_fd=-1,
        )  # fmt: skip
        self.process_fleet = ProcessFleet(
            cast(Any, resources), lambda c: None, lambda c: None, lambda: self.now_ns
        )
        self.process_fleet.was_ready = True
        self.process_fleet.workers.worker_slots.clear()
        for module in (batcher_child, frontend_children):
            patch.setattr(module, "start_child", self._start)
        self.room = True
        self.process_fleet.batcher.start(self.process_fleet.workers, takeover=False)
        self.process_fleet.frontends.start(0)
        self.room, self.started[:] = False, []

    def _start(self, role: Role, post: ProcessSlot, **_: Any) -> Child:
        if not self.room:
            raise StartError(f"cannot start {post.name}: no room")
        ours, theirs = pair()
        self._theirs.append(theirs)
        self.started.append(post.name)
        return Child(role, post, cast(Any, ProcessDouble(7)), ours, -1, self.now_ns)

    def kill(self, child: Child | None, state: str) -> None:
        assert child is not None
        cast(Any, child.process).returncode, child.state = -9, state
        self.process_fleet.on_gone(child)

    def close(self) -> None:
        for end in self._theirs:
            end.close()
        for child in self.process_fleet.everybody():
            child.close()


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    office = Office(monkeypatch)
    yield office
    office.close()


def test_no_room_for_a_successor_is_tried_again_and_ends_nobody(office: Office) -> None:
    process_fleet = office.process_fleet
    batcher, frontends = process_fleet.batcher, process_fleet.frontends
    office.kill(batcher.child, "running")
    office.kill(frontends.children[0], "serving")
    due_ns = process_fleet.tick()
    assert (batcher.child, frontends.children, office.started) == (None, [None], [])
    assert office.now_ns < due_ns <= office.now_ns + S // 2
    assert batcher.slot.last_error == "cannot start batcher: no room"
    process_fleet.tick()
    assert batcher.slot.failures == 1, "not before its time"
    office.now_ns += S // 2
    process_fleet.tick()
    assert (batcher.slot.failures, frontends.slots[0].failures) == (2, 2)
    office.room = True
    office.now_ns += S
    process_fleet.tick()
    assert office.started == ["batcher", "frontend 0"]
    assert None not in process_fleet.watched()
