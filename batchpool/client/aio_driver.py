"""LoopDriver: the steps of bp.AsyncClient's calls, on one asyncio loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, cast

from batchpool.client.call import Call
from batchpool.client.lane_client import LaneClient
from batchpool.client.loop import ClientLoop, CompletionListener
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.process_id import this_process
from batchpool.client.reply import Reply
from batchpool.client.running_sequence import RunningSequence
from batchpool.client.served_model import ServedModel, served_models, state_of
from batchpool.client.session import Session
from batchpool.core.errors import DeadlineExceeded, Moved, PoolError, PoolStopped
from batchpool.core.tensors.rows import Rows


# methods: each step of a call and of a map is one, on one session and its loop
class LoopDriver:
    """Connects, opens lanes, submits and takes results; its waits suspend.

    socket: the pool's unix socket. timeout_s, pinned: as of bp.AsyncClient. client_loop: drives
    the live session; None before the first use. A session that has ended is replaced at the next
    call. What takes system calls to open is opened in a thread, once for all calls that need it.
    """

    def __init__(self, socket: str, timeout_s: float, *, pinned: bool) -> None:
        self.client_loop: ClientLoop | None = None
        self._connect_session = partial(Session.connect, socket, timeout_s, pinned=pinned)
        self._timeout_s = timeout_s
        self._closed = False
        self._pid = this_process()
        self._openings: dict[str, asyncio.Task[None]] = {}
        self._control = asyncio.Lock()  # one question at a time over the control socket

    async def close(self) -> None:
        """End the session; calls under way fail with PoolStopped."""
        self._closed = True
        if self._openings:
            await asyncio.wait(list(self._openings.values()))
        if self.client_loop is not None and this_process() == self._pid:
            self.client_loop.close()
            self.client_loop = None

    async def usable(self) -> ClientLoop:
        """The loop of the live session, connected anew where the pool went away."""
        if self._closed:
            raise PoolStopped("this client is closed")
        if this_process() != self._pid:
            raise PoolStopped(
                f"this client belongs to process {self._pid}; after a fork the child"
                " must open its own bp.AsyncClient"
            )
        if self.client_loop is None or self.client_loop.over:
            await self._once("", self._connect)
        assert self.client_loop is not None
        if not self.client_loop.runs_here():
            raise RuntimeError(
                "this client belongs to another event loop; every loop must open its own"
                " bp.AsyncClient"
            )
        return self.client_loop

    @property
    def state(self) -> str:
        """Connected, closed, or neither because the pool went away or was not asked yet."""
        client_loop = self.client_loop
        live = None if client_loop is None or client_loop.over else client_loop.session
        return state_of(self._closed, live)

    async def models(self) -> dict[str, ServedModel]:
        """The pool's models by name."""
        session = (await self.usable()).session
        async with self._control:
            await asyncio.to_thread(session.refresh, self._timeout_s)
        return served_models(session.models)

    async def _connect(self) -> None:
        self.client_loop = ClientLoop(await asyncio.to_thread(self._connect_session))

    async def _open(self, session: Session, model: str) -> None:
        async with self._control:
            try:
                opening = asyncio.to_thread(session.new_lane_client, model, self._timeout_s)
                lane_client = await opening
            except PoolError:
                raise
            except (OSError, ValueError) as exc:  # the session was closed meanwhile
                raise session.stopped() from exc
            # Here and not in the thread, since the loop iterates over the lane set.
            session.lane_set[model] = lane_client

    async def _once(self, what: str, opening: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Open something in one task for all callers; a cancelled caller leaves it running."""
        task = self._openings.get(what)
        if task is None:
            task = self._openings[what] = asyncio.create_task(opening())
            task.add_done_callback(lambda done: self._opened(what, done))
        await asyncio.shield(task)

    def _opened(self, what: str, task: asyncio.Task[None]) -> None:
        del self._openings[what]
        if not task.cancelled():
            task.exception()  # retrieved here too, since all callers may have been cancelled

    # -- the steps of a call ------------------------------------------------------------

    async def lane_client(self, model: str) -> LaneClient:
        client_loop = await self.usable()
        session = client_loop.session
        while True:
            lane_client = session.lane_set.get(model)
            if lane_client is not None and lane_client.sees_move():
                session.let_go()
                lane_client = None
            if lane_client is None:
                await self._once(model, lambda: self._open(session, model))
            if client_loop.over:
                raise session.stopped()
            if lane_client is not None:
                return lane_client

    def facts(self, model: str) -> ModelFacts:
        assert self.client_loop is not None, "the lane client comes first"
        return self.client_loop.session.facts(model)

    def _loop_of(self, lane_client: LaneClient) -> ClientLoop:
        """The loop that takes the completions of a lane client; else the reason that none does."""
        client_loop = self.client_loop
        if client_loop is None:
            raise PoolStopped("this client is closed")
        if lane_client in client_loop.session.lane_set.driven:
            return client_loop
        if lane_client.has_moved:
            raise Moved.replaced(lane_client.spec.name)
        raise client_loop.session.stopped()

    async def submit(
        self,
        lane_client: LaneClient,
        window: Rows,
        call: Call,
        under_way: deque[PendingRequest],
    ) -> bool:
        pending = self._submit(self._loop_of(lane_client), lane_client, window, call, Reply())
        if pending is None:
            return False
        under_way.append(pending)
        return True

    def _submit(
        self,
        client_loop: ClientLoop,
        lane_client: LaneClient,
        window: Rows,
        call: Call,
        listener: CompletionListener,
    ) -> PendingRequest | None:
        lent = lane_client.lent
        if lent.any_ended:
            lent.take_back(lane_client)
        if lent.n and not lane_client.has_room(window, call.start_ns, call.priority):
            lent.check_room(lane_client, window.n)
        if call.wait_for_room:
            now_ns = time.monotonic_ns()
            if not lane_client.has_room(window, now_ns, call.priority):
                lane_client.check_gate(now_ns)
                return None
        pending = lane_client.submit(
            window, call.start_ns, call.deadline_ns, priority=call.priority, tag=listener
        )
        client_loop.publish(lane_client)
        return pending

    async def start_sequence(self, lane_client: LaneClient, call: Call) -> RunningSequence | None:
        client_loop = self._loop_of(lane_client)
        sequence = RunningSequence(client_loop, lane_client)
        pending = self._submit(client_loop, lane_client, call.rows, call, sequence)
        if pending is None:
            return None
        sequence.follow(pending)
        return sequence

    async def wait_for_room(self, lane_client: LaneClient, window: Rows, call: Call) -> None:
        client_loop = self._loop_of(lane_client)
        left_s = (call.deadline_ns - time.monotonic_ns()) / 1e9
        try:
            async with asyncio.timeout(max(left_s, 0)):
                await client_loop.room()
        except BaseException as exc:  # it gives up, for which nothing rings
            lane_client.give_up_room(window)
            client_loop.wake_waiting()
            if not isinstance(exc, TimeoutError):
                raise
            raise DeadlineExceeded(call.late_text(lane_client.spec.name)) from None
        if client_loop.over:
            raise client_loop.session.stopped()

    async def result(
        self, lane_client: LaneClient, under_way: deque[PendingRequest], call: Call
    ) -> dict[str, Any]:
        pending = await cast(Reply, under_way[0].tag)
        under_way.popleft()
        pending.tag = None  # else each would refer to the other
        return call.take(lane_client, pending)

    # -- of a map -----------------------------------------------------------------------

    @property
    def connects_again(self) -> bool:
        """False once the client is closed, and in a forked child."""
        return this_process() == self._pid and not self._closed

    async def look(self) -> None:
        await asyncio.sleep(0)  # the loop takes what is there

    async def any_result(self, lane_client: LaneClient, requests: list[PendingRequest]) -> None:
        replies = [cast(Reply, pending.tag) for pending in requests]
        await asyncio.wait(replies, return_when=asyncio.FIRST_COMPLETED)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def drop(self, lane_client: LaneClient, requests: Iterable[PendingRequest]) -> None:
        for pending in requests:
            reply: Reply = pending.tag
            if reply.done() and not reply.cancelled() and reply.exception() is None:
                lane_client.release(pending)
                pending.tag = None
                continue
            reply.cancel()
            client_loop = self.client_loop
            if client_loop is not None and lane_client in client_loop.session.lane_set.driven:
                client_loop.abandon(lane_client, pending)

    def leave_moved(self) -> None:
        if self.client_loop is not None:
            self.client_loop.session.let_go()
