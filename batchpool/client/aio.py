"""bp.AsyncClient: the pool for one asyncio loop, without a lock or a thread.

The HTTP front ends are built on it: they hand it a session over the supervisor's socket.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from batchpool.client.call import Call, default_socket
from batchpool.client.port import Pending, Port
from batchpool.client.process import this_process
from batchpool.client.session import Session
from batchpool.client.windows import cut, join, window_rows
from batchpool.core.errors import DeadlineExceeded, PoolError, PoolStopped
from batchpool.core.tensors import Array, Rows

_LOOK_S = 0.5  # every wait has an end: look at the counters at least this often
_TICK_S = 0.02  # how late an expired request may be noticed


class Taker(Protocol):
    """Who submitted: told once, in the loop, how a request ended."""

    def finished(self, pending: Pending) -> bool:
        """Its rows are done, well or not, and its slots are the taker's; False: unwanted."""

    def failed(self, error: PoolError) -> None:
        """It has no rows to come: its time is up, or the pool has gone."""


class Reply(asyncio.Future[Pending]):
    """A taker to wait for."""

    def finished(self, pending: Pending) -> bool:
        if self.done():
            return False
        self.set_result(pending)
        return True

    def failed(self, error: PoolError) -> None:
        if not self.done():
            self.set_exception(error)


