"""The life of a pool, turn by turn: loading, ready, drained, stopped. Its children are doubles."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.channel import Closed, pair
from batchpool.control.messages import FrontendServing
from batchpool.control.process_messages import (
    BatcherRunning,
    DrainBatcher,
    Drained,
    WorkerReady,
)
from batchpool.core.errors import NotReady
from batchpool.core.layout.states import PoolState
from batchpool.process.bootstrap import EXIT_GAVE_UP
from batchpool.supervisor import supervisor as module
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.host.socket_activation import ActivatedSockets
from batchpool.supervisor.reload.controller import ReloadController
from batchpool.supervisor.resources import resources
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import PoolResources
from batchpool.supervisor.supervisor import Supervisor
from tests.unit.supervisor.fleet.fleet_scene import S, StartedChildren
from tests.unit.supervisor.plan.test_diff import plan

FIRST = 2  # the number of a pool's first drain; the next one has the next
Step = Iterator[list[tuple[str, bool]]]


class Pool:
    """A pool of one model, one worker and one front end. Each turn of its loop ends with one step
    of the test, which yields the signals that have come."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.now_ns = 1000 * S
        self.closed = self._played = False
        self.last: list[tuple[str, bool]] = []  # signals of the last turn
        self.ends: Callable[[Pool], Step] = end_of_worker  # turns after it
        patch.setattr(module.time, "monotonic_ns", lambda: self.now_ns)
        patch.setattr(resources, "remove_leftovers", list)
        self.children = StartedChildren(patch)
        self._turns: Step = iter(())
        self._awake = os.eventfd(1)  # readable: no turn waits
        signals = SimpleNamespace(
            fileno=lambda: self._awake, clear=lambda: None, take=lambda: next(self._turns)
        )
        self.words: list[dict[str, Any]] = []
        notifier = cast(Any, Notes(self.words))
        server = {"frontends": 1, "drain_s": 4.0, "stall_timeout_s": 0.0}
        os.chmod(folder, 0o700)
        made = plan("a", server=server, socket=str(folder / "s"))
        activated = ActivatedSockets((socket.create_server(("127.0.0.1", 0)),))
        self.supervisor = Supervisor(made, notifier, activated, ["serve"], cast(Any, signals))

    def run(self, turns: Callable[[Pool], Step]) -> int:
        """Run the pool to its end; returns its exit status."""
        self._turns = self._to_its_end(turns(self))
        status = self.supervisor.run()
        assert self._played, "it ended too early"
        return status

    def _to_its_end(self, turns: Step) -> Step:
        yield from turns
        self._played = True
        yield self.last
        yield from self.ends(self)
        raise AssertionError("the pool has not ended")

    @property
    def fleet(self) -> ProcessFleet:
        return self.supervisor._process_fleet

    @property
    def resources(self) -> PoolResources:
        return self.supervisor._resources

    @property
    def reloads(self) -> ReloadController:
        return self.supervisor._reload_controller

    @property
    def state(self) -> PoolState:
        return PoolState(self.resources.state_page.state.get())

    @property
    def worker(self) -> Child | None:
        return self.fleet.workers.worker_slots[0].child

    @property
    def frontend(self) -> Child | None:
        return self.fleet.frontends.children[0]

    def serve(self) -> Step:
        """Let every child serve."""
        self.children.say(self.fleet.batcher.child, BatcherRunning())
        self.children.say(self.frontend, FrontendServing())
        segment = self.fleet.workers.worker_slots[0].worker_segment
        assert segment is not None
        segment.ready.set(1)
        self.children.say(self.worker, WorkerReady())
        yield []
        yield []
        self.children.told(self.fleet.batcher.child)

    def end_worker(self, status: int = 0) -> None:
        assert self.worker is not None
        cast(Any, self.worker.process).returncode = status

    def end_frontend(self, status: int = 0) -> None:
        assert self.frontend is not None
        cast(Any, self.frontend.process).returncode = status

    def drained(self, number: int) -> None:
        self.children.say(self.fleet.batcher.child, Drained(number, True))

    def add_lane(self, rows: int) -> LaneEntry:
        """A lane in which so many slots are claimed."""
        frontend = next(iter(self.supervisor._child_events.frontends.values()))
        frontend.bells = HeldBells.of_frontend()
        entry = self.fleet.open_lane(frontend, self.fleet.entries[0], handed=True)
        self.claim(entry, rows)
        return entry

    def claim(self, entry: LaneEntry, rows: int) -> None:
        os.pwrite(entry.fd, rows.to_bytes(8, "little"), entry.layout.words["claimed"])

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for child in (*self.fleet.everybody(), *self.fleet._ended):
            process = cast(Any, child.process)
            process.returncode, process.wait = -9, lambda timeout: -9
        self.supervisor.close()
        self.children.close()
        os.close(self._awake)


