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
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows


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
        self._reaper = Reaper()
        self._turn = self._reaper.turn
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
            lane_client = self._lane_client_of(model)
            call = Call.of(
                lane_client,
                self._facts(model),
                given,
                parameters,
                outputs,
                timeout_s,
                priority,
                call,
            )
            try:
                return join(lane_client.spec, self._run(lane_client, call))
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
            lane_client = self._lane_client_of(model)
            call = Call.of(
                lane_client,
                self._facts(model),
                given,
                parameters,
                outputs,
                timeout_s,
                priority,
                call,
            )
            future = RowsFuture(self._take_back, lane_client)
            try:
                self._send(lane_client, call, future)
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
        reaper = self._reaper
        with self._turn:
            reaper.closed = True
            session = reaper.session
            if session is None:
                return
            lost = reaper.lose(session)
            thread = reaper.thread()
            session.bell.ring()  # whoever waits on it looks up and finds the session closed
            closed = PoolStopped("this client was closed with requests under way")
            reaper.deliver(failures(lost, closed))
        if thread is not None:
            thread.join()
        with self._turn:
            self._turn.wait_for(lambda: not reaper.busy)
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
        if self._reaper.closed:
            raise PoolStopped("this client is closed")
        if self._reaper.session is None:
            self._connect()
        assert self._reaper.session is not None
        return self._reaper.session

    def _connect(self) -> None:
        session = Session.connect(self.socket, self._timeout_s, pinned=self._pinned)
        self._reaper.begin(session)

    def _lane_client_of(self, model: str) -> LaneClient:
        """The lane client to a model; without the lock when it is open already.

        With nothing under way nobody may have noticed that the pool went away or that the model
        moved, so look.
        """
        self._check_process()
        session = self._reaper.session
        if session is not None and not self._reaper.closed:
            lane_client = session.lane_set.get(model)
            there = lane_client is not None and not lane_client.sees_move()
            if (
                lane_client is not None
                and there
                and (lane_client.map.claimed or not session.is_over())
            ):
                return lane_client
        with self._turn:
            return self._lane_client(model)

    def _lane_client(self, model: str) -> LaneClient:
        session = self._usable()
        if session.is_over():
            lost = self._reaper.lose(session)
            if not self._reaper.busy:  # else whoever waits on its bell closes it
                session.close()
            self._reaper.deliver(failures(lost, session.stopped()))
            session = self._usable()
        lane_client = session.lane_set.get(model)
        if lane_client is not None and lane_client.sees_move():
            session.let_go()
        return session.open_lane_client(model, self._timeout_s)

    def _facts(self, model: str) -> Any:
        session = self._reaper.session
        if session is None:
            raise PoolStopped(f"the pool at {self.socket} has stopped")
        return session.facts(model)

    def _let_go(self) -> None:
        """A lane has moved: the next call asks for another."""
        with self._turn:
            if self._reaper.session is not None:
                self._reaper.session.let_go()

    # -- calls --------------------------------------------------------------------------

    def _run(self, lane_client: LaneClient, call: Call) -> list[dict[str, Array]]:
        """Send a call's rows in windows and wait for all. Raises Moved if none was sent, or if
        the answers of those that were would not go together with the others'."""
        size = window_rows(lane_client.map.bound, self._facts(lane_client.spec.name).max_batch)
        under_way: deque[PendingRequest] = deque()
        results: list[dict[str, Array]] = []
        sent, moved = 0, False
        try:
            for window in cut(
                call.rows, size if call.rows.n > lane_client.map.bound else call.rows.n
            ):
                try:
                    while not self._try_submit(lane_client, call, window, under_way):
                        if under_way:
                            results.append(self._result(lane_client, under_way, call))
                        else:
                            self._wait_for_room(lane_client, window.n, call)
                except Moved:
                    if not sent:
                        raise
                    moved = True
                    break
                sent += window.n
            while under_way:
                results.append(self._result(lane_client, under_way, call))
        except BaseException:
            self._give_up(lane_client, under_way)
            raise
        return results + self._run_rest(lane_client, call.rest(sent)) if moved else results

    def _run_rest(self, old: LaneClient, call: Call) -> list[dict[str, Array]]:
        while True:
            self._let_go()
            lane_client = self._lane_client_of(old.spec.name)
            call.check_rest(old.spec, lane_client.spec)
            with suppress(Moved):  # that one has moved too
                return self._run(lane_client, call)

    def _try_submit(
        self, lane_client: LaneClient, call: Call, window: Rows, under_way: deque[PendingRequest]
    ) -> bool:
        with self._turn:
            session = self._usable()
            if lane_client not in session.lane_set.driven:
                raise self._reaper.why_not(lane_client, session)
            if not lane_client.may_claim(window.n, call.priority):
                lane_client.check_gate(monotonic_ns())
                return False
            pending = lane_client.submit(
                window, call.start_ns, call.deadline_ns, priority=call.priority
            )
            lane_client.flush()
            session.ring()
            under_way.append(pending)
            return True

    def _send(self, lane_client: LaneClient, call: Call, future: RowsFuture) -> None:
        """The rows of a future."""
        with self._turn:
            session = self._usable()
            if lane_client not in session.lane_set.driven:
                raise self._reaper.why_not(lane_client, session)
            pending = lane_client.submit(
                call.rows, call.start_ns, call.deadline_ns, priority=call.priority,
                tag=(future, call),
            )  # fmt: skip
            future.pending = pending
            lane_client.flush()
            session.ring()
            self._reaper.expect(session, call)

    def _result(
        self, lane_client: LaneClient, under_way: deque[PendingRequest], call: Call
    ) -> dict[str, Array]:
        """Wait for the oldest request, reaping for everybody if nobody else does."""
        pending = under_way[0]
        with self._turn:
            self._reaper.wait(lane_client, lambda: pending.remaining == 0 or pending.abandoned,
                               call.deadline_ns)  # fmt: skip
            if pending.remaining == 0 and not pending.abandoned:
                under_way.popleft()
                try:
                    return lane_client.result(pending, call.outputs)
                finally:
                    self._reaper.made_room()
            expired = monotonic_ns() >= call.deadline_ns
        if expired:
            raise DeadlineExceeded(call.late_text(lane_client.spec.name))
        raise PoolStopped(
            f"the pool at {self.socket} has stopped; the request may or may not have run"
        )

    def _wait_for_room(self, lane_client: LaneClient, n: int, call: Call) -> None:
        with self._turn:
            self._reaper.wait_for_room(lane_client, n, call)
        if monotonic_ns() >= call.deadline_ns:
            raise DeadlineExceeded(f"no room for {n} rows of {lane_client.spec.name!r} in time")

    def _take_back(self, future: RowsFuture) -> bool:
        """A future was cancelled; True the first time."""
        if this_process() != self._pid:
            return False
        with self._turn:
            first, future.taken_back = not future.taken_back, True
            session, lane_client, pending = self._reaper.session, future.lane_client, future.pending
            if (
                first
                and session
                and self._reaper.drives(lane_client)
                and pending
                and pending.remaining
            ):
                lane_client.abandon(pending)
                session.ring()
        return first

    def _give_up(self, lane_client: LaneClient, under_way: deque[PendingRequest]) -> None:
        """A call ends early: its rows are cancelled, those that are done make room."""
        with self._turn:
            session = self._reaper.session
            if session is None or not self._reaper.drives(lane_client):
                return
            for pending in under_way:
                if pending.remaining == 0 and not pending.abandoned:
                    lane_client.release(pending)
                else:
                    lane_client.abandon(pending)
            session.ring()
            self._reaper.made_room()