class Reactor:
    """Drives the ports of one attached session from one running loop.

    lost: called when the pool is gone. heard: what the pool says unasked, which it does to front
    ends; without it nothing is read here.
    """

    def __init__(
        self,
        session: Session,
        lost: Callable[[], None] = lambda: None,
        heard: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.session = session
        self.over = False
        self.given_up = 0  # requests that were under way when it was closed
        self._lost = lost
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._dirty: set[Port] = set()
        self._flush_planned = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._resting = False  # the next look is too late for a deadline that comes now
        self._loop.add_reader(session.bell.fd, self._on_bell)
        self._loop.add_reader(session.channel.fileno(), self._on_control)
        self._plan_look()

    def submit(
        self,
        port: Port,
        rows: Rows,
        start_ns: int,
        deadline_ns: int,
        taker: Taker,
        *,
        priority: int,
        flow: int,
        checked: bool = False,
    ) -> Pending:
        """Submit rows; the taker hears when they are finished (DeadlineExceeded if late).

        checked: as `Port.submit`. All submissions of one loop turn are published as one group
        with one ring of the bell.
        """
        if self.over:
            raise self.session.stopped()
        pending = port.submit(
            rows, start_ns, deadline_ns, priority=priority, flow=flow, tag=taker, checked=checked
        )
        self._publish_soon(port)
        if self._resting:
            self._plan_look()
        return pending

    def abandon(self, port: Port, pending: Pending) -> None:
        """The caller is gone: cancel what has not been dispatched."""
        if not self.over and pending.remaining:
            port.abandon(pending)
            self._publish_soon(port)

    def runs_here(self) -> bool:
        """Whether the running loop is the one that drives it."""
        return self._loop is asyncio.get_running_loop()

    async def room(self) -> None:
        """Wait until completions came in (or the session is over)."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def close(self) -> None:
        """Stop driving; everything under way fails with PoolStopped."""
        if self.over:
            return
        self.over = True
        self._loop.remove_reader(self.session.bell.fd)
        self._loop.remove_reader(self.session.channel.fileno())
        if self._timer is not None:
            self._timer.cancel()
        for port in self.session.ports.values():
            for pending in port.fail_all():
                self.given_up += 1
                pending.tag.failed(self.session.stopped())
        self._wake_waiting()
        self.session.close()

    def _publish_soon(self, port: Port) -> None:
        self._dirty.add(port)
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self.over:
            return
        for port in self._dirty:
            port.flush()
        self._dirty.clear()
        self.session.ring()

    def _on_bell(self) -> None:
        self.session.bell.clear()
        self._reap()

    def _reap(self) -> None:
        now_ns = time.monotonic_ns()
        any_finished = False
        for port in self.session.ports.values():
            for pending in port.reap(now_ns):
                any_finished = True
                if not pending.tag.finished(pending):
                    port.release(pending)
        if any_finished or self._waiting:
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _on_control(self) -> None:
        if self.session.is_over():
            self.close()
            self._lost()
        elif self._heard is not None:
            self._heard(self.session.hear())

    def _plan_look(self) -> None:
        self._resting = not any(port.map.claimed for port in self.session.ports.values())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LOOK_S if self._resting else _TICK_S, self._look)

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        late = False
        for port in self.session.ports.values():
            if port.next_deadline_ns() <= now_ns:
                for pending in port.expire(now_ns):
                    late = True
                    pending.tag.failed(
                        DeadlineExceeded(
                            f"model {port.spec.name!r} did not answer before the deadline"
                        )
                    )
        if late:
            self.session.ring()
        self._reap()
        self._plan_look()


class AsyncClient:
    """As bp.Client, awaitable. `async with` opens it on the running loop.

    Cancelling the task of a call takes back the rows that have not been dispatched.
    """

    def __init__(
        self, socket: str | None = None, *, timeout_s: float = 10.0, pinned: bool = False
    ) -> None:
        self.socket = default_socket() if socket is None else socket
        self._timeout_s = timeout_s
        self._pinned = pinned
        self._closed = False
        self._pid = this_process()
        self._reactor: Reactor | None = None
        self._openings: dict[str, asyncio.Task[None]] = {}
        self._control = asyncio.Lock()  # one question at a time over the control socket

    async def __aenter__(self) -> AsyncClient:
        await self._usable()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session. Calls under way fail with PoolStopped; results stay valid."""
        self._closed = True
        if self._openings:
            await asyncio.wait(list(self._openings.values()))
        if self._reactor is not None and this_process() == self._pid:
            self._reactor.close()
            self._reactor = None

    async def models(self) -> list[str]:
        """The names of the pool's models."""
        return list((await self._usable()).session.models)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        wait_for_room: bool = True,
        **tensors: Any,
    ) -> dict[str, Array]:
        """Run n rows, any n, and return {output: array [n, *row shape]}; see Client.infer.

        With wait_for_room=False a full lane raises Overloaded at once instead of waiting.
        """
        reactor, port = await self._port(model)
        facts = reactor.session.facts(model)
        call = Call.of(port, facts, {**(inputs or {}), **tensors}, parameters, outputs,
                       timeout_s, priority)  # fmt: skip
        size = window_rows(port.map.bound, facts.max_batch)
        size = size if wait_for_room and call.rows.n > port.map.bound else call.rows.n
        under_way: deque[tuple[Pending, Reply]] = deque()
        results: list[dict[str, Array]] = []
        try:
            for window in cut(call.rows, size):
                while wait_for_room and not port.may_claim(window.n, priority):
                    port.check_gate(time.monotonic_ns())
                    if under_way:
                        results.append(await self._result(port, call, under_way))
                    else:
                        await self._room(reactor, call, port)
                reply = Reply()
                pending = reactor.submit(
                    port, window, call.start_ns, call.deadline_ns, reply, priority=priority, flow=0
                )
                under_way.append((pending, reply))
            while under_way:
                results.append(await self._result(port, call, under_way))
        finally:
            for pending, reply in under_way:
                if reply.done() and not reply.cancelled() and reply.exception() is None:
                    port.release(pending)
                else:
                    reply.cancel()
                    reactor.abandon(port, pending)
        return join(port.spec, results)

    async def _result(
        self, port: Port, call: Call, under_way: deque[tuple[Pending, Reply]]
    ) -> dict[str, Array]:
        _, reply = under_way[0]
        pending = await reply
        under_way.popleft()
        return port.result(pending, call.outputs)

    async def _room(self, reactor: Reactor, call: Call, port: Port) -> None:
        left_s = (call.deadline_ns - time.monotonic_ns()) / 1e9
        try:
            async with asyncio.timeout(max(left_s, 0)):
                await reactor.room()
        except TimeoutError:
            raise DeadlineExceeded(call.late_text(port.spec.name)) from None
        if reactor.over:
            raise reactor.session.stopped()

    async def _usable(self) -> Reactor:
        if self._closed:
            raise PoolStopped("this client is closed")
        if this_process() != self._pid:
            raise PoolStopped(
                f"this client belongs to process {self._pid}; after a fork the child"
                " must open its own bp.AsyncClient"
            )
        if self._reactor is None or self._reactor.over:
            await self._once("", self._connect)
        assert self._reactor is not None
        if not self._reactor.runs_here():
            raise RuntimeError(
                "this client belongs to another event loop; every loop must open its own"
                " bp.AsyncClient"
            )
        return self._reactor

    async def _connect(self) -> None:
        connect = partial(Session.connect, self.socket, self._timeout_s, pinned=self._pinned)
        session = await asyncio.to_thread(connect)
        self._reactor = Reactor(session)

    async def _port(self, model: str) -> tuple[Reactor, Port]:
        reactor = await self._usable()
        session = reactor.session
        if model not in session.ports:
            await self._once(model, lambda: self._open(session, model))
        if reactor.over:
            raise session.stopped()
        return reactor, session.ports[model]

    async def _open(self, session: Session, model: str) -> None:
        async with self._control:
            try:
                port = await asyncio.to_thread(session.new_port, model, self._timeout_s)
            except PoolError:
                raise
            except (OSError, ValueError) as exc:  # closed in the middle of it
                raise session.stopped() from exc
            session.ports[model] = port  # here, since the loop goes over the ports

    async def _once(self, what: str, opening: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One task opens for all who ask; a caller that is cancelled leaves it to the others."""
        task = self._openings.get(what)
        if task is None:
            task = self._openings[what] = asyncio.create_task(opening())
            task.add_done_callback(lambda done: self._opened(what, done))
        await asyncio.shield(task)

    def _opened(self, what: str, task: asyncio.Task[None]) -> None:
        del self._openings[what]
        if not task.cancelled():
            task.exception()  # there may be nobody left to take it