def end_of_worker(pool: Pool) -> Step:
    """The worker ends when it is told to."""
    pool.end_worker()
    yield []


class Notes:
    """A notifier that keeps what it is told."""

    watchdog_ns = 0

    def __init__(self, words: list[dict[str, Any]]) -> None:
        self._words = words

    def notify(self, **words: Any) -> None:
        self._words.append(words)

    def flush(self) -> None:
        pass


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(monkeypatch, tmp_path)
    yield pool
    pool.close()


def stop(pool: Pool) -> Step:
    """End a pool that serves, or drains already."""
    yield [("SIGTERM", False)]
    pool.end_frontend()
    number = pool.children.told(pool.fleet.batcher.child)[-1].drain
    pool.drained(number)
    yield []
    yield []
    pool.now_ns += S
    yield []
    pool.drained(number + 1)
    yield []


def test_a_pool_is_ready_when_everybody_serves_and_ends_when_every_row_is_answered(
    pool: Pool,
) -> None:
    def turns(pool: Pool) -> Step:
        assert (pool.state, pool.fleet.was_ready) == (PoolState.STARTING, False)
        yield from pool.serve()
        assert (pool.state, pool.fleet.was_ready) == (PoolState.READY, True)
        assert [words for words in pool.words if "READY" in words]
        [listener] = pool.resources.listeners[0]
        yield [("SIGTERM", False)]
        assert pool.state is PoolState.DRAINING
        assert pool.children.told(pool.fleet.batcher.child) == [DrainBatcher(FIRST)]
        assert cast(Any, pool.frontend).process.signals == [15]
        assert listener.fileno() == -1, "no connection comes in any more"
        assert "STOPPING" in pool.words[-1]
        pool.drained(FIRST)
        yield []
        yield []
        pool.now_ns += S
        yield []
        yield []
        assert pool.frontend is not None, "it has yet to write its answers"
        assert pool.children.told(pool.fleet.batcher.child) == []
        pool.end_frontend()
        yield []
        yield []
        pool.now_ns += S // 10
        yield []
        assert pool.children.told(pool.fleet.batcher.child) == [DrainBatcher(FIRST + 1, last=True)]
        pool.drained(FIRST)
        yield []
        yield []
        pool.drained(FIRST + 1)
        yield []

    assert pool.run(turns) == 0


@pytest.mark.parametrize(("rows", "status"), [(0, 0), (3, 1)])
def test_the_time_to_drain_ends_it_too(pool: Pool, rows: int, status: int) -> None:
    def turns(pool: Pool) -> Step:
        yield from pool.serve()
        pool.add_lane(rows)
        yield [("SIGTERM", False)]
        pool.now_ns += 4 * S - 1
        yield []
        yield []
        pool.now_ns += 1

    assert pool.run(turns) == status


def test_a_second_signal_ends_it_at_once(pool: Pool) -> None:
    def turns(pool: Pool) -> Step:
        yield from pool.serve()
        pool.add_lane(3)
        yield [("SIGTERM", False)]
        yield []
        pool.last = [("SIGINT", False)]

    assert pool.run(turns) == 1


def test_answered_rows_that_nobody_fetches_are_no_failure(pool: Pool) -> None:
    def turns(pool: Pool) -> Step:
        yield from pool.serve()
        entry = pool.add_lane(3)
        yield [("SIGTERM", False)]
        pool.end_frontend()
        yield []
        entry.closing = False  # as that of a local client, which does not fetch its answers
        pool.drained(FIRST)
        yield []
        yield []
        pool.now_ns += S
        yield []
        pool.drained(FIRST + 1)
        yield []

    assert pool.run(turns) == 0


