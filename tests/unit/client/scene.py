"""A client's sessions whose pool is the test: real bells and lanes, and a clock that the test owns.

Neither the threads of a bp.Client nor the loop of a bp.AsyncClient wait for time: a wait in which
nothing rings ends at once, and its time has passed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from batchpool.client import reaper, sync_driver
from batchpool.client.call import Call
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.session import Session
from batchpool.core.layout.states import PoolState
from batchpool.core.tensors.spec import ModelSpec
from batchpool.shm.doorbell import Waiter
from tests.unit.client.lane_clients import NOW, Pool, rows_of
from tests.unit.frontend.pool_double import SessionDouble
from tests.unit.inprocess.clock import Clock
from tests.unit.lanes import new_lane
from tests.unit.specs import AFFINE

WAIT_S = 60  # ends a hang, decides nothing
SLOTS = 10  # of which nine may be claimed


def is_rung(bell: Any) -> bool:
    """True if a bell has been rung and not been cleared since."""
    return bool(Waiter(bell.fd).wait_ms(0))


class Waits:
    """The waits on the bells, of all threads of a client.

    steps: what happens in the next waits, one each, while nobody has the lock. holds: a wait in
    which nothing rings lasts until something does; else its time passes at once. until_ns: when
    each was to end at the latest; begun: the same, for another thread to take. unheard: waits
    that held and heard nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.steps: deque[Callable[[], Any]] = deque()
        self.holds = False
        self.until_ns: list[int] = []
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.unheard = 0

    def waiter(self, *fds: int) -> SteppedWaiter:
        return SteppedWaiter(self, fds)

    def pass_until(self, wake_at_ns: int) -> None:
        self.until_ns.append(wake_at_ns)
        assert len(self.until_ns) < 100, "it waits for ever"
        self.begun.put(wake_at_ns)
        if self.steps:
            self.steps.popleft()()


class SteppedWaiter:
    """Takes the place of a Waiter on these descriptors."""

    def __init__(self, waits: Waits, fds: tuple[int, ...]) -> None:
        self._waits = waits
        self._waiter = Waiter(*fds)

    def wait_until(self, wake_at_ns: int) -> list[int]:
        waits = self._waits
        waits.pass_until(wake_at_ns)
        ready = self._waiter.wait_ms(WAIT_S * 1000 if waits.holds else 0)
        if not ready and waits.holds:
            waits.unheard += 1
        elif not ready:
            waits.clock.now_ns = max(waits.clock.now_ns, wake_at_ns)
        return ready


class CountedCondition(threading.Condition):
    """Counts the words that are given; who waits for one takes the next step instead."""

    def __init__(self, lock: Any, waits: Waits) -> None:
        super().__init__(lock)
        self.words = 0
        self._waits = waits

    def notify_all(self) -> None:
        self.words += 1
        super().notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        stepped = bool(self._waits.steps)
        assert stepped or timeout is not None, "it waits for ever"
        wake_at_ns = self._waits.clock.now_ns + round((timeout or 0.0) * 1e9)
        self._waits.pass_until(wake_at_ns)
        if not stepped:
            self._waits.clock.now_ns = wake_at_ns
        return stepped


class Scene:
    """The sessions of one client, the last of which is the live one, with a lane of the model m.

    rings: how often the batcher was rung; at_ring: what it does then. connected: the arguments of
    each connection.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spec: ModelSpec = AFFINE) -> None:
        self.spec = spec
        self.clock = Clock()
        self.clock.now_ns = NOW
        self.waits = Waits(self.clock)
        self.rings = 0
        self.at_ring: Callable[[], Any] = lambda: None
        self.connected: list[tuple[str, float, bool]] = []
        self.sessions: list[SessionDouble] = []
        self.lane_clients: list[LaneClient] = []
        self.pools: list[Pool] = []
        monkeypatch.setattr(time, "monotonic_ns", self.clock)
        monkeypatch.setattr(sync_driver, "monotonic_ns", self.clock)
        monkeypatch.setattr(reaper, "Waiter", self.waits.waiter)
        monkeypatch.setattr(Session, "connect", self.connect)

    def connect(
        self, path: str = "", timeout_s: float = 10.0, *, pinned: bool = False
    ) -> SessionDouble:
        self.connected.append((path, timeout_s, pinned))
        session = SessionDouble(1, self._ring, {})
        lane_client = LaneClient(
            new_lane(self.spec, SLOTS), moved=session.lane_set.note_move, serial=7
        )
        session.lane_set["m"] = lane_client
        session.models["m"] = ModelFacts(0, self.spec, 0.9, 30.0, 4)
        session.theirs.sock.setblocking(False)
        self.sessions.append(session)
        self.lane_clients.append(lane_client)
        self.pools.append(Pool(lane_client))
        return session

    def _ring(self) -> None:
        self.rings += 1
        self.at_ring()

    @property
    def session(self) -> SessionDouble:
        return self.sessions[-1]

    @property
    def pool(self) -> Pool:
        return self.pools[-1]

    @property
    def lane_client(self) -> LaneClient:
        return self.lane_clients[-1]

    def call(self, n: int = 1, **options: Any) -> Call:
        """A checked call of n rows."""
        call = Call({"x": rows_of(n).tensors["x"]}, **{"timeout_s": 2.0, **options})
        call.check(self.lane_client, self.session.facts("m"))
        return call

    def answer(self) -> None:
        """All rows under way are done, and the client's bell is rung."""
        self.pool.finish_all()
        self.session.batchers_end.ring()

    def answer_unheard(self) -> list[PendingRequest]:
        """All rows under way are done and taken, as by another thread."""
        self.pool.finish_all()
        return self.lane_client.reap(self.clock())

    def stop(self, *, orderly: bool = False) -> None:
        """The pool goes away. orderly: it has ended its processes itself."""
        if orderly:
            self.session.state_page.state.set(int(PoolState.STOPPED))
        self.session.theirs.close()

    def close(self) -> None:
        for session in self.sessions:
            session.close()
