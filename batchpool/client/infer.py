"""The window loop of `infer`, written once for the threaded and the asyncio client.

A call of many rows goes to its lane in windows; a model that a reload replaces gets the rest of
them through its new lane. The loop decides what comes next and does nothing else: a `Driver`
submits, waits and takes results. The driver of the asyncio client suspends in its waits. That of
the threaded client blocks its thread instead and never suspends, so `run_blocking` can run the
same coroutine without an event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from batchpool.client.call import Call
from batchpool.client.chunks import cut, join, part, window_rows
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.refused_rows import with_refused
from batchpool.core.errors import OF_A_ROW, Moved, PoolError
from batchpool.core.tensors.rows import Rows

T = TypeVar("T")


class Driver(Protocol):
    """The steps of a call that differ between the two clients."""

    async def lane_client(self, model: str) -> LaneClient:
        """The present lane client of a model; connects and opens a lane where needed."""

    def facts(self, model: str) -> ModelFacts:
        """The limits of a model."""

    async def submit(
        self,
        lane_client: LaneClient,
        window: Rows,
        call: Call,
        under_way: deque[PendingRequest],
    ) -> bool:
        """Submit a window and add it to under_way; False when the lane has no room.

        Raises Moved, or one of the 503s.
        """

    async def wait_for_room(self, lane_client: LaneClient, window: Rows, call: Call) -> None:
        """Wait until these rows may fit; DeadlineExceeded when the call's time is up."""

    async def result(
        self, lane_client: LaneClient, under_way: deque[PendingRequest], call: Call
    ) -> dict[str, Any]:
        """Wait for the oldest request, remove it from under_way, and return its outputs."""

    def drop(self, lane_client: LaneClient, requests: Iterable[PendingRequest]) -> None:
        """Cancel requests that nobody waits for any more, and free those that are finished."""

    def leave_moved(self) -> None:
        """Forget the lane clients whose models have moved to other lanes."""


async def infer(driver: Driver, model: str, call: Call) -> dict[str, Any]:
    """Run a call's rows; returns {output: array [n, *row shape]}, or a list of n where rows differ
    in size or may be errors."""
    while True:
        lane_client = await driver.lane_client(model)
        call.check(lane_client, driver.facts(model))
        try:
            return with_refused(await _run(driver, lane_client, call), call.refused)
        except Moved:  # before a row was sent, or to other tensors: the call begins anew
            driver.leave_moved()


async def _run(driver: Driver, lane_client: LaneClient, call: Call) -> dict[str, Any]:
    """Send all rows, over several lanes if the model moves; Moved if the call must begin anew."""
    results: list[dict[str, Any]] = []
    sent = await _send(driver, lane_client, call, 0, results)
    while sent < call.rows.n:
        driver.leave_moved()
        old = lane_client.spec
        lane_client = await driver.lane_client(old.name)
        call.check_rest(old, lane_client.spec, call.rows.n - sent)
        sent += await _send(driver, lane_client, call, sent, results)
    return join(results)


async def _send(
    driver: Driver,
    lane_client: LaneClient,
    call: Call,
    start: int,
    results: list[dict[str, Any]],
) -> int:
    """Send the rows from `start` on to one lane and append their results.

    Returns the number of rows sent, which is less than all when the lane has moved meanwhile.
    Raises Moved if it moves before the first row of the call is sent.
    """
    rows = part(call.rows, start, call.rows.n) if start else call.rows
    size, bound = rows.n, lane_client.most_rows(rows)
    if size > bound and call.wait_for_room:
        size = window_rows(bound, driver.facts(lane_client.spec.name).max_batch)
    under_way: deque[PendingRequest] = deque()
    sent = taken = 0
    unsent: PoolError | None = None  # why the rest of the rows is not sent

    async def take_oldest() -> None:
        nonlocal taken
        oldest = under_way[0]
        try:
            results.append(await driver.result(lane_client, under_way, call))
        except PoolError as error:
            if not call.returns_errors:
                if isinstance(error, OF_A_ROW) and call.rows.n > 1:
                    # Its row counts within the call, not within the window.
                    error.row = start + taken + (error.row or 0)
                raise
            if under_way and under_way[0] is oldest:
                driver.drop(lane_client, [under_way.popleft()])
            results.append(call.error_rows(lane_client, oldest.n, error))
        taken += oldest.n

    try:
        for window in cut(rows, size):
            if start + sent:
                call.begin_window()
            try:
                while not await driver.submit(lane_client, window, call, under_way):
                    if under_way:
                        await take_oldest()
                    else:
                        await driver.wait_for_room(lane_client, window, call)
            except Moved:
                if not start + sent:
                    raise
                break
            except PoolError as error:
                if not (call.returns_errors and start + sent):
                    raise
                unsent = error
                break
            sent += window.n
        while under_way:
            await take_oldest()
        if unsent is not None:
            results.append(call.error_rows(lane_client, rows.n - sent, unsent))
            sent = rows.n
    except BaseException:
        driver.drop(lane_client, under_way)
        raise
    return sent


def run_blocking(steps: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine none of whose awaits suspends."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    steps.close()
    raise RuntimeError("a step of the threaded client suspended")
