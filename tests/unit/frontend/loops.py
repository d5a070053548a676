"""Async tests: run on the loop that front ends use, and wait for things with an end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

_LONGEST_S = 150  # ends a hang, decides nothing


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the loop that front ends use, with an end to its time."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(_LONGEST_S):
                await test(*arguments, **named)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())

    return run


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(_LONGEST_S):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"in vain: {what}") from None
