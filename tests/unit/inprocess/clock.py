"""A clock that the test owns, and an event loop that lives by it and never waits for time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")

MS = 1_000_000


class Clock:
    """Nanoseconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class _Leap(selectors.SelectSelector):
    """Where a loop would wait for a time, the time comes at once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(0)
        if not events:
            self._clock.now_ns += max(1, round(timeout * 1e9))
        return events


class Loop(asyncio.SelectorEventLoop):
    """Remembers its timers, so that a test can see that none is left."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(_Leap(clock))
        self._clock = clock
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self._clock.now_ns / 1e9

    def call_at(  # type: ignore[override]  # typeshed ties the arguments to the callback
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        self.timers.append(timer)
        return timer

    def timers_left(self) -> int:
        fired_s = self.time() + 2e-9  # a loop takes a nanosecond for now
        return sum(not timer.cancelled() and timer.when() > fired_s for timer in self.timers)


def run(clock: Clock, main: Coroutine[Any, Any, Answer]) -> Answer:
    """asyncio.run on such a loop; nothing may be left of the test but the main task."""

    async def alone() -> Answer:
        answer = await main
        await asyncio.sleep(0)  # the turn in which the last look happens
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert loop.timers_left() == 0
        return answer

    with asyncio.Runner(loop_factory=lambda: Loop(clock)) as runner:
        return runner.run(alone())


async def turns(n: int) -> None:
    """Let the loop go round n times."""
    for _ in range(n):
        await asyncio.sleep(0)
