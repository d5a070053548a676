"""bp.Client: the pool for ordinary threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from types import TracebackType
from typing import Any

from batchpool.client.call import Call, default_socket
from batchpool.client.port import Pending, Port
from batchpool.client.session import Session
from batchpool.client.windows import cut, join, window_rows
from batchpool.core.errors import DeadlineExceeded, PoolError, PoolStopped
from batchpool.core.tensors import Array
from batchpool.shm.doorbell import Waiter

_LOOK_NS = 500_000_000  # every wait has an end: look at the counters at least this often


class RowsFuture(Future[dict[str, Array]]):
    """What `submit` returns. Cancelling it takes back rows that have not been dispatched."""

    def __init__(self, client: Client, port: Port) -> None:
        super().__init__()
        self._client = client
        self._port = port
        self.pending: Pending | None = None

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._client._abandon(self._port, self.pending)
        return cancelled


class Client:
    """A connection to a pool on this machine, through shared memory; any thread may use it.

    socket: the pool's unix socket; default as `batchpool serve` chooses it for port 8000.
    timeout_s: for attaching. When the pool stops, everything under way fails with
    PoolStopped, and the next call connects anew. After a fork the child must open its own.
    """

    def __init__(self, socket: str | None = None, *, timeout_s: float = 10.0) -> None:
        self.socket = default_socket() if socket is None else socket
        self._timeout_s = timeout_s
        self._turn = threading.Condition()
        self._reaping = False
        self._closed = False
        self._reaper: threading.Thread | None = None
        self._pid = os.getpid()
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
        with self._turn:
            port = self._port(model)
        call = Call.of(port, self._facts(model), {**(inputs or {}), **tensors}, parameters,
                       outputs, timeout_s, priority)  # fmt: skip
        size = window_rows(port.map.bound, self._facts(model).max_batch)
        under_way: deque[Pending] = deque()
        results: list[dict[str, Array]] = []
        try:
            for window in cut(call.rows, size if call.rows.n > port.map.bound else call.rows.n):
                while not self._try_submit(port, call, window, under_way):
                    if under_way:
                        results.append(self._result(port, under_way.popleft(), call))
                    else:
                        self._wait_for_room(port, window.n, call.deadline_ns)
            while under_way:
                results.append(self._result(port, under_way.popleft(), call))
        except BaseException:
            for pending in under_way:
                self._abandon(port, pending)
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
        with self._turn:
            port = self._port(model)
        call = Call.of(port, self._facts(model), {**(inputs or {}), **tensors}, parameters,
                       outputs, timeout_s, priority)  # fmt: skip
        future = RowsFuture(self, port)
        with self._turn:
            session = self._usable()
            pending = port.submit(
                call.rows, call.start_ns, call.deadline_ns, priority=priority, tag=(future, call)
            )
            future.pending = pending
            port.flush()
            session.ring()
            if self._reaper is None:
                self._start_reaper()
        return future

    def models(self) -> list[str]:
        """The names of the pool's models."""
        with self._turn:
            return list(self._usable().models)

    def close(self) -> None:
        """End the session. Futures under way fail with PoolStopped; results stay valid."""
        with self._turn:
            self._closed = True
            session = self._session
            if session is None or session.pid != os.getpid():
                return
            lost = self._lose(session)
            reaper = self._reaper
            session.bell.ring()  # whoever waits on it looks up and finds the session closed
        _fail(lost, PoolStopped("this client was closed with requests under way"))
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

    def _usable(self) -> Session:
        """The live session, connected anew if the pool went away. Call with the lock."""
        if self._closed:
            raise PoolStopped("this client is closed")
        if os.getpid() != self._pid:
            raise PoolStopped(
                f"this client belongs to process {self._pid}; after a fork the child"
                " must open its own bp.Client"
            )
        if self._session is None:
            self._connect()
        assert self._session is not None
        return self._session

    def _connect(self) -> None:
        self._session = Session.connect(self.socket, self._timeout_s)
        self._waiter = Waiter(self._session.bell.fd, self._session.channel.fileno())

    def _port(self, model: str) -> Port:
        session = self._usable()
        if session.ports.get(model) is None and session.is_over():
            _fail(self._lose(session), session.stopped())
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
            if not port.may_claim(window.n):
                port.check_gate()
                return False
            pending = port.submit(window, call.start_ns, call.deadline_ns, priority=call.priority)
            port.flush()
            session.ring()
            under_way.append(pending)
            return True

    def _result(self, port: Port, pending: Pending, call: Call) -> dict[str, Array]:
        """Wait for one request, reaping for everybody if nobody else does."""
        with self._turn:
            self._wait(port, lambda: pending.remaining == 0 or pending.abandoned,
                       call.deadline_ns)  # fmt: skip
            if pending.remaining == 0 and not pending.abandoned:
                return port.result(pending, call.outputs)
            expired = time.monotonic_ns() >= call.deadline_ns
            session = self._session
            if session is not None and session.ports.get(port.spec.name) is port:
                port.abandon(pending)
                session.ring()
        if expired:
            raise DeadlineExceeded(call.late_text(port.spec.name))
        raise PoolStopped(
            f"the pool at {self.socket} has stopped; the request may or may not have run"
        )

    def _wait_for_room(self, port: Port, n: int, deadline_ns: int) -> None:
        with self._turn:
            self._wait(port, lambda: port.may_claim(n), deadline_ns)
        if time.monotonic_ns() >= deadline_ns:
            raise DeadlineExceeded(f"no room for {n} rows of {port.spec.name!r} in time")

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
                self._settle(finished)
                _fail(lost, session.stopped())
                return
            self._settle(finished)
        self._turn.notify_all()

    def _reap(self, session: Session) -> list[tuple[Port, Pending]]:
        now_ns = time.monotonic_ns()
        finished = []
        for port in session.ports.values():
            finished += [(port, pending) for pending in port.reap(now_ns)]
        return finished

    # -- futures ------------------------------------------------------------------------

    def _settle(self, finished: list[tuple[Port, Pending]]) -> None:
        """Resolve the futures among finished requests. Called with the lock, which is let go
        meanwhile, since a future's callbacks are the caller's code."""
        outcomes: list[tuple[RowsFuture, dict[str, Array] | None, PoolError | None]] = []
        for port, pending in finished:
            if pending.tag is None:
                continue
            future, call = pending.tag
            try:
                outcomes.append((future, port.result(pending, call.outputs), None))
            except PoolError as exc:
                outcomes.append((future, None, exc))
        if not outcomes:
            return
        self._turn.release()
        try:
            for future, result, error in outcomes:
                _resolve(future, result, error)
        finally:
            self._turn.acquire()

    def _start_reaper(self) -> None:
        self._reaper = threading.Thread(target=self._run_reaper, name="batchpool-reaper",
                                        daemon=True)  # fmt: skip
        self._reaper.start()

    def _run_reaper(self) -> None:
        """Resolves futures for as long as there is a session; `submit` starts it anew."""
        with self._turn:
            while not self._closed and self._session is not None:
                session = self._session
                if self._reaping:
                    self._turn.wait(_LOOK_NS / 1e9)
                    continue
                ports = list(session.ports.values())
                due_ns = min((port.next_deadline_ns() for port in ports), default=2**63 - 1)
                self._reap_once(session, min(due_ns, time.monotonic_ns() + _LOOK_NS))
                if self._session is session:
                    self._expire(session)
            self._reaper = None

    def _expire(self, session: Session) -> None:
        late = []
        for port in session.ports.values():
            for pending in port.expire(time.monotonic_ns()):
                if pending.tag is not None:
                    late.append((port, pending))
        if late:
            session.ring()
            for port, pending in late:
                future, call = pending.tag
                _resolve(future, None, DeadlineExceeded(call.late_text(port.spec.name)))

    def _abandon(self, port: Port, pending: Pending | None) -> None:
        with self._turn:
            session = self._session
            if pending is None or session is None or session.pid != os.getpid():
                return
            if session.ports.get(port.spec.name) is port:
                if pending.remaining == 0:
                    return
                port.abandon(pending)
                session.ring()


def _resolve(future: RowsFuture, result: dict[str, Array] | None, error: PoolError | None) -> None:
    try:
        if error is not None:
            future.set_exception(error)
        else:
            assert result is not None
            future.set_result(result)
    except InvalidStateError:
        pass  # cancelled while its result was on the way


def _fail(lost: list[Pending], error: PoolError) -> None:
    for pending in lost:
        if pending.tag is not None:
            _resolve(pending.tag[0], None, error)
