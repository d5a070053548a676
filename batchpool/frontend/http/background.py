"""A thread for the work of a few requests that would hold the event loop up."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from batchpool.core.flows import origin_of

_Result = TypeVar("_Result")

# How long a thread that computes may keep the interpreter while the loop wants it. With Python's
# 5 ms each turn of the loop takes 5 ms longer while the thread works, with this 0.8 ms.
_SWITCH_S = 0.0005


def _nothing() -> None:
    """For a thread of a process without a heartbeat, and for work that needs nothing to begin."""


class _Job(NamedTuple):
    future: asyncio.Future[Any]
    begin: Callable[[], None]
    work: Callable[..., Any]
    arguments: tuple[object, ...]


class BackgroundThread:
    """Runs long work outside the event loop, one piece after another, in turn for each caller.

    It has one thread only. The thread competes with the loop for the interpreter, which a single
    step of its work may keep for some milliseconds; with two threads the loop would wait for both.
    A caller with much work waits behind its own: callers take turns, one piece each.

    share: the part of the time that it may compute. Below 1 it pauses after each piece, so that
    callers who ask without end cannot keep the interpreter busy: a loop that shares it waits half a
    millisecond whenever it comes back from the kernel.

    beat: stamps the process's heartbeat. It is called before and after each piece of work, because
    the loop may not run its own timer while several pieces follow one another.
    """

    def __init__(
        self, beat: Callable[[], None] = _nothing, name: str = "background", share: float = 1.0
    ) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        self._pause = 1 / share - 1  # by the time that a piece took
        self._thread = ThreadPoolExecutor(1, f"batchpool-{name}")
        self._beat = beat
        # By origin and flow, the next one to run first: the names of one origin share its turns.
        self._waiting: dict[int, dict[int, deque[_Job]]] = {}
        self._running = False
        self._took_s = 0.0  # CPU time of the last piece
        self._closed = False

    def run(
        self,
        flow: int,
        work: Callable[..., _Result],
        *arguments: object,
        begin: Callable[[], None] = _nothing,
    ) -> asyncio.Future[_Result]:
        """Queue a call of `work` for the caller of this flow; the future has its result or its
        exception.

        begin: called on the loop just before; the call is not made if it raises. Nor is a call
        whose future was cancelled before.
        """
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.cancel()
            return future
        flows = self._waiting.setdefault(origin_of(flow), {})
        flows.setdefault(flow, deque()).append(_Job(future, begin, work, arguments))
        if not self._running:
            self._run_next()
        return future

    def _run_next(self) -> None:
        """Begin the first call of the caller whose turn it is, who is the last one thereafter."""
        self._running = False
        while self._waiting:
            origin = next(iter(self._waiting))
            flows = self._waiting.pop(origin)
            flow = next(iter(flows))
            jobs = flows.pop(flow)
            job = jobs.popleft()
            if jobs:
                flows[flow] = jobs
            if flows:
                self._waiting[origin] = flows
            if self._begins(job):
                self._running = True
                return

    def _begins(self, job: _Job) -> bool:
        """Begin a call, unless nobody waits for it or it may not begin."""
        future = job.future
        if future.done():
            return False
        try:
            job.begin()
        except Exception as exc:
            # Its traceback would keep the job, and with it a request's body, in a circle of
            # references, as well as the frames that called this one.
            future.set_exception(exc.with_traceback(None))
            return False
        loop = future.get_loop()
        done = loop.run_in_executor(self._thread, self._call, job.work, job.arguments)
        done.add_done_callback(lambda done: self._finish(future, done))
        return True

    def _call(self, work: Callable[..., _Result], arguments: tuple[object, ...]) -> _Result:
        self._beat()
        begun_s = time.thread_time()
        try:
            return work(*arguments)
        finally:
            self._beat()
            self._took_s = time.thread_time() - begun_s

    def _finish(self, future: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if not future.done():
            if done.cancelled():
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())
        if self._pause:
            future.get_loop().call_later(self._took_s * self._pause, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if not self._closed:
            self._run_next()

    def close(self) -> None:
        """Cancel what is queued. Work that runs is not waited for."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        for flows in self._waiting.values():
            for job in chain.from_iterable(flows.values()):
                job.future.cancel()
        self._waiting.clear()