def test_requests_that_a_front_end_gave_up_are_a_failure(pool: Pool) -> None:
    def turns(pool: Pool) -> Step:
        yield from pool.serve()
        yield [("SIGTERM", False)]
        pool.end_frontend(EXIT_GAVE_UP)

    assert pool.run(turns) == 1


def test_a_pool_that_an_operator_drains_serves_again_when_he_says_so(pool: Pool) -> None:
    supervisor = pool.supervisor

    def turns(pool: Pool) -> Step:
        with pytest.raises(NotReady, match="the pool is loading"):
            supervisor.drain(None)
        yield from pool.serve()
        assert supervisor.drain(None) == (False, False, 0)
        entry = pool.add_lane(2)
        pool.children.told(pool.fleet.batcher.child)
        assert supervisor.drain(True) == (True, False, 2)
        assert supervisor.drain(True) == (True, False, 2)
        assert (pool.state, pool.children.told(pool.fleet.batcher.child)) == (
            PoolState.DRAINING, [DrainBatcher(FIRST)],
        )  # fmt: skip
        assert supervisor._status()["state"] == "draining"
        pool.claim(entry, 0)
        pool.drained(FIRST)
        yield []
        yield []
        assert supervisor.drain(None) == (True, False, 0)
        pool.now_ns += S
        assert supervisor.drain(None) == (True, True, 0)
        assert supervisor._status()["state"] == "drained"
        assert supervisor.drain(False) == (False, False, 0)
        assert (pool.state, pool.children.told(pool.fleet.batcher.child)) == (
            PoolState.READY, [DrainBatcher(0)],
        )  # fmt: skip
        assert supervisor.drain(False) == (False, False, 0)
        assert supervisor.drain(True) == (True, False, 0)
        assert pool.children.told(pool.fleet.batcher.child) == [DrainBatcher(FIRST + 1)]
        yield from stop(pool)

    assert pool.run(turns) == 0


def test_a_hangup_asks_for_a_reload(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(pool.reloads, "request", lambda on_done=None: asked.append("reload"))
    monkeypatch.setattr(pool.reloads, "tick", lambda: asked.append("tick"))

    def turns(pool: Pool) -> Step:
        yield from pool.serve()
        asked.clear()
        yield [("SIGHUP", True)]
        yield []
        assert asked == ["reload", "tick", "tick"]
        assert not pool.fleet.stopping
        yield from stop(pool)

    assert pool.run(turns) == 0


def test_a_pool_that_stops_ends_its_reload(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(pool.reloads, "stop", lambda: stopped.append(pool.fleet.stopping))

    def turns(pool: Pool) -> Step:
        yield from pool.serve()
        assert stopped == []
        yield from stop(pool)
        assert stopped == [True]

    assert pool.run(turns) == 0


def test_signals_come_before_what_else_a_turn_brings(pool: Pool) -> None:
    """A signal to the whole process group ends children too: they are not replaced then."""
    event_fd, seen = os.eventfd(1), []

    def turns(pool: Pool) -> Step:
        yield from pool.serve()
        pool.supervisor._loop.add(event_fd, lambda: seen.append(pool.fleet.stopping))
        yield []
        yield []
        yield from stop(pool)
        assert seen[0] is False
        assert seen[1] is True

    assert pool.run(turns) == 0
    os.close(event_fd)


def test_what_the_reload_says_is_in_the_status(pool: Pool) -> None:
    controller = cast(Any, pool.reloads)
    status = pool.supervisor._status()
    assert (status["reload"], status["last_reload"]) == (None, None)
    controller.last, controller.state = "failed: x", lambda: "1 of 2 new workers serve"
    status = pool.supervisor._status()
    assert (status["reload"], status["last_reload"]) == ("1 of 2 new workers serve", "failed: x")


def test_a_closed_pool_says_stopped_and_leaves_no_socket(pool: Pool) -> None:
    path = Path(pool.resources.plan.socket)
    page = pool.resources.state_page
    assert (page.state.get() == PoolState.STOPPED, path.exists()) == (False, True)
    ours, theirs = pair()
    theirs.sock.setblocking(False)
    local = ClientConnection("client 1", ours, None, -1, number=1)
    pool.supervisor._control_server.local.append(local)
    pool.close()
    with pytest.raises(Closed):
        theirs.receive_packet()
    theirs.close()
    assert (pool.state, path.exists()) == (PoolState.STOPPED, False)
