"""The window loop of `map`, written once for the threaded and the asyncio client.

Rows are read a window at a time and sent; several windows are under way in the lane, and results
come out a window at a time. Nothing but what is under way is held: a window is read when the one
before it has been taken. Weather does not surface: a full lane is waited for, and rows that a pool
refused, or lost as it stopped, are sent again, for as long as `outage_s` without an answer. The
driver's waits suspend or block, as in `infer`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from batchpool.client.chunks import can_join, window_rows
from batchpool.client.infer import Driver
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.row_source import RowSource
from batchpool.client.window_call import MapOptions, WindowCall
from batchpool.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Moved,
    Overloaded,
    PoolError,
    Retryable,
)
from batchpool.core.tensors.spec import ModelSpec

_BLOCK_WINDOWS = 4  # checked at once: more would hold up those that are under way
_LATE_TRIES = 3  # of a row that the model's request_timeout_s ends
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.02, 1.0


class StreamDriver(Driver, Protocol):
    """The steps of a `map` that differ between the two clients, besides those of a call."""

    @property
    def connects_again(self) -> bool:
        """False once the client is closed, and in a forked child."""

    async def look(self) -> None:
        """Take the completions that are there, without waiting for more."""

    async def any_result(self, lane_client: LaneClient, requests: list[PendingRequest]) -> None:
        """Wait until one of these requests of a lane is finished, or can no longer be."""

    async def pause(self, seconds: float) -> None:
        """Let time pass."""


@dataclass(slots=True)
class WindowOutcome:
    """The end of a window of rows. start: the number of its first row.

    outputs: {output: array [n, *row shape]}, or a list with an entry for each row, its error among
    them. errors: those of rows by their place in the window; empty where all rows are good.
    """

    start: int
    n: int
    outputs: dict[str, Any]
    errors: dict[int, PoolError]


@dataclass(slots=True, eq=False)
class _Window:
    call: WindowCall
    lane_client: LaneClient | None = None
    under_way: deque[PendingRequest] = field(default_factory=deque)
    places: Sequence[int] = ()  # of its rows in the window that they were read in
    answer: dict[str, Any] | PoolError | None = None
    may_have_run: bool = False

    @property
    def is_done(self) -> bool:
        """True if its end is there, or nothing more comes of it."""
        if self.answer is not None or not self.under_way:
            return True
        pending = self.under_way[0]
        return pending.remaining == 0 or pending.abandoned


async def run_windows(
    driver: StreamDriver, model: str, source: RowSource, options: MapOptions
) -> AsyncGenerator[WindowOutcome, None]:
    """Run all rows of a source; yields the ends of windows, in order if the options say so.

    Raises what concerns the whole: arguments that are wrong, a model that there is not, an outage
    that lasts. However it is left, rows under way are cancelled and their slots come back.
    """
    stream = _Stream(driver, model, source, options)
    try:
        while (outcome := await stream.next_outcome()) is not None:
            yield outcome
    finally:
        stream.drop()


class _Stream:
    def __init__(
        self, driver: StreamDriver, model: str, source: RowSource, options: MapOptions
    ) -> None:
        self._driver = driver
        self._model = model
        self._source = source
        self._options = options
        self._spec: ModelSpec | None = None
        self._read = options.first
        self._ended = False
        self._waiting: deque[_Window] = deque()
        self._under_way: deque[_Window] = deque()
        self._held = 0  # rows of these
        self._most = 1  # rows that may be
        self._last_lane: LaneClient | None = None
        self._max_batch = 1
        self._current: _Window | None = None
        self._good_ns = time.monotonic_ns()  # when the pool last answered

    def drop(self) -> None:
        windows = [*self._under_way, *filter(None, [self._current])]
        self._under_way.clear()
        for window in windows:
            if window.lane_client is not None and window.under_way:
                self._driver.drop(window.lane_client, list(window.under_way))
                window.under_way.clear()

    async def next_outcome(self) -> WindowOutcome | None:
        """The end of the next window; None after the last."""
        await self._fill()
        if not self._under_way:
            return None
        window = await self._first_done()
        self._current = window
        outcome = await self._outcome(window)
        self._current = None
        return outcome

    # -- sending ------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Read and send as much as may be under way, at least one window if any row is left."""
        while True:
            if not self._waiting and not await self._take():
                return
            window = self._waiting[0]
            if self._under_way and self._held + window.call.n > self._most:
                return  # the other windows of its block went first
            if await self._send(window):
                self._waiting.remove(window)
                self._under_way.append(window)
                self._held += window.call.n
            elif self._under_way and window in self._waiting:
                return  # what is under way makes room

    async def _take(self) -> bool:
        """Read a window, if the rows that are held leave room for one."""
        if self._ended:
            return False
        # The lane of the window before tells sizes as well; rows go through the one of their time.
        lane_client = self._last_lane or await self._lane()
        bound = lane_client.allocator.bound
        self._most = bound if self._options.window is None else min(bound, self._options.window)
        size = window_rows(self._most, self._max_batch)
        if self._under_way and self._held + size > self._most:
            return False
        at_once = size * _BLOCK_WINDOWS if self._source.holds_rows else size
        found = await self._source.take(at_once, lane_client.spec)
        if found is None:
            self._ended = True
            return False
        call = self._options.call(found.tensors, self._read, found.outputs_to)
        if found.n > size:
            call.check_whole(lane_client, self._driver.facts(self._model))
        self._waiting += [_Window(one, places=range(one.n)) for one in call.cut(size)]
        self._read += found.n
        return True

    async def _lane(self) -> LaneClient:
        """The present lane client, waited for while the pool is away."""
        while True:
            try:
                lane_client = await self._driver.lane_client(self._model)
            except Retryable as error:
                await self._weather(error)
                continue
            if lane_client is self._last_lane:
                return lane_client
            spec = lane_client.spec
            if self._spec is not None and not can_join(self._spec, spec):
                raise InvalidRequest(
                    f"model {self._model!r} got other tensors while the rows of one map were sent;"
                    " those that were not yielded need a new one"
                )
            self._spec = spec
            self._max_batch = self._driver.facts(self._model).max_batch
            self._last_lane = lane_client
            return lane_client

    async def _send(self, window: _Window, *, alone: bool = False) -> bool:
        """Send a window. False where it is to be tried again: after it was cut, as others are to be
        taken first, or after a wait. alone: others are not taken before it."""
        call, driver = window.call, self._driver
        lane_client = await self._lane()
        call.check(lane_client, driver.facts(self._model))
        if not call.sends:
            return True
        bound = lane_client.most_rows(call.rows)
        if call.rows.n > bound and not alone:
            self._cut(window, bound)
            return False
        call.begin()
        try:
            if await driver.submit(lane_client, call.rows, call, window.under_way):
                window.lane_client = lane_client
                return True
            if not self._holds_slots():
                await driver.wait_for_room(lane_client, call.rows, call)
        except Moved:
            driver.leave_moved()
        except DeadlineExceeded:
            pass  # there was no room for a while
        except Retryable as error:
            if alone or not self._holds_slots():
                await self._weather(error)
        return False

    def _holds_slots(self) -> bool:
        return any(window.under_way for window in self._under_way)

    def _cut(self, window: _Window, bound: int) -> None:
        """The lane is too small for the window, as one that came with a reload, or its arena for
        rows that are so large: it goes in parts."""
        self._waiting.remove(window)
        call = window.call
        for start in reversed(range(0, call.n, bound)):
            part = call.part(range(start, min(start + bound, call.n)))
            self._waiting.appendleft(_Window(part, places=range(part.n)))

    async def _weather(self, error: PoolError) -> None:
        """Wait for the pool, or raise the error as it will not come back or was waited for."""
        if not self._driver.connects_again:
            raise error
        over_s = (time.monotonic_ns() - self._good_ns) / 1e9
        if not isinstance(error, Overloaded) and over_s >= self._options.outage_s:
            raise error
        wait_s = error.retry_after_ms / 1000 if isinstance(error, Retryable) else _MOST_PAUSE_S
        await self._driver.pause(min(max(wait_s, _LEAST_PAUSE_S), _MOST_PAUSE_S))

    # -- results ------------------------------------------------------------------------

    async def _first_done(self) -> _Window:
        """The window whose end is next, no more among those under way."""
        windows = self._under_way
        if not self._options.ordered:
            if not any(window.is_done for window in windows):
                await self._driver.look()
            if not any(window.is_done for window in windows):
                lane_client = windows[0].lane_client
                assert lane_client is not None
                same = [w.under_way[0] for w in windows if w.lane_client is lane_client]
                await self._driver.any_result(lane_client, same)
            done = next((window for window in windows if window.is_done), windows[0])
            windows.remove(done)
        else:
            done = windows.popleft()
        self._held -= done.call.n
        return done

    async def _outcome(self, window: _Window) -> WindowOutcome:
        """Wait for the end of a window; rows that weather ended are sent again."""
        call, ends, late = window.call, dict[int, Any](), 0
        await self._collect(window)
        if not call.errors and isinstance(window.answer, dict) and not _errors_in(window.answer):
            return WindowOutcome(call.start, call.n, window.answer, {})
        while again := self._settle(window, ends, late):
            late += any(isinstance(error, DeadlineExceeded) for error in again.values())
            await self._weather(next(iter(again.values())))
            places = list(again)
            self._current = window = _Window(call.part(places), places=places)
            while not await self._send(window, alone=True):
                await self._make_room()
            await self._collect(window)
        return _joined(call, ends)

    async def _collect(self, window: _Window) -> None:
        """Wait for the answer of a window, and take it out of the lane."""
        if window.answer is not None or not window.call.sends:
            return
        lane_client, pending = window.lane_client, window.under_way[0]
        assert lane_client is not None
        if pending.remaining and time.monotonic_ns() >= pending.deadline_ns:
            await self._driver.look()  # it may have come while the caller was busy elsewhere
        try:
            window.answer = await self._driver.result(lane_client, window.under_way, window.call)
            self._good_ns = time.monotonic_ns()
        except PoolError as error:
            window.answer = error
            window.may_have_run = pending.may_have_run
            if window.under_way:
                self._driver.drop(lane_client, [window.under_way.popleft()])

    async def _make_room(self) -> None:
        """Take the answer of a window out of the lane, where one is in it."""
        for window in self._under_way:
            if window.under_way:
                return await self._collect(window)

    def _settle(self, window: _Window, ends: dict[int, Any], late: int) -> dict[int, PoolError]:
        """Note the ends of a window's rows by their places; returns the errors of those that are to
        be sent again."""
        call, answer = window.call, window.answer
        again: dict[int, PoolError] = {}
        for own, error in call.errors.items():
            ends[window.places[own]] = error
        if answer is None:
            return again
        errors = {} if isinstance(answer, PoolError) else _errors_in(answer)
        for at, own in enumerate(call.places):
            place = window.places[own]
            # Each row has an error of its own, with its number.
            found = copy(answer) if isinstance(answer, PoolError) else errors.get(at)
            if found is None:
                assert isinstance(answer, dict)
                ends[place] = {name: part[at] for name, part in answer.items()}
            elif self._passes(found, window, late):
                again[place] = found
            else:
                ends[place] = found
        return again

    def _passes(self, error: PoolError, window: _Window, late: int) -> bool:
        """True for the error of a row that is none of the row's: it may be sent again."""
        if window.may_have_run and not window.call.idempotent:
            return False
        if isinstance(error, DeadlineExceeded):
            return self._options.timeout_s is None and late + 1 < _LATE_TRIES
        return isinstance(error, Retryable)


def _errors_in(answer: dict[str, Any]) -> dict[int, PoolError]:
    """The errors among the entries of lists, by their place."""
    first = next(iter(answer.values()))
    if not isinstance(first, list):
        return {}
    return {at: entry for at, entry in enumerate(first) if isinstance(entry, PoolError)}


def _joined(call: WindowCall, ends: dict[int, Any]) -> WindowOutcome:
    """The ends of all rows as lists with an entry for each row."""
    errors = {at: end for at, end in ends.items() if isinstance(end, PoolError)}
    for at, error in errors.items():
        error.row = call.start + at
    names = next((end.keys() for end in ends.values() if isinstance(end, dict)), ())
    outputs = {
        name: [ends[at] if at in errors else ends[at][name] for at in range(call.n)]
        for name in names
    }
    return WindowOutcome(call.start, call.n, outputs, errors)
