"""Windows of one request: how many are under way, the full lane, a caller that leaves, a reload."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from batchpool.core.errors import InvalidInput
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.frontend.asgi.windows import Outputs, Windows
from batchpool.frontend.http.caller import Caller
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_head import RequestHead
from batchpool.wire.request import InferRequest
from tests.unit.frontend.frontend_double import Edge, edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Embed


class NeverLost:
    """A caller that stays until it is told to leave."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}


def windows(of: Edge, texts: list[str], caller: NeverLost | None = None) -> Windows:
    endpoint = of.view.endpoints.find("embed")
    rows: Rows = check_rows(endpoint.endpoint.facts.spec, {"text": texts})
    request = InferRequest(None, rows, (), None, 0, "test")
    head = RequestHead.of({}, Caller("192.0.2.1"))
    body = RequestBody((caller or NeverLost()).receive, {})
    return Windows(endpoint, head, request, ["vector"], body)


def lengths(parts: list[Outputs] | None) -> list[float]:
    assert parts is not None
    return [row[0] for part in parts for row in part["vector"].tolist()]


def claimed(of: Edge) -> int:
    return of.pool.lane_client("embed").allocator.claimed


@on_loop
async def test_windows_leave_half_of_the_lane_to_others() -> None:
    async with edge(Embed, slots=64, max_batch=4) as it:
        it.pool.hold = True
        sent = asyncio.create_task(windows(it, ["ab"] * 200).outputs())
        await until(lambda: claimed(it), "rows under way")
        assert 0 < claimed(it) <= 32
        it.pool.release()
        assert lengths(await sent) == [2.0] * 200
        assert claimed(it) == 0


@on_loop
async def test_a_lane_of_one_batch_is_left_to_others_by_half_as_well() -> None:
    async with edge(Embed, slots=16, max_batch=16) as it:
        it.pool.hold = True
        sent = asyncio.create_task(windows(it, ["ab"] * 100).outputs())
        await until(lambda: claimed(it), "rows under way")
        assert claimed(it) == it.pool.lane_client("embed").allocator.share == 7
        it.pool.release()
        assert lengths(await sent) == [2.0] * 100


@on_loop
async def test_a_request_that_fits_the_lane_goes_at_once() -> None:
    async with edge(Embed, slots=64, max_batch=4) as it:
        parts = await windows(it, ["ab"] * 50).outputs()
        assert parts is not None
        assert len(parts) == 1


@on_loop
async def test_windows_behind_one_that_failed_are_taken_back() -> None:
    async with edge(Embed, slots=64, max_batch=4) as it:
        with pytest.raises(InvalidInput) as caught:
            await windows(it, ["a"] * 17 + ["no"] + ["a"] * 182).outputs()
        assert caught.value.row == 17
        await until(lambda: claimed(it) == 0, "free slots")


@on_loop
async def test_a_caller_that_leaves_gets_nothing_and_its_rows_are_taken_back() -> None:
    async with edge(Embed, slots=64, max_batch=4) as it:
        it.pool.hold = True
        caller = NeverLost()
        sent = asyncio.create_task(windows(it, ["a"] * 200, caller).outputs())
        await until(lambda: claimed(it), "rows under way")
        caller.leaves.set()
        assert await sent is None
        it.pool.release()
        await until(lambda: claimed(it) == 0, "free slots")


@on_loop
async def test_a_cancelled_request_frees_its_slots() -> None:
    async with edge(Embed, slots=64, max_batch=4) as it:
        it.pool.hold = True
        sent = asyncio.create_task(windows(it, ["a"] * 200).outputs())
        await until(lambda: claimed(it), "rows under way")
        sent.cancel()
        with suppress(asyncio.CancelledError):
            await sent
        it.pool.release()
        await until(lambda: claimed(it) == 0, "free slots")


@on_loop
async def test_windows_go_on_in_the_lane_that_a_reload_brings() -> None:
    async with edge(Embed, slots=64, max_batch=4) as it:
        it.pool.hold = True
        sent = asyncio.create_task(windows(it, ["abc"] * 200).outputs())
        await until(lambda: claimed(it), "rows under way")
        old = it.pool.lane_client("embed")
        hear = it.pool.move("embed", Embed)
        hear()
        it.view.learn()
        it.pool.release()
        assert lengths(await sent) == [3.0] * 200
        assert it.pool.lane_client("embed") is not old
