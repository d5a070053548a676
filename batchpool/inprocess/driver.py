"""Driver of `await InferenceBatcher.predict(...)` on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from batchpool.core.errors import InvalidInput, ModelError
from batchpool.core.scheduler.decide import NEVER_NS, Limits
from batchpool.inprocess.queue import RequestQueue
from batchpool.inprocess.refusals import await_outputs_of_each

ClockNs: TypeAlias = Callable[[], int]
Request: TypeAlias = "tuple[Any, asyncio.Future[Any]]"  # an input, and the reply to its caller


class Driver:
    """Forms and runs the batches of one loop, touched by that loop's thread only.

    It looks at its line once per turn of the loop in which anything happened, so calls made
    in one turn ride together. With nothing waiting and nothing running it has no task and no
    timer, and calls `rest`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        clock_ns: ClockNs,
        answer: Callable[[list[Any]], Awaitable[list[Any]]],
        rest: Callable[[Driver], None],
    ) -> None:
        self.loop = loop
        self._line: RequestQueue[asyncio.Future[Any]] = RequestQueue(limits)
        self._clock_ns = clock_ns
        self._answer = answer
        self._rest = rest
        self._left: set[int] = set()  # requests whose callers are gone
        self._look_planned = False
        self._task: asyncio.Task[None] | None = None  # the batch that runs
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at_ns = NEVER_NS  # what the timer is set to

    async def predict(self, given: Any) -> Any:
        """The output for one input; see InferenceBatcher.predict."""
        reply: asyncio.Future[Any] = self.loop.create_future()
        number = self._line.add(self._clock_ns(), given, reply)
        self._look_soon()
        try:
            return await reply
        finally:
            if reply.cancelled():
                self._left.add(number)
                self._look_soon()
            del reply  # which holds the exception, whose traceback holds this frame

    def _look_soon(self) -> None:
        if not self._look_planned:
            self._look_planned = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_planned = False
        if self._left:
            self._line.discard(self._left)
            self._left.clear()
        now_ns = self._clock_ns()
        decision = self._line.decide(now_ns, in_flight=int(self._task is not None))
        for dispatch in decision.dispatch:
            # A caller that was cancelled in this very turn says so, and has us look, in the next.
            requests = [r for r in self._line.take(dispatch.rows).requests if not r[1].done()]
            if requests:
                self._task = self.loop.create_task(self._run(requests))
        self._plan_look(now_ns, decision.wake_at_ns)
        if self._task is None and not self._line:
            self._rest(self)

    def _plan_look(self, now_ns: int, wake_at_ns: int) -> None:
        if wake_at_ns == self._wake_at_ns:
            return
        self._wake_at_ns = wake_at_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at_ns < NEVER_NS:
            self._timer = self.loop.call_later((wake_at_ns - now_ns) / 1e9, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._wake_at_ns = NEVER_NS
        self._look()

    async def _run(self, requests: list[Request]) -> None:
        try:
            outputs = await await_outputs_of_each(self._answer, [given for given, _ in requests])
            for (_, reply), output in zip(requests, outputs, strict=True):
                if reply.done():
                    continue
                if isinstance(output, InvalidInput):
                    reply.set_exception(output)
                else:
                    reply.set_result(output)
        except asyncio.CancelledError:
            # By the model itself, or by whoever ends all tasks of the loop. A caller that was
            # not cancelled must not look as if it had been: its task would end in silence.
            _fail(requests, ModelError("model_fn was cancelled while it ran the batch"))
        except BaseException as exc:
            _fail(requests, exc)
        finally:
            requests.clear()  # the exception's traceback holds this frame
            self._task = None
            self._look_soon()


def _fail(requests: list[Request], error: BaseException) -> None:
    for _, reply in requests:
        if not reply.done():
            reply.set_exception(error)
