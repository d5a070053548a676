"""An ASGI application whose requests take turns with the work of other callers, step by step.

A step is what a task does between two waits (loop_scheduler.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from batchpool.frontend.http.caller import caller_at
from batchpool.frontend.http.loop_scheduler import LoopScheduler, OriginShare

_STEP_S = 0.00015  # for which a step counts before it is done


class ScheduledApp:
    """The application `app`, whose requests' steps are the work of their peers."""

    def __init__(self, app: ASGIApp, scheduler: LoopScheduler) -> None:
        self._app = app
        self._scheduler = scheduler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Any = self._app(scope, receive, send)
        if scope["type"] == "http":
            address, _ = scope.get("client") or ("", 0)
            share = self._scheduler.share_of(caller_at(address).origin)
            await _Steps(call, self._scheduler, share)
        else:
            await call


class _Steps:
    """Awaits `call`, each step of which is done when its turn comes.

    No generator: its frame would hold what `call` waited for last, and so errors with their
    tracebacks, in circles of references.
    """

    __slots__ = ("_call", "_loop", "_scheduler", "_share", "_turn")

    def __init__(
        self, call: Coroutine[Any, Any, None], scheduler: LoopScheduler, share: OriginShare
    ) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._scheduler = scheduler
        self._share = share
        self._turn: asyncio.Future[None] | None = None  # which the next step waits for

    def __await__(self) -> Generator[Any, None, None]:
        return self  # type: ignore[return-value]  # it has what `await` asks for

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: None) -> Any:
        """Do the next step, or wait for its turn; returns what is waited for."""
        scheduler, counted_s = self._scheduler, 0.0
        if self._turn is not None:
            self._turn, counted_s = None, _STEP_S
        elif scheduler.is_full and scheduler.defers(self._share):
            turn = self._turn = self._loop.create_future()
            scheduler.defer(self._loop, self._share, partial(_come, turn), _STEP_S)
            turn._asyncio_future_blocking = True  # as a future's own __await__ does
            return turn
        begun_s = scheduler.begin(self._loop)
        try:
            return self._call.send(value)
        finally:
            scheduler.charge(self._share, begun_s, counted_s)

    def throw(self, error: BaseException) -> Any:
        """Do the next step with an error, whose turn has come: the task was cancelled, or what it
        waited for has failed."""
        self._turn = None
        begun_s = self._scheduler.begin(self._loop)
        try:
            return self._call.throw(error)
        finally:
            self._scheduler.charge(self._share, begun_s)

    def close(self) -> None:
        """End without another step."""
        self._call.close()


def _come(turn: asyncio.Future[None]) -> None:
    """Tell that a turn has come, if somebody still waits for it."""
    if not turn.done():
        turn.set_result(None)
