"""bp.Client: the pool for ordinary threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic_ns
from types import TracebackType
from typing import Any

from batchpool.client.call import Call, default_socket
from batchpool.client.chunks import cut, join, window_rows
from batchpool.client.futures import RowsFuture, failures
from batchpool.client.lane_client import LaneClient, PendingRequest
from batchpool.client.process_id import this_process
from batchpool.client.reaper import Reaper
from batchpool.client.session import Session
from batchpool.core.errors import DeadlineExceeded, Moved, PoolStopped
from batchpool.core.tensors.spec import Array, Rows


class Client:
    """A connection to a pool on this machine, through shared memory; any thread may use it.

    socket: the pool's unix socket; default as `batchpool serve` chooses it for port 8000.
    timeout_s: for attaching. pinned: GPUs copy rows of 16 KiB or more straight from and to this
    client's memory, which takes about 0.2 ms a MiB to prepare at the first use of a model.
    When the pool stops, all under way fails with PoolStopped; the next call connects anew.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        timeout_s: float = 10.0,
        pinned: bool = False,
    ):
        self.socket = default_socket() if socket is None else os.fspath(socket)
        self._timeout_s, self._pinned = timeout_s, pinned
        self._reaping = Reaper()
        self._turn = self._reaping.turn
        self._pid = this_process()
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
        than the lane holds go in windows that fit it; a full lane makes the call wait. Where a
        reload gives the model other tensors meanwhile, the call is checked and run with those; if
        windows of it have run and `idempotent` is false, it fails with WorkerLost instead.
        Raises DeadlineExceeded after timeout_s (default: the model's request_timeout_s), and
        every other PoolError with its reason.
        """
        given = {**(inputs or {}), **tensors}
        call: Call | None = None
        while True:
            port = self._port_of(model)
            call = Call.of(
                port, self._facts(model), given, parameters, outputs, timeout_s, priority, call
            )
            try:
                return join(port.spec, self._run(port, call))
            except Moved:  # before it was sent, or with other tensors: from the start, over there
                self._let_go()

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
        given = {**(inputs or {}), **tensors}
        call: Call | None = None
        while True:
            port = self._port_of(model)
            call = Call.of(
                port, self._facts(model), given, parameters, outputs, timeout_s, priority, call
            )
            future = RowsFuture(self._take_back, port)
            try:
                self._send(port, call, future)
            except Moved:
                self._let_go()
            else:
                return future

    def models(self) -> list[str]:
        """The names of the pool's models."""
        self._check_process()
        with self._turn:
            session = self._usable()
            session.refresh(self._timeout_s)
            return list(session.models)

    def close(self) -> None:
        """End the session. Futures under way fail with PoolStopped; results stay valid."""
        if this_process() != self._pid:
            return  # the session is the parent's
        reaping = self._reaping
        with self._turn:
            reaping.closed = True
            session = reaping.session
            if session is None:
                return
            lost = reaping.lose(session)
            thread = reaping.thread()
            session.bell.ring()  # whoever waits on it looks up and finds the session closed
            closed = PoolStopped("this client was closed with requests under way")
            reaping.deliver(failures(lost, closed))
        if thread is not None:
            thread.join()
        with self._turn:
            self._turn.wait_for(lambda: not reaping.busy)
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
        if self._reaping.closed:
            raise PoolStopped("this client is closed")
        if self._reaping.session is None:
            self._connect()
        assert self._reaping.session is not None
        return self._reaping.session

    def _connect(self) -> None:
        session = Session.connect(self.socket, self._timeout_s, pinned=self._pinned)
        self._reaping.begin(session)

    def _port_of(self, model: str) -> LaneClient:
        """The port to a model; without the lock when it is open already.

        With nothing under way nobody may have noticed that the pool went away or that the model
        moved, so look.
        """
        self._check_process()
        session = self._reaping.session
        if session is not None and not self._reaping.closed:
            port = session.ports.get(model)
            there = port is not None and not port.sees_move()
            if port is not None and there and (port.map.claimed or not session.is_over()):
                return port
        with self._turn:
            return self._port(model)

    def _port(self, model: str) -> LaneClient:
        session = self._usable()
        if session.is_over():
            lost = self._reaping.lose(session)
            if not self._reaping.busy:  # else whoever waits on its bell closes it
                session.close()
            self._reaping.deliver(failures(lost, session.stopped()))
            session = self._usable()
        port = session.ports.get(model)
        if port is not None and port.sees_move():
            session.let_go()
        return session.open_port(model, self._timeout_s)

    def _facts(self, model: str) -> Any:
        session = self._reaping.session
        if session is None:
            raise PoolStopped(f"the pool at {self.socket} has stopped")
        return session.facts(model)

    def _let_go(self) -> None:
        """A lane has moved: the next call asks for another."""
        with self._turn:
            if self._reaping.session is not None:
                self._reaping.session.let_go()

    # -- calls --------------------------------------------------------------------------

    def _run(self, port: LaneClient, call: Call) -> list[dict[str, Array]]:
        """Send a call's rows in windows and wait for all. Raises Moved if none was sent, or if
        the answers of those that were would not go together with the others'."""
        size = window_rows(port.map.bound, self._facts(port.spec.name).max_batch)
        under_way: deque[PendingRequest] = deque()
        results: list[dict[str, Array]] = []
        sent, moved = 0, False
        try:
            for window in cut(call.rows, size if call.rows.n > port.map.bound else call.rows.n):
                try:
                    while not self._try_submit(port, call, window, under_way):
                        if under_way:
                            results.append(self._result(port, under_way, call))
                        else:
                            self._wait_for_room(port, window.n, call)
                except Moved:
                    if not sent:
                        raise
                    moved = True
                    break
                sent += window.n
            while under_way:
                results.append(self._result(port, under_way, call))
        except BaseException:
            self._give_up(port, under_way)
            raise
        return results + self._run_rest(port, call.rest(sent)) if moved else results

    def _run_rest(self, old: LaneClient, call: Call) -> list[dict[str, Array]]:
        while True:
            self._let_go()
            port = self._port_of(old.spec.name)
            call.check_rest(old.spec, port.spec)
            with suppress(Moved):  # that one has moved too
                return self._run(port, call)

    def _try_submit(
        self, port: LaneClient, call: Call, window: Rows, under_way: deque[PendingRequest]
    ) -> bool:
        with self._turn:
            session = self._usable()
            if port not in session.ports.driven:
                raise self._reaping.why_not(port, session)
            if not port.may_claim(window.n, call.priority):
                port.check_gate(monotonic_ns())
                return False
            pending = port.submit(window, call.start_ns, call.deadline_ns, priority=call.priority)
            port.flush()
            session.ring()
            under_way.append(pending)
            return True

    def _send(self, port: LaneClient, call: Call, future: RowsFuture) -> None:
        """The rows of a future."""
        with self._turn:
            session = self._usable()
            if port not in session.ports.driven:
                raise self._reaping.why_not(port, session)
            pending = port.submit(
                call.rows, call.start_ns, call.deadline_ns, priority=call.priority,
                tag=(future, call),
            )  # fmt: skip
            future.pending = pending
            port.flush()
            session.ring()
            self._reaping.expect(session, call)

    def _result(
        self, port: LaneClient, under_way: deque[PendingRequest], call: Call
    ) -> dict[str, Array]:
        """Wait for the oldest request, reaping for everybody if nobody else does."""
        pending = under_way[0]
        with self._turn:
            self._reaping.wait(port, lambda: pending.remaining == 0 or pending.abandoned,
                               call.deadline_ns)  # fmt: skip
            if pending.remaining == 0 and not pending.abandoned:
                under_way.popleft()
                try:
                    return port.result(pending, call.outputs)
                finally:
                    self._reaping.made_room()
            expired = monotonic_ns() >= call.deadline_ns
        if expired:
            raise DeadlineExceeded(call.late_text(port.spec.name))
        raise PoolStopped(
            f"the pool at {self.socket} has stopped; the request may or may not have run"
        )

    def _wait_for_room(self, port: LaneClient, n: int, call: Call) -> None:
        with self._turn:
            self._reaping.wait_for_room(port, n, call)
        if monotonic_ns() >= call.deadline_ns:
            raise DeadlineExceeded(f"no room for {n} rows of {port.spec.name!r} in time")

    def _take_back(self, future: RowsFuture) -> bool:
        """A future was cancelled; True the first time."""
        if this_process() != self._pid:
            return False
        with self._turn:
            first, future.taken_back = not future.taken_back, True
            session, port, pending = self._reaping.session, future.port, future.pending
            if first and session and self._reaping.drives(port) and pending and pending.remaining:
                port.abandon(pending)
                session.ring()
        return first

    def _give_up(self, port: LaneClient, under_way: deque[PendingRequest]) -> None:
        """A call ends early: its rows are cancelled, those that are done make room."""
        with self._turn:
            session = self._reaping.session
            if session is None or not self._reaping.drives(port):
                return
            for pending in under_way:
                if pending.remaining == 0 and not pending.abandoned:
                    port.release(pending)
                else:
                    port.abandon(pending)
            session.ring()
            self._reaping.made_room()
