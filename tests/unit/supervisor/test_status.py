"""The status: processes by their last heartbeats."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.core.layout.segments import heartbeats_layout, state_page_layout
from batchpool.shm.heartbeat import BATCHER, Heartbeats, frontend_word
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.segment import create
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.status import pool_status
from tests.unit.counters import new_counters

S = 1_000_000_000


class PoolDouble:
    """A batcher and a front end as the status sees them; workers and lanes are none."""

    def __init__(self) -> None:
        self.started_ns = time.monotonic_ns() - 100 * S
        fds = create(state_page_layout(), sealed=False), create(heartbeats_layout(2), sealed=False)
        self.heartbeats = Heartbeats(fds[1], 2)
        plan = SimpleNamespace(entries={}, url="http://x", socket="/x")
        state_page = PoolStatePage(fds[0], writable=True)
        for fd in fds:
            os.close(fd)
        self._resources = SimpleNamespace(
            plan=plan,
            state_page=state_page,
            lanes=(),
            heartbeats=self.heartbeats,
            counters=new_counters(),
        )
        self.batcher = self._child("batcher", 7, "running")
        self.frontend = self._child("frontend", 8, "serving")
        self.process_fleet = SimpleNamespace(
            batcher=SimpleNamespace(child=self.batcher, slot=self.batcher.slot),
            frontends=SimpleNamespace(children=[self.frontend], slots=[self.frontend.slot]),
            tasks=SimpleNamespace(is_wanted=False),
            workers=[],
            watched=lambda: [
                self.process_fleet.batcher.child,
                *self.process_fleet.frontends.children,
            ],
        )

    def _child(self, name: str, pid: int, state: str) -> Child:
        process = cast(Any, SimpleNamespace(pid=pid))
        return Child(
            BATCHER, ProcessSlot(name), process, cast(Any, None), -1, self.started_ns, state
        )

    def rows(self) -> dict[str, dict[str, Any]]:
        resources, process_fleet = cast(Any, self._resources), cast(Any, self.process_fleet)
        status = pool_status(resources, process_fleet, self.started_ns)
        return {row["name"]: row for row in status["processes"]}


@pytest.mark.parametrize(
    ("state", "age_s", "shown"),
    [
        ("running", 0.3, "running"),
        ("running", 3, "not answering"),
        ("starting", 3, "starting"),
    ],
)
def test_a_batcher_that_does_not_stamp_is_shown(state: str, age_s: float, shown: str) -> None:
    pool = PoolDouble()
    pool.batcher.state = state
    pool.heartbeats.beat(BATCHER, time.monotonic_ns() - round(age_s * S))
    rows = pool.rows()
    assert rows["batcher"]["state"] == shown
    assert rows["frontend"]["state"] == "serving"


def test_the_age_of_the_last_stamp_is_shown_of_those_who_stamp() -> None:
    pool = PoolDouble()
    rows = pool.rows()
    assert "progress_age_s" not in rows["supervisor"]
    assert rows["batcher"]["progress_age_s"] is None, "not yet"
    pool.heartbeats.beat(BATCHER, time.monotonic_ns() - 3 * S)
    pool.heartbeats.beat(frontend_word(0), time.monotonic_ns() - 50 * S)
    rows = pool.rows()
    assert 3 <= rows["batcher"]["progress_age_s"] < 40
    assert 50 <= rows["frontend"]["progress_age_s"] < 90
    pool.heartbeats.beat(BATCHER, time.monotonic_ns() + 60 * S)  # between two looks at the clock
    assert str(pool.rows()["batcher"]["progress_age_s"]) == "0.0"
    pool.frontend.started_ns += 60 * S
    assert pool.rows()["frontend"]["progress_age_s"] is None, "the one before it stamped"
    pool.process_fleet.batcher.child = None
    row = pool.rows()["batcher"]
    assert (row["pid"], row["state"], row["progress_age_s"]) == (None, "gone", None)


def test_one_that_is_being_killed_is_shown_as_killed() -> None:
    pool = PoolDouble()
    pool.batcher.terminating = True
    assert pool.rows()["batcher"]["state"] == "killed"
