"""bp.Client: the pool for ordinary threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from batchpool.client.call import Call, default_socket
from batchpool.client.futures import Outcome, RowsFuture, failures, outcomes_of, resolve
from batchpool.client.port import Pending, Port
from batchpool.client.process import this_process
from batchpool.client.session import Session
from batchpool.client.windows import cut, join, window_rows
from batchpool.core.errors import DeadlineExceeded, PoolStopped
from batchpool.core.tensors import Array
from batchpool.shm.doorbell import Waiter

_LOOK_NS = 500_000_000  # every wait has an end: look at the counters at least this often


class Client:
    """A connection to a pool on this machine, through shared memory; any thread may use it.

    socket: the pool's unix socket; default as `batchpool serve` chooses it for port 8000.
    timeout_s: for attaching. pinned: GPUs copy rows of 16 KiB or more straight from and to this
    client's memory, which takes about 0.2 ms a MiB to prepare at the first use of a model.
    When the pool stops, all under way fails with PoolStopped; the next call connects anew.
    """

    def __init__(self, socket: str | None = None, *, timeout_s: float = 10.0, pinned: bool = False):
        self.socket = default_socket() if socket is None else socket
        self._timeout_s, self._pinned = timeout_s, pinned
        self._turn = threading.Condition()
        self._reaping = self._closed = False
        self._wanting_room = 0
        self._look_at_ns = 0  # when the reaper looks at the deadlines next
        self._reaper: threading.Thread | None = None
        self._pid = this_process()
        self._session: Session | None = None
        with self._turn:
            self._connect()

    # -- public -------------------------------------------------------------------------

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        **tensors: Any,
    ) -> dict[str, Array]:
        """Run n rows, any n, and return {output: array [n, *row shape]}.

        Tensors come as keywords (`x=rows`) or in `inputs`; each is [n, *row shape]. More rows
        than the lane holds go in windows that fit it; a full lane makes the call wait.
        Raises DeadlineExceeded after timeout_s (default: the model's request_timeout_s), and
        every other PoolError with its reason.
        """
        port = self._port_of(model)
        call = Call.of(port, self._facts(model), {**(inputs or {}), **tensors}, parameters,
                       outputs, timeout_s, priority)  # fmt: skip
        size = window_rows(port.map.bound, self._facts(model).max_batch)
        under_way: deque[Pending] = deque()
        results: list[dict[str, Array]] = []
        try:
            for window in cut(call.rows, size if call.rows.n > port.map.bound else call.rows.n):
                while not self._try_submit(port, call, window, under_way):
                    if under_way:
                        results.append(self._result(port, under_way, call))
                    else:
                        self._wait_for_room(port, window.n, call)
            while under_way:
                results.append(self._result(port, under_way, call))
        except BaseException:
            self._give_up(port, under_way)
            raise
        return join(port.spec, results)

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        **tensors: Any,
    ) -> Future[dict[str, Array]]:
        """The same without waiting: a Future of the outputs. Overloaded when the lane is full.

        The rows are copied before this returns. At most the lane's bound of rows at once.
        """
        port = self._port_of(model)
        call = Call.of(port, self._facts(model), {**(inputs or {}), **tensors}, parameters,
                       outputs, timeout_s, priority)  # fmt: skip
        future = RowsFuture(self._take_back, port)
        with self._turn:
            session = self._usable()
            if session.ports.get(port.spec.name) is not port:
                raise session.stopped()
            pending = port.submit(
                call.rows, call.start_ns, call.deadline_ns, priority=priority, tag=(future, call)
            )
            future.pending = pending
            port.flush()
            session.ring()
            if self._reaper is None:
                self._start_reaper()
            elif call.deadline_ns < self._look_at_ns:
                session.bell.ring()
                self._turn.notify_all()
        return future

    def models(self) -> list[str]:
        """The names of the pool's models."""
        self._check_process()
        with self._turn:
            return list(self._usable().models)

    def close(self) -> None:
        """End the session. Futures under way fail with PoolStopped; results stay valid."""
        if this_process() != self._pid:
            return  # the session is the parent's
        with self._turn:
            self._closed = True
            session = self._session
            if session is None:
                return
            lost = self._lose(session)
            reaper = self._reaper
            session.bell.ring()  # whoever waits on it looks up and finds the session closed
            closed = PoolStopped("this client was closed with requests under way")
            self._deliver(failures(lost, closed))
        if reaper is not None and reaper is not threading.current_thread():
            reaper.join()
        with self._turn:
            self._turn.wait_for(lambda: not self._reaping)
            session.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- session ------------------------------------------------------------------------

    def _check_process(self) -> None:
        """Before the lock is asked for: a forked child may have it locked for ever."""
        if this_process() != self._pid:
            raise PoolStopped(
                f"this client belongs to process {self._pid}; after a fork the child"
                " must open its own bp.Client"
            )

    def _usable(self) -> Session:
        """The live session, connected anew if the pool went away. Call with the lock."""
        if self._closed:
            raise PoolStopped("this client is closed")
        if self._session is None:
            self._connect()
        assert self._session is not None
        return self._session

    def _connect(self) -> None:
        self._session = Session.connect(self.socket, self._timeout_s, pinned=self._pinned)
        self._waiter = Waiter(self._session.bell.fd, self._session.channel.fileno())

    def _port_of(self, model: str) -> Port:
        """The port to a model; without the lock when it is open already.

        With nothing under way nobody may have noticed that the pool went away, so look.
        """
        self._check_process()
        session = self._session
        if session is not None and not self._closed:
            port = session.ports.get(model)
            if port is not None and (port.map.claimed or not session.is_over()):
                return port
        with self._turn:
            return self._port(model)

    def _port(self, model: str) -> Port:
        session = self._usable()
        if session.is_over():
            lost = self._lose(session)
            if not self._reaping:  # else whoever waits on its bell closes it
                session.close()
            self._deliver(failures(lost, session.stopped()))
            session = self._usable()
        return session.open_port(model, self._timeout_s)

    def _facts(self, model: str) -> Any:
        session = self._session
        if session is None:
            raise PoolStopped(f"the pool at {self.socket} has stopped")
        return session.facts(model)

    def _lose(self, session: Session) -> list[Pending]:
        """The session is over: forget it; returns what was under way. Call with the lock."""
        lost = [pending for port in session.ports.values() for pending in port.fail_all()]
        if self._session is session:
            self._session = None
        self._turn.notify_all()
        return lost

    # -- waiting ------------------------------------------------------------------------

    def _try_submit(self, port: Port, call: Call, window: Any, under_way: deque[Pending]) -> bool:
        with self._turn:
            session = self._usable()
            if session.ports.get(port.spec.name) is not port:
                raise session.stopped()
            if not port.may_claim(window.n, call.priority):
                port.check_gate(time.monotonic_ns())
                return False
            pending = port.submit(window, call.start_ns, call.deadline_ns, priority=call.priority)
            port.flush()
            session.ring()
            under_way.append(pending)
            return True

    def _result(self, port: Port, under_way: deque[Pending], call: Call) -> dict[str, Array]:
        """Wait for the oldest request, reaping for everybody if nobody else does."""
        pending = under_way[0]
        with self._turn:
            self._wait(port, lambda: pending.remaining == 0 or pending.abandoned,
                       call.deadline_ns)  # fmt: skip
            if pending.remaining == 0 and not pending.abandoned:
                under_way.popleft()
                try:
                    return port.result(pending, call.outputs)
                finally:
                    self._made_room()
            expired = time.monotonic_ns() >= call.deadline_ns
        if expired:
            raise DeadlineExceeded(call.late_text(port.spec.name))
        raise PoolStopped(
            f"the pool at {self.socket} has stopped; the request may or may not have run"
        )

    def _wait_for_room(self, port: Port, n: int, call: Call) -> None:
        with self._turn:
            self._wanting_room += 1
            try:
                self._wait(port, lambda: port.may_claim(n, call.priority), call.deadline_ns)
            finally:
                self._wanting_room -= 1
        if time.monotonic_ns() >= call.deadline_ns:
            raise DeadlineExceeded(f"no room for {n} rows of {port.spec.name!r} in time")

    def _made_room(self) -> None:
        """Slots are free that no completion told of: wake whoever waits for some."""
        if self._wanting_room and self._session is not None:
            self._turn.notify_all()
            self._session.bell.ring()

    def _wait(self, port: Port, done: Any, deadline_ns: int) -> None:
        """Until `done()`, the deadline, or the end of the session. Call with the lock.

        One waiter polls the bell and reaps for all; the others wait for its word.
        """
        while not done():
            session = self._session
            if session is None or session.ports.get(port.spec.name) is not port:
                return
            now_ns = time.monotonic_ns()
            if now_ns >= deadline_ns:
                return
            until_ns = min(deadline_ns, now_ns + _LOOK_NS)
            if self._reaping:
                self._turn.wait((until_ns - now_ns) / 1e9)
            else:
                self._reap_once(session, until_ns)

    def _reap_once(self, session: Session, until_ns: int) -> None:
        """Wait on the bell without the lock, then reap with it. Call with the lock."""
        self._reaping = True
        waiter = self._waiter
        self._turn.release()
        try:
            ready = waiter.wait_until(until_ns)
        finally:
            self._turn.acquire()
            self._reaping = False
        if self._session is session:
            session.bell.clear()
            finished = self._reap(session)
            if session.channel.fileno() in ready and session.is_over():
                lost = self._lose(session)
                session.close()
                self._deliver(outcomes_of(finished) + failures(lost, session.stopped()))
            else:
                self._deliver(outcomes_of(finished))
        else:
            session.close()
        self._turn.notify_all()

    def _reap(self, session: Session) -> list[tuple[Port, Pending]]:
        now_ns = time.monotonic_ns()
        finished = []
        for port in session.ports.values():
            finished += [(port, pending) for pending in port.reap(now_ns)]
        return finished

    # -- futures ------------------------------------------------------------------------

    def _deliver(self, outcomes: list[Outcome]) -> None:
        """Resolve futures. Called with the lock, which is let go meanwhile, since a future's
        callbacks are the caller's code."""
        if not outcomes:
            return
        self._turn.release()
        try:
            for future, outcome in outcomes:
                resolve(future, outcome)
        finally:
            self._turn.acquire()

    def _start_reaper(self) -> None:
        self._reaper = threading.Thread(target=self._run_reaper, name="batchpool-reaper",
                                        daemon=True)  # fmt: skip
        self._reaper.start()

    def _run_reaper(self) -> None:
        """Resolves futures for as long as there is a session; `submit` starts it anew."""
        with self._turn:
            try:
                while not self._closed and self._session is not None:
                    self._reap_or_wait(self._session)
            finally:
                self._reaper = None
                self._look_at_ns = 0

    def _reap_or_wait(self, session: Session) -> None:
        now_ns = time.monotonic_ns()
        due_ns = min((p.next_deadline_ns() for p in session.ports.values()), default=2**63 - 1)
        self._look_at_ns = min(due_ns, now_ns + _LOOK_NS)
        if self._reaping:
            self._turn.wait(max(0, self._look_at_ns - now_ns) / 1e9)
        else:
            self._reap_once(session, self._look_at_ns)
        if self._session is session:
            self._expire(session)

    def _expire(self, session: Session) -> None:
        now_ns = time.monotonic_ns()
        late: list[Outcome] = []
        for port in session.ports.values():
            for pending in port.expire(now_ns):
                if pending.tag is not None:
                    future, call = pending.tag
                    late.append((future, DeadlineExceeded(call.late_text(port.spec.name))))
        if late:
            session.ring()
            self._deliver(late)

    def _take_back(self, future: RowsFuture) -> bool:
        """A future was cancelled; True the first time."""
        if this_process() != self._pid:
            return False
        with self._turn:
            first, future.taken_back = not future.taken_back, True
            session, port, pending = self._session, future.port, future.pending
            current = session is not None and session.ports.get(port.spec.name) is port
            if first and current and session and pending and pending.remaining:
                port.abandon(pending)
                session.ring()
        return first

    def _give_up(self, port: Port, under_way: deque[Pending]) -> None:
        """A call ends early: its rows are cancelled, those that are done make room."""
        with self._turn:
            session = self._session
            if session is None or session.ports.get(port.spec.name) is not port:
                return
            for pending in under_way:
                if pending.remaining == 0 and not pending.abandoned:
                    port.release(pending)
                else:
                    port.abandon(pending)
            session.ring()
            self._made_room()
