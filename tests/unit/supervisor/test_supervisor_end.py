"""The last turns of a pool: its workers end, or their time does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from batchpool.control.channel import Closed, pair
from batchpool.control.process_messages import EndWorker
from batchpool.core.layout.states import PoolState
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from tests.unit.supervisor.fleet.fleet_scene import S
from tests.unit.supervisor.test_supervisor import Pool, Step, stop

LIMIT_NS = 10 * S


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(monkeypatch, tmp_path)
    yield pool
    pool.close()


def served_and_stopped(pool: Pool) -> Step:
    yield from pool.serve()
    pool.children.told(pool.worker)
    yield from stop(pool)


def signals(child: Child | None) -> list[int]:
    assert child is not None
    found: list[int] = cast(Any, child.process).signals
    return found


def test_a_pool_ends_when_its_workers_have(pool: Pool) -> None:
    batcher: list[Child] = []

    def turns(pool: Pool) -> Step:
        assert pool.fleet.batcher.child is not None
        batcher.append(pool.fleet.batcher.child)
        yield from served_and_stopped(pool)

    def ends(pool: Pool) -> Step:
        assert (pool.state, pool.children.told(pool.worker)) == (PoolState.STOPPED, [EndWorker()])
        assert signals(batcher[0]) == [signal.SIGKILL]
        pool.now_ns += LIMIT_NS - 1
        yield []
        yield []
        assert signals(pool.worker) == []
        assert pool.supervisor._status_line() == "stopping: 1 worker to end"
        pool.end_worker()
        yield []

    pool.ends = ends
    assert pool.run(turns) == 0


def test_a_pool_does_not_wait_longer_for_a_worker_than_its_time(pool: Pool) -> None:
    def ends(pool: Pool) -> Step:
        pool.now_ns += LIMIT_NS
        yield []

    pool.ends = ends
    assert pool.run(served_and_stopped) == 0
    assert signals(pool.worker) == [signal.SIGKILL]


def test_a_second_signal_ends_the_wait_for_workers(pool: Pool) -> None:
    def ends(pool: Pool) -> Step:
        yield []
        yield [("SIGINT", False)]

    pool.ends = ends
    assert pool.run(served_and_stopped) == 0
    assert signals(pool.worker) == [], "it is killed with all that is left"
    assert pool.worker is not None


def test_a_second_signal_asks_no_worker_to_end(pool: Pool) -> None:
    def turns(pool: Pool) -> Step:
        yield from pool.serve()
        pool.children.told(pool.worker)
        pool.add_lane(3)
        pool.children.told(pool.worker)
        yield [("SIGTERM", False)]
        pool.last = [("SIGTERM", False)]

    assert pool.run(turns) == 1
    assert pool.children.told(pool.worker) == []


def test_attached_clients_are_let_go_and_who_asks_is_answered_still(pool: Pool) -> None:
    theirs = []
    for number in (1, 2):
        ours, other = pair()
        other.sock.setblocking(False)
        theirs.append(other)
        local = ClientConnection(f"client {number}", ours, None, -1, number=number)
        pool.supervisor._control_server.local.append(local)
    bells = HeldBells.of_local_client()
    pool.supervisor._control_server.local[0].bells = bells
    attached, asks = pool.supervisor._control_server.local
    assert (attached.attached, asks.attached) == (True, False)
    pool.supervisor._local_clients.drop_attached()
    with pytest.raises(Closed):
        theirs[0].receive_packet()
    with pytest.raises(BlockingIOError):
        theirs[1].receive_packet()
    for other in theirs:
        other.close()
