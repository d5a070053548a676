"""503 when the lane is above its watermark: how many come in, what the others are told."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
import numpy as np
import pytest

from batchpool.frontend.http.caller import flow_of, flow_of_name
from tests.unit.frontend.calls import affine, affine_answer, numbers, split
from tests.unit.frontend.frontend_double import Edge, edge, gathered
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Two

INFER = "/v2/models/affine/infer"
SLOTS = 20
BOUND = 18  # 90 %
REOPEN_BELOW = 16  # 80 %


async def ask(it: Edge, row: int, client: str = "", priority: int = 0) -> httpx.Response:
    fields = {"X-Client-Id": client, "X-Request-Priority": str(priority)}
    return await it.http.post(INFER, json=affine(row), headers=fields)


async def fill(it: Edge, rows: int, client: str = "") -> asyncio.Task[list[Any]]:
    """So many single rows more under way, held by the workers."""
    it.pool.hold = True
    slots = it.pool.lane_client("affine").allocator
    whole = slots.claimed + rows
    task = asyncio.create_task(gathered([ask(it, i, client) for i in range(rows)]))
    await until(lambda: slots.claimed == whole, f"{whole} slots are claimed")
    return task


def assert_overloaded(answer: httpx.Response) -> None:
    found = answer.json()
    assert (answer.status_code, found["code"]) == (503, "overloaded")
    assert answer.headers["content-type"] == "application/json"
    after_s = int(answer.headers["retry-after"])
    assert after_s == max(1, math.ceil(found["retry_after_ms"] / 1000))


@on_loop
async def test_the_bound_is_kept_round_after_round() -> None:
    """C27, C29: ten rounds admit the same number and leave no slot claimed."""
    async with edge(Affine, slots=SLOTS, max_batch=4) as it:
        lane_client = it.pool.lane_client("affine")
        refused = lane_client.lane.refused
        for _ in range(10):
            refused.set(0)
            it.pool.hold = True
            task = asyncio.create_task(gathered([ask(it, i) for i in range(3 * SLOTS)]))
            await until(lambda: refused.get() >= 3 * SLOTS - BOUND, "the others are refused")
            assert lane_client.allocator.claimed == BOUND
            it.pool.release()
            answers = await task
            accepted = [i for i, a in enumerate(answers) if a.status_code == 200]
            assert len(accepted) == BOUND
            for i, answer in enumerate(answers):
                if answer.status_code == 200:
                    assert split(answer)[0]["outputs"][0]["data"] == affine_answer(i)
                else:
                    assert_overloaded(answer)
            assert lane_client.allocator.claimed == 0
            assert refused.get() == 3 * SLOTS - BOUND


@on_loop
async def test_it_opens_again_below_80_percent() -> None:
    async with edge(Affine, slots=SLOTS, max_batch=1) as it:
        lane_client = it.pool.lane_client("affine")
        task = await fill(it, BOUND)
        assert_overloaded(await ask(it, 0))
        for left in range(BOUND, REOPEN_BELOW - 1, -1):
            assert lane_client.allocator.claimed == left
            assert_overloaded(await ask(it, 0))
            await it.pool.run_one_batch("affine")
            await until(lambda: lane_client.allocator.claimed < left, "the row is answered")  # noqa: B023
        it.pool.release()
        assert (await ask(it, 5)).status_code == 200
        assert [a.status_code for a in await task] == [200] * BOUND


@on_loop
async def test_the_lane_is_asked_when_the_headers_are_complete() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        task = await fill(it, BOUND)
        asked = asyncio.Event()

        async def body() -> Any:
            asked.set()
            yield b"not even JSON"

        answer = await it.http.post(INFER, content=body())
        assert_overloaded(answer)
        assert asked.is_set()  # taken and dropped after the answer
        it.pool.release()
        await task


@on_loop
async def test_the_lane_is_asked_again_at_the_claim() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        filled: list[asyncio.Task[list[Any]]] = []

        async def body() -> Any:
            yield b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],'
            filled.append(await fill(it, BOUND))
            yield b'"data":[1,2,3,4]}]}'

        assert_overloaded(await it.http.post(INFER, content=body()))
        it.pool.release()
        await filled[0]


@on_loop
async def test_a_body_under_way_claims_nothing() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        lane_client = it.pool.lane_client("affine")

        async def body() -> Any:
            yield b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],'
            await asyncio.sleep(0)
            assert lane_client.allocator.claimed == 0
            yield b'"data":[1,2,3,4]}]}'

        assert (await it.http.post(INFER, content=body())).status_code == 200


@on_loop
async def test_a_request_that_would_pass_the_bound_is_refused_whole() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        task = await fill(it, 10)
        assert_overloaded(await it.http.post(INFER, json=affine(*range(9))))
        assert it.pool.lane_client("affine").allocator.claimed == 10
        it.pool.release()
        await task
        assert (await it.http.post(INFER, json=affine(*range(9)))).status_code == 200


@on_loop
async def test_everything_but_infer_answers_as_usual_meanwhile() -> None:
    """C30: live, ready and metadata at 100 % refusals."""
    async with edge(Affine, Two, slots=SLOTS) as it:
        task = await fill(it, BOUND)
        assert_overloaded(await ask(it, 0))
        for path in (
            "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/affine",
            "/v2/models/affine/ready", "/v2/models/affine/config", "/",
        ):  # fmt: skip
            assert (await it.http.get(path)).status_code == 200, path
        it.pool.release()
        tag = numbers("tag", np.array([[1]]), "INT64")
        assert (await it.http.post("/v2/models/two/infer", json={"inputs": [tag]})).is_success
        await task


@on_loop
async def test_retry_after_is_the_measured_drain_rate() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        lane_client = it.pool.lane_client("affine")
        task = await fill(it, BOUND)
        assert (await ask(it, 0)).json()["retry_after_ms"] == 1000  # nothing was measured yet
        lane_client.drain_rate.count(1, 10**9)
        lane_client.drain_rate.count(200, 2 * 10**9)  # 200 rows a second
        over = BOUND + 1 - REOPEN_BELOW
        assert (await ask(it, 0)).json()["retry_after_ms"] == over * 5
        it.pool.release()
        await task


@on_loop
async def test_a_bulk_caller_has_half_while_another_is_active() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        lane_client = it.pool.lane_client("affine")
        tasks = [await fill(it, 1, "interactive"), await fill(it, BOUND // 2, "bulk")]
        for _ in range(3):
            refused = await ask(it, 0, "bulk")
            assert_overloaded(refused)
            assert refused.json()["error"] == (
                "model 'affine' is overloaded: this flow holds 9 of 20 slots, and half (9) is its"
                " share while others are active"
            )
            assert_overloaded(await ask(it, 0, "bulk", priority=1))
            tasks.append(await fill(it, 1, "interactive"))
        assert lane_client.lane.refused_share.get() == 6
        tasks.append(await fill(it, 5, "interactive"))
        assert lane_client.allocator.claimed == BOUND
        it.pool.release()
        answers = [answer for task in tasks for answer in await task]
        assert [answer.status_code for answer in answers] == [200] * BOUND
        assert lane_client.allocator.held == {}


@on_loop
async def test_a_request_larger_than_the_share_comes_in_once_at_a_time() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        tasks = [await fill(it, 2, "interactive")]
        large = {"json": affine(*range(12)), "headers": {"X-Client-Id": "bulk"}}
        first = asyncio.create_task(it.http.post(INFER, **large))
        await until(
            lambda: it.pool.lane_client("affine").allocator.claimed == 14, "it is under way"
        )
        assert_overloaded(await it.http.post(INFER, **large))
        tasks.append(await fill(it, 4, "interactive"))
        it.pool.release()
        assert (await first).status_code == 200
        assert (await it.http.post(INFER, **large)).status_code == 200
        for task in tasks:
            await task


@on_loop
async def test_a_raised_priority_uses_the_last_tenth() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        task = await fill(it, BOUND, "bulk")
        assert_overloaded(await ask(it, 0, "interactive"))
        assert_overloaded(await ask(it, 0, "interactive", priority=128))
        raised = asyncio.create_task(ask(it, 3, "interactive", priority=127))
        slots = it.pool.lane_client("affine").allocator
        await until(lambda: slots.claimed == BOUND + 1, "it is under way")
        it.pool.release()
        assert split(await raised)[0]["outputs"][0]["data"] == affine_answer(3)
        await task


@pytest.mark.parametrize("header", [{"X-Client-Id": "alice"}, {}])
@on_loop
async def test_flows_have_names(header: dict[str, str]) -> None:
    async with edge(Affine, slots=SLOTS) as it:
        assert (await it.http.post(INFER, headers=header, json=affine(1))).is_success
        lane = it.pool.lane_client("affine").lane
        origin = flow_of(b"127.0.0.1")
        expected = flow_of_name(origin, b"alice") if header else origin
        assert lane.flow[0] == expected


@on_loop
async def test_priority_reaches_the_lane() -> None:
    async with edge(Affine, slots=SLOTS) as it:
        lane = it.pool.lane_client("affine").lane
        assert (
            await it.http.post(INFER, headers={"X-Request-Priority": "7"}, json=affine(1))
        ).is_success
        more = affine(1, parameters={"priority": 9})
        assert (await it.http.post(INFER, json=more)).is_success
        assert lane.priority[:2].tolist() == [7, 9]
