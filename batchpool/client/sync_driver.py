"""ThreadDriver: the steps of bp.Client's calls, for any number of threads under one lock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Any

from batchpool.client.call import Call
from batchpool.client.futures import RowsFuture, failures
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.process_id import this_process
from batchpool.client.reaper import Reaper
from batchpool.client.served_model import ServedModel, served_models, state_of
from batchpool.client.session import Session
from batchpool.client.thread_sequence import ThreadSequence
from batchpool.core.errors import DeadlineExceeded, PoolError, PoolStopped
from batchpool.core.tensors.rows import Rows


# methods: each step of a call and of a map is one, under the one lock of the client
class ThreadDriver:
    """Connects, opens lanes, submits and takes results; its async steps block and never suspend.

    socket: the pool's unix socket. timeout_s, pinned: as of bp.Client. reaper: the lock, the live
    session, and the waits. A session that has ended is replaced at the next call.
    """

    def __init__(self, socket: str, timeout_s: float, *, pinned: bool) -> None:
        self.socket = socket
        self.reaper = Reaper()
        self._lock = self.reaper.lock
        self._timeout_s, self._pinned = timeout_s, pinned
        self._pid = this_process()
        with self._lock:
            self._connect()

    # -- session ------------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """True in the process that opened the client; after a fork the session is the parent's."""
        return this_process() == self._pid

    def check_process(self) -> None:
        """Raise in a forked child. It must not ask for the lock, which may be held for ever."""
        if this_process() != self._pid:
            raise PoolStopped(
                f"this client belongs to process {self._pid}; after a fork the child"
                " must open its own bp.Client"
            )

    def _usable(self) -> Session:
        """The live session, connected anew where the pool went away. Needs the lock."""
        if self.reaper.closed:
            raise PoolStopped("this client is closed")
        if self.reaper.torn:
            self.reaper.mend()
        if self.reaper.session is None:
            self._connect()
        assert self.reaper.session is not None
        return self.reaper.session

    def _connect(self) -> None:
        session = Session.connect(self.socket, self._timeout_s, pinned=self._pinned)
        self.reaper.begin(session)

    @property
    def state(self) -> str:
        """Connected, closed, or neither because the pool went away."""
        return state_of(self.reaper.closed, self.reaper.session)

    def models(self) -> dict[str, ServedModel]:
        """The pool's models by name."""
        self.check_process()
        with self._lock:
            session = self._usable()
            session.refresh(self._timeout_s)
            return served_models(session.models)

    def facts(self, model: str) -> ModelFacts:
        session = self.reaper.session
        if session is None:
            raise PoolStopped(f"the pool at {self.socket} has stopped")
        return session.facts(model)

    async def lane_client(self, model: str) -> LaneClient:
        return self.open_lane_client(model)

    def open_lane_client(self, model: str) -> LaneClient:
        """The lane client of a model; without the lock when it is open already.

        With rows under way a reaper notices that the pool went away; without, look here.
        """
        self.check_process()
        while self.reaper.forsaken:
            self.drop(*self.reaper.forsaken.popleft())
        session = self.reaper.session
        if session is not None and not self.reaper.closed and not self.reaper.torn:
            lane_client = session.lane_set.get(model)
            if (
                lane_client is not None
                and not lane_client.sees_move()
                and (lane_client.has_rows or not session.is_over())
            ):
                return lane_client
        with self._lock:
            return self._open(model)

    def _open(self, model: str) -> LaneClient:
        session = self._usable()
        self.reaper.torn = True
        try:
            lane_client = self._open_in(session, model)
        except PoolError:
            self.reaper.torn = False
            raise
        self.reaper.torn = False
        return lane_client

    def _open_in(self, session: Session, model: str) -> LaneClient:
        if session.is_over():
            self.reaper.end(session)
            session = self._usable()
        lane_client = session.lane_set.get(model)
        if lane_client is not None and lane_client.sees_move():
            session.let_go()
        return session.open_lane_client(model, self._timeout_s)

    def leave_moved(self) -> None:
        with self._lock:
            if self.reaper.session is not None:
                self.reaper.session.let_go()

    def close(self) -> None:
        """End the session; futures under way fail with PoolStopped."""
        reaper = self.reaper
        with self._lock:
            reaper.closed = True
            session = reaper.session
            if session is None:
                return
            lost = reaper.lose(session)
            thread = reaper.thread()
            session.self_bell.ring()  # its thread wakes, and finds the session closed
            closed = PoolStopped("this client was closed with requests under way")
            reaper.deliver(failures(lost, lambda _: closed))
        if thread is not None:
            thread.join()
        with self._lock:
            reaper.changed.wait_for(lambda: not reaper.busy)
            session.close()

    # -- requests -----------------------------------------------------------------------

    async def submit(
        self,
        lane_client: LaneClient,
        window: Rows,
        call: Call,
        under_way: deque[PendingRequest],
    ) -> bool:
        return self._claim(lane_client, window, call, under_way.append)

    def _claim(
        self,
        lane_client: LaneClient,
        window: Rows,
        call: Call,
        claimed: Callable[[PendingRequest], None],
    ) -> bool:
        """As `submit`. claimed: takes the request before the batcher may have it."""
        with self._lock:
            session = self._usable()
            if lane_client not in session.lane_set.driven:
                raise self.reaper.why_not(lane_client, session)
            if lane_client.lent.any_ended:
                _take_back_views(self.reaper, lane_client)
            now_ns = monotonic_ns()
            if call.wait_for_room and not lane_client.has_room(window, now_ns, call.priority):
                lane_client.check_gate(now_ns)
                lane_client.lent.check_room(lane_client, window.n)
                return False
            self.reaper.torn = True
            try:
                pending = lane_client.submit(
                    window, call.start_ns, call.deadline_ns, priority=call.priority
                )
            except PoolError:
                self.reaper.torn = False
                raise
            claimed(pending)
            lane_client.flush()
            session.ring()
            self.reaper.torn = False
        return True

    async def start_sequence(self, lane_client: LaneClient, call: Call) -> ThreadSequence | None:
        opened: list[ThreadSequence] = []

        def follow(pending: PendingRequest) -> None:
            opened.append(ThreadSequence(self.reaper, lane_client, pending, self.drop))

        return opened[0] if self._claim(lane_client, call.rows, call, follow) else None

    def submit_future(self, lane_client: LaneClient, call: Call) -> RowsFuture:
        """Submit all rows; Overloaded when the lane is full. A thread resolves the future."""
        future = RowsFuture(self._take_back, lane_client, self.check_process)
        reaper, lent = self.reaper, lane_client.lent
        with self._lock:
            session = reaper.session
            if session is None or reaper.torn or reaper.closed:
                session = self._usable()
            if lane_client not in session.lane_set.driven:
                raise reaper.why_not(lane_client, session)
            if lent.n:
                if lent.any_ended:
                    _take_back_views(reaper, lane_client)
                if not lane_client.has_room(call.rows, call.start_ns, call.priority):
                    lent.check_room(lane_client, call.rows.n)
            reaper.torn = True
            try:
                future.pending = lane_client.submit(
                    call.rows, call.start_ns, call.deadline_ns, priority=call.priority,
                    tag=(future, call),
                )  # fmt: skip
            except PoolError:
                reaper.torn = False
                raise
            lane_client.flush()
            session.ring()
            reaper.expect(session, call)
            reaper.torn = False
        return future

    async def result(
        self, lane_client: LaneClient, under_way: deque[PendingRequest], call: Call
    ) -> dict[str, Any]:
        pending = under_way[0]
        with self._lock:
            self.reaper.wait(lane_client, lambda: pending.remaining == 0 or pending.abandoned,
                             pending.deadline_ns)  # fmt: skip
            if pending.remaining == 0 and not pending.abandoned:
                self.reaper.torn = True
                under_way.popleft()
                try:
                    found = call.take(lane_client, pending)
                except PoolError:
                    self.reaper.torn = False
                    self.reaper.made_room()
                    raise
                self.reaper.torn = False
                self.reaper.made_room()
                return found
            expired = monotonic_ns() >= pending.deadline_ns
        if expired:
            raise DeadlineExceeded(call.late_text(lane_client.spec.name))
        ran = "may or may not have run" if pending.may_have_run else "did not run"
        raise PoolStopped(
            f"the session with the pool at {self.socket} has ended; the request {ran}"
        )

    async def wait_for_room(self, lane_client: LaneClient, window: Rows, call: Call) -> None:
        with self._lock:
            self.reaper.wait_for_room(lane_client, window, call)
        if monotonic_ns() >= call.deadline_ns:
            raise DeadlineExceeded(
                f"no room for {window.n} rows of {lane_client.spec.name!r} in time"
            )

    # -- of a map -----------------------------------------------------------------------

    @property
    def connects_again(self) -> bool:
        """False once the client is closed, and in a forked child."""
        return this_process() == self._pid and not self.reaper.closed

    async def look(self) -> None:
        with self._lock:
            self.reaper.look()

    async def any_result(self, lane_client: LaneClient, requests: list[PendingRequest]) -> None:
        def done() -> bool:
            return any(pending.remaining == 0 or pending.abandoned for pending in requests)

        with self._lock:
            self.reaper.wait(lane_client, done, min(p.deadline_ns for p in requests))

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def drop(self, lane_client: LaneClient, requests: Iterable[PendingRequest]) -> None:
        if this_process() != self._pid:
            return  # they are the parent's, and the lock may be held for ever
        if self._lock._is_owned():
            # An iterator that garbage collection ends, in the middle of another call.
            self.reaper.forsaken.append((lane_client, list(requests)))
            return
        with self._lock:
            if self.reaper.torn:
                self.reaper.mend()
            session = self.reaper.session
            if session is None or not self.reaper.drives(lane_client):
                return
            self.reaper.torn = True
            for pending in requests:
                if pending.remaining == 0 and not pending.abandoned:
                    lane_client.release(pending)
                else:
                    lane_client.abandon(pending)
            session.ring()
            self.reaper.torn = False
            self.reaper.made_room()

    def _take_back(self, future: RowsFuture) -> bool:
        """Cancel the rows of a cancelled future; True the first time."""
        if this_process() != self._pid:
            return False
        with self._lock:
            first, future.taken_back = not future.taken_back, True
            session, pending = self.reaper.session, future.pending
            lane_client = future.lane_client
            driven = session is not None and self.reaper.drives(lane_client)
            if first and session and driven and pending and pending.remaining:
                lane_client.abandon(pending)
                session.ring()
        return first


def _take_back_views(reaper: Reaper, lane_client: LaneClient) -> None:
    """Free the slots of views that are gone. Needs the lock."""
    reaper.torn = True
    lane_client.lent.take_back(lane_client)
    reaper.torn = False
