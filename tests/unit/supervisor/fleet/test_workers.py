"""Workers that do not end although they were killed: nobody's, and not forgotten."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from batchpool.control.channel import pair
from batchpool.control.edges import TO_WORKER, ToBatcher
from batchpool.control.process_messages import DropLane, SetDuty, WorkerLost
from batchpool.core.layout.segments import state_page_layout
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.segment import create
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.children.roles import WORKER
from batchpool.supervisor.children.worker_slot import WorkerSlot
from batchpool.supervisor.fleet.workers import WorkerFleet
from tests.unit.supervisor.children.watchdog_scene import ProcessDouble
from tests.unit.supervisor.plan.test_diff import plan


class Office:
    """Two workers of one model, both warm. told: the batcher's messages."""

    def __init__(self) -> None:
        fd = create(state_page_layout(), sealed=False)
        self.state_page = PoolStatePage(fd, writable=True)
        os.close(fd)
        resources = SimpleNamespace(
            plan=plan("a", workers_per_device=2), state_page=self.state_page, lanes=[]
        )
        self.now_ns = 0
        self.told: list[ToBatcher] = []
        self.workers = WorkerFleet(
            cast(Any, resources), lambda child: None, lambda: self.now_ns,
            lambda message, fds: self.told.append(message),
        )  # fmt: skip
        self._theirs = []
        for number, worker_slot in enumerate(self.workers.worker_slots):
            ours, theirs = pair()
            self._theirs.append(theirs)
            process = cast(Any, ProcessDouble(7 + number))
            worker_slot.child = Child(
                WORKER, worker_slot.process_slot, process, ours, -1, 0, "serving"
            )
            worker_slot.number, worker_slot.ready, worker_slot.bell, worker_slot.fd = (
                number,
                True,
                Doorbell(),
                os.dup(0),
            )
            worker_slot.worker_segment = cast(Any, SimpleNamespace(
                token=np.zeros(1), freed=np.zeros(1), reason=np.zeros(1),
                good=SimpleNamespace(get=lambda: 1),
            ))  # fmt: skip

    def close(self) -> None:
        for end in self._theirs:
            end.close()
        for worker_slot in self.workers:
            if worker_slot.child is not None:
                worker_slot.child.close()
            if worker_slot.bell is not None:
                worker_slot.bell.close()
                os.close(worker_slot.fd)


@pytest.fixture
def office() -> Any:
    office = Office()
    yield office
    office.close()


def end(office: Office, worker_slot: WorkerSlot) -> None:
    child = worker_slot.child
    assert child is not None
    cast(Any, child.process).returncode = -9
    office.workers.gone(child, was_ready=True, stopping=False)
    child.close()
    office.workers.handled(worker_slot.number)


def test_a_worker_that_was_killed_serves_no_more_though_it_is_there_still(office: Office) -> None:
    """Readiness would lie, and requests wait for it until their time is up."""
    assert office.state_page.serving[0] == 0, "nobody has counted yet"
    office.workers.tick(0)
    assert office.state_page.serving[0] == 2
    child = office.workers.worker_slots[0].child
    assert child is not None
    child.terminate("did not finish a batch")
    office.workers.tick(0)
    assert office.state_page.serving[0] == 1


def test_the_remains_of_a_worker(office: Office) -> None:
    workers = office.workers
    stuck, other = workers.worker_slots
    child = stuck.child
    assert child is not None
    workers.give_up(stuck)
    assert (workers.worker_slots, [*workers]) == ([other], [other, stuck])
    assert office.told == [SetDuty(duty=1, on=(), off=(0,))]
    assert (stuck.name, child.terminating) == ("stuck process of worker 0 of a", True)
    assert (workers.has_stuck(0), workers.has_stuck(1), workers.has_any(0)) == (
        True, False, True,
    )  # fmt: skip
    assert office.state_page.serving[0] == 1

    told: list[Any] = []
    workers.introduce_all(lambda message, fds: told.append(message))
    assert [(form.worker, form.on_duty) for form in told] == [(1, True), (0, False)]
    workers.drop_lane(cast(Any, SimpleNamespace(model=0, number=3)))
    assert office._theirs[1].receive(TO_WORKER) == (DropLane(3), [])
    office._theirs[0].sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        office._theirs[0].receive(TO_WORKER)

    end(office, stuck)
    assert isinstance(office.told[-1], WorkerLost)
    assert ([*workers], workers.has_stuck(0)) == ([other], False)
    assert workers.tick(0) == 1 << 62, "nobody is started in its place"


def test_the_model_takes_requests_until_its_workers_did_not_come_back_in_time(
    office: Office,
) -> None:
    """A worker that the watchdog condemned counts as gone. Clients look at the state page."""
    accepting, workers = office.state_page.accepting, office.workers
    assert accepting[0] == 0, "nobody has served yet"
    workers.tick(0)
    for worker_slot in workers.worker_slots:
        assert worker_slot.child is not None
        worker_slot.child.terminate("did not finish a batch")
    until_ns = workers.tick(0)
    assert (office.state_page.serving[0], accepting[0], until_ns) == (0, 1, 2_000_000_000)
    office.now_ns = until_ns
    workers.tick(until_ns)
    assert accepting[0] == 0


def test_a_worker_that_ends_after_useful_work_begins_the_time_anew(office: Office) -> None:
    workers, slots = office.workers, office.workers.worker_slots
    workers.tick(0)
    office.now_ns = 5_000_000_000
    for worker_slot in slots:
        end(office, worker_slot)
        worker_slot.start_at_ns = None
    office.now_ns += 1_999_999_999
    workers.tick(0)
    assert office.state_page.accepting[0] == 1
    office.now_ns += 1
    workers.tick(0)
    assert office.state_page.accepting[0] == 0
