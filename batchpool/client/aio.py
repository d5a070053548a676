"""bp.AsyncClient: the pool for one asyncio loop, without a lock or a thread."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from batchpool.client.call import Call, default_socket
from batchpool.client.chunks import cut, join, window_rows
from batchpool.client.lane_client import LaneClient, PendingRequest
from batchpool.client.loop import ClientLoop
from batchpool.client.process_id import this_process
from batchpool.client.reply import Reply
from batchpool.client.session import Session
from batchpool.core.errors import DeadlineExceeded, Moved, PoolError, PoolStopped
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows


class AsyncClient:
    """As bp.Client, awaitable. `async with` opens it on the running loop.

    Cancelling the task of a call takes back the rows that have not been dispatched.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        timeout_s: float = 10.0,
        pinned: bool = False,
    ) -> None:
        self.socket = default_socket() if socket is None else os.fspath(socket)
        self._timeout_s = timeout_s
        self._pinned = pinned
        self._closed = False
        self._pid = this_process()
        self._client_loop: ClientLoop | None = None
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
        if self._client_loop is not None and this_process() == self._pid:
            self._client_loop.close()
            self._client_loop = None

    async def models(self) -> list[str]:
        """The names of the pool's models."""
        session = (await self._usable()).session
        async with self._control:
            await asyncio.to_thread(session.refresh, self._timeout_s)
        return list(session.models)

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
        given = {**(inputs or {}), **tensors}
        call: Call | None = None
        while True:
            client_loop, lane_client = await self._lane_client(model)
            facts = client_loop.session.facts(model)
            call = Call.of(
                lane_client, facts, given, parameters, outputs, timeout_s, priority, call
            )
            try:
                return join(
                    lane_client.spec,
                    await self._run(client_loop, lane_client, call, wait=wait_for_room),
                )
            except Moved:  # before it was sent, or with other tensors: from the start, over there
                client_loop.session.let_go()

    async def _run(
        self, client_loop: ClientLoop, lane_client: LaneClient, call: Call, *, wait: bool
    ) -> list[dict[str, Array]]:
        """As Client's: Moved if no row was sent, or the answers would not go together."""
        size = window_rows(
            lane_client.map.bound, client_loop.session.facts(lane_client.spec.name).max_batch
        )
        size = size if wait and call.rows.n > lane_client.map.bound else call.rows.n
        under_way: deque[tuple[PendingRequest, Reply]] = deque()
        results: list[dict[str, Array]] = []
        sent, moved = 0, False
        try:
            for window in cut(call.rows, size):
                try:
                    while wait and not lane_client.may_claim(window.n, call.priority):
                        lane_client.check_gate(time.monotonic_ns())
                        if under_way:
                            results.append(await self._result(lane_client, call, under_way))
                        else:
                            await self._room(client_loop, call, lane_client)
                    under_way.append(_submit(client_loop, lane_client, window, call))
                except Moved:
                    if not sent:
                        raise
                    moved = True
                    break
                sent += window.n
            while under_way:
                results.append(await self._result(lane_client, call, under_way))
        finally:
            for pending, reply in under_way:
                if reply.done() and not reply.cancelled() and reply.exception() is None:
                    lane_client.release(pending)
                else:
                    reply.cancel()
                    client_loop.abandon(lane_client, pending)
        return (
            results + await self._run_rest(lane_client, call.rest(sent), wait) if moved else results
        )

    async def _run_rest(self, old: LaneClient, call: Call, wait: bool) -> list[dict[str, Array]]:
        while True:
            (await self._usable()).session.let_go()
            client_loop, lane_client = await self._lane_client(old.spec.name)
            call.check_rest(old.spec, lane_client.spec)
            with suppress(Moved):  # that one has moved too
                return await self._run(client_loop, lane_client, call, wait=wait)

    async def _result(
        self, lane_client: LaneClient, call: Call, under_way: deque[tuple[PendingRequest, Reply]]
    ) -> dict[str, Array]:
        _, reply = under_way[0]
        pending = await reply
        under_way.popleft()
        return lane_client.result(pending, call.outputs)

    async def _room(self, client_loop: ClientLoop, call: Call, lane_client: LaneClient) -> None:
        left_s = (call.deadline_ns - time.monotonic_ns()) / 1e9
        try:
            async with asyncio.timeout(max(left_s, 0)):
                await client_loop.room()
        except TimeoutError:
            raise DeadlineExceeded(call.late_text(lane_client.spec.name)) from None
        if client_loop.over:
            raise client_loop.session.stopped()

    async def _usable(self) -> ClientLoop:
        if self._closed:
            raise PoolStopped("this client is closed")
        if this_process() != self._pid:
            raise PoolStopped(
                f"this client belongs to process {self._pid}; after a fork the child"
                " must open its own bp.AsyncClient"
            )
        if self._client_loop is None or self._client_loop.over:
            await self._once("", self._connect)
        assert self._client_loop is not None
        if not self._client_loop.runs_here():
            raise RuntimeError(
                "this client belongs to another event loop; every loop must open its own"
                " bp.AsyncClient"
            )
        return self._client_loop

    async def _connect(self) -> None:
        connect = partial(Session.connect, self.socket, self._timeout_s, pinned=self._pinned)
        session = await asyncio.to_thread(connect)
        self._client_loop = ClientLoop(session)

    async def _lane_client(self, model: str) -> tuple[ClientLoop, LaneClient]:
        client_loop = await self._usable()
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
                return client_loop, lane_client

    async def _open(self, session: Session, model: str) -> None:
        async with self._control:
            try:
                lane_client = await asyncio.to_thread(
                    session.new_lane_client, model, self._timeout_s
                )
            except PoolError:
                raise
            except (OSError, ValueError) as exc:  # closed in the middle of it
                raise session.stopped() from exc
            session.lane_set[model] = lane_client  # here, since the loop goes over the lane clients

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


def _submit(
    client_loop: ClientLoop, lane_client: LaneClient, window: Rows, call: Call
) -> tuple[PendingRequest, Reply]:
    reply = Reply()
    times = call.start_ns, call.deadline_ns
    pending = client_loop.submit(lane_client, window, *times, reply, priority=call.priority, flow=0)
    return pending, reply
