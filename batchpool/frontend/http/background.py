"""A thread for the work of a few requests that would hold the event loop up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


def _no_beat() -> None:
    """For a thread of a process without a heartbeat."""


class BackgroundThread:
    """Runs long parsing and encoding outside the event loop, one piece of work after another.

    It has one thread only. The thread competes with the loop for the interpreter, which a single
    step of reading 50 MB of JSON keeps for up to 0.4 s; with two threads the loop would wait for
    both.

    beat: stamps the process's heartbeat. It is called before and after each piece of work, because
    the loop may not run its own timer while several pieces follow one another.
    """

    def __init__(self, beat: Callable[[], None] = _no_beat) -> None:
        self._thread = ThreadPoolExecutor(1, "batchpool-background")
        self._beat = beat

    def run(self, work: Callable[..., _Result], *arguments: object) -> asyncio.Future[_Result]:
        """Queue a call of `work`; the future has its result or its exception."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, self._call, work, arguments)

    def _call(self, work: Callable[..., _Result], arguments: tuple[object, ...]) -> _Result:
        self._beat()
        try:
            return work(*arguments)
        finally:
            self._beat()

    def close(self) -> None:
        """Cancel what is queued. Work that runs is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
