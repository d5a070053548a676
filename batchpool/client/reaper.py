"""Choice of the one thread that takes completions, of all that wait in one client.

One waiter polls the bell, without the lock, and reaps for all; the others wait for its word.
Futures are resolved by a thread that starts with the first of them.

A signal handler, Ctrl-C's too, may raise in the main thread after any call that Python code makes
here, so that what follows is not done. A wait puts everything back. A change of the tables is
marked as `torn` while it lasts; whoever takes the lock next and finds the mark ends the session,
and the pool takes its slots back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from batchpool.client.call import Call
from batchpool.client.futures import Outcome, failures, outcomes_of, resolve
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.session import Session
from batchpool.core.errors import DeadlineExceeded, Moved, PoolError, PoolStopped
from batchpool.core.tensors.rows import Rows
from batchpool.shm.doorbell import Waiter

TORN = (
    "this client's session ended, because an exception of a signal handler interrupted a call in"
    " another thread; the request may or may not have run"
)
_LOOK_NS = 500_000_000  # every wait has an end: look at the counters at least this often


# methods: all that wants the one lock of a client, whose order matters
class Reaper:
    """The lock of a client, and all that is waited for. Every method but `join` wants the lock.

    session: the live one; None when the pool went away. closed: by the caller.
    """

    def __init__(self) -> None:
        # Taken by `with`, which no exception can part from its release, as it is written in C.
        self.lock: Any = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.torn = False
        # Left to be dropped by the next call: garbage collection ended a map amid another one.
        self.forsaken: deque[tuple[LaneClient, list[PendingRequest]]] = deque()
        self.retired: list[LaneClient] = []  # those of a session that was ended as torn
        self.session: Session | None = None
        self.closed = False
        self.busy = False  # somebody waits on the bell, and closes a session that is lost meanwhile
        self._wanting_room = 0
        self._look_at_ns = 0  # when the thread looks at the deadlines next
        self._thread: threading.Thread | None = None

    def begin(self, session: Session) -> None:
        self._waiter = Waiter(session.bell.fd, session.self_bell.fd, session.channel.fileno())
        self.session = session

    def lose(self, session: Session) -> list[PendingRequest]:
        """The session is over: forget it; returns what was under way."""
        lost = session.fail_all()
        if self.session is session:
            self.session = None
        self.changed.notify_all()
        return lost

    def mend(self) -> None:
        """After an exception struck in the middle of a change: end the session, since nobody knows
        which slots are whose. Calls under way in other threads fail; the next call connects anew.
        """
        session = self.session
        if session is not None:
            self.retired = list(session.lane_set.driven)
            lost = self.lose(session)
            self.deliver(failures(lost, lambda _: PoolStopped(TORN)))
            if self.busy:
                session.self_bell.ring()  # the thread that waits on it closes it
            else:
                session.close()
        self.torn = False

    def end(self, session: Session) -> None:
        """The pool has closed the session: what is finished is delivered still, the rest fails."""
        self.torn = True
        finished = self._reap(session)
        lost = self.lose(session)
        if not self.busy:  # else the thread that waits on its bell closes it
            session.close()
        outcomes = outcomes_of(finished) + failures(lost, session.error_of)
        self.torn = False
        self.deliver(outcomes)

    def drives(self, lane_client: LaneClient) -> bool:
        """True while completions of this lane client are taken."""
        return self.session is not None and lane_client in self.session.lane_set.driven

    def why_not(self, lane_client: LaneClient, session: Session) -> PoolError:
        """Why completions of this lane client are not taken any more."""
        if lane_client.has_moved or lane_client in self.retired:
            return Moved.replaced(lane_client.spec.name)
        return session.stopped()

    # -- waiting ------------------------------------------------------------------------

    def wait(self, lane_client: LaneClient, done: Callable[[], bool], deadline_ns: int) -> None:
        """Until `done()`, the deadline, or the end of the session."""
        while not done():
            if self.torn:
                self.mend()
            session = self.session
            if session is None or lane_client not in session.lane_set.driven:
                return
            now_ns = time.monotonic_ns()
            if now_ns >= deadline_ns:
                return
            until_ns = min(deadline_ns, now_ns + _LOOK_NS)
            if self.busy:
                self._follow((until_ns - now_ns) / 1e9)
            else:
                self._reap_once(session, until_ns)

    def look(self) -> None:
        """Take the completions that are there, unless another thread waits for them anyway."""
        if self.torn:
            self.mend()
        if self.session is not None and not self.busy:
            self._reap_once(self.session, time.monotonic_ns())

    def wait_for_room(self, lane_client: LaneClient, window: Rows, call: Call) -> None:
        """Until there is room, or another lane where there is."""

        def done() -> bool:
            now_ns = time.monotonic_ns()
            return lane_client.has_moved or lane_client.has_room(window, now_ns, call.priority)

        self._wanting_room += 1
        try:
            self.wait(lane_client, done, call.deadline_ns)
        finally:
            self._wanting_room -= 1
        if time.monotonic_ns() >= call.deadline_ns:
            lane_client.give_up_room(window)
            self.made_room()

    def made_room(self) -> None:
        """Slots are free that no completion told of: wake whoever waits for some, and let go of
        lanes that have moved."""
        session = self.session
        if session is None:
            return
        if session.lane_set.moving:
            session.let_go()
        if self._wanting_room:
            self.changed.notify_all()
            session.self_bell.ring()

    def _reap_once(self, session: Session, until_ns: int) -> None:
        """Wait on the bell without the lock, then reap with it."""
        waiter = self._waiter
        try:
            self.busy = True
            self.lock.release()
            ready = waiter.wait_until(until_ns)
        except BaseException:
            self.busy = False
            self._hold()
            if self.session is not session:
                session.close()
            self.changed.notify_all()  # another one waits on the bell
            raise
        self.busy = False
        try:
            self.lock.acquire()
        except BaseException:
            self._hold()
            self.changed.notify_all()
            raise
        if self.session is session:
            self.torn = True
            if session.bell.fd in ready:
                session.bell.clear()
            if session.self_bell.fd in ready:
                session.self_bell.clear()
            if session.channel.fileno() in ready and session.is_over():
                self.end(session)
            else:
                outcomes = outcomes_of(self._reap(session))
                self.torn = False
                self.deliver(outcomes)
        else:
            session.close()
        self.changed.notify_all()

    def _follow(self, timeout_s: float) -> None:
        """Wait for the word of the thread that waits on the bell."""
        try:
            self.changed.wait(timeout_s)
        except BaseException:
            self._hold()  # it struck between the release and the wait
            raise

    def _hold(self) -> None:
        """Take the lock back, unless it is held already."""
        if not self.lock._is_owned():
            self.lock.acquire()

    def _reap(self, session: Session) -> list[tuple[LaneClient, PendingRequest]]:
        now_ns = time.monotonic_ns()
        finished = []
        for lane_client in session.lane_set.driven:
            lane_client.lent.take_back(lane_client)
            finished += [(lane_client, pending) for pending in lane_client.reap(now_ns)]
        if session.lane_set.moving:
            session.let_go()
        return finished

    # -- futures ------------------------------------------------------------------------

    def deliver(self, outcomes: list[Outcome]) -> None:
        """Resolve futures. The lock is let go meanwhile, since a future's callbacks are the
        caller's code."""
        if not outcomes:
            return
        try:
            self.lock.release()
            for future, outcome in outcomes:
                resolve(future, outcome)
        except BaseException:
            self._hold()
            raise
        try:
            self.lock.acquire()
        except BaseException:
            self._hold()
            raise

    def expect(self, session: Session, call: Call) -> None:
        """A future was submitted."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="batchpool-reaper", daemon=True)
            self._thread.start()
        elif call.deadline_ns < self._look_at_ns:
            session.self_bell.ring()
            self.changed.notify_all()

    def thread(self) -> threading.Thread | None:
        """The one that resolves futures, if there is one and this is not it."""
        return None if self._thread is threading.current_thread() else self._thread

    def _run(self) -> None:
        """Resolves futures for as long as there is a session; `expect` starts it anew."""
        with self.changed:
            try:
                while not self.closed and self.session is not None:
                    self._reap_or_wait(self.session)
            finally:
                self._thread = None
                self._look_at_ns = 0

    def _reap_or_wait(self, session: Session) -> None:
        now_ns = time.monotonic_ns()
        due_ns = min((p.next_deadline_ns() for p in session.lane_set.driven), default=2**63 - 1)
        self._look_at_ns = min(due_ns, now_ns + _LOOK_NS)
        if self.busy:
            self._follow(max(0, self._look_at_ns - now_ns) / 1e9)
        else:
            self._reap_once(session, self._look_at_ns)
        if self.session is session:
            self._expire(session)

    def _expire(self, session: Session) -> None:
        now_ns = time.monotonic_ns()
        late: list[Outcome] = []
        for lane_client in session.lane_set.driven:
            for pending in lane_client.expire(now_ns):
                if pending.tag is not None:
                    future, call = pending.tag
                    late.append((future, DeadlineExceeded(call.late_text(lane_client.spec.name))))
        if late:
            session.ring()
            self.deliver(late)
