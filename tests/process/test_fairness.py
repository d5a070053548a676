"""Division of a lane's slots: bulk and interactive callers, and raised priorities.

A gated row is under way until its test opens the gate, however fast or slow the machine is.
"""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import pytest

import batchpool as bp
from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.test_http import connections, infer_url, outputs, tensor

SLOTS, BOUND, SHARE = 20, 18, 9
AT_SHARE = (
    f"model 'gated' is overloaded: this flow holds {SHARE} of {SLOTS} slots, and half ({SHARE})"
    " is its share while others are active"
)
FULL = f"model 'gated' is overloaded: {BOUND} of {SLOTS} slots are in use"
# One row a batch, so that rows end one by one; the gates may stay shut for as long as it takes.
GATED = {
    "import": "Gated",
    "slots": SLOTS,
    "max_batch": 1,
    "max_wait_ms": 0,
    "policy": "fixed",
    "request_timeout_s": 300,
    "batch_timeout_s": 300,
}


@contextmanager
def gated(workers: int = 1) -> Iterator[Pool]:
    model = {**GATED, "workers_per_device": workers}
    with serving(model, server={"frontends": 1, "client_slots": SLOTS}) as pool:
        yield pool


def claimed(pool: Pool) -> int:
    return sum(lane["claimed"] for lane in pool.status()["lanes"])


async def soon(condition: Any, what: str) -> None:
    await asyncio.to_thread(until, condition, what)


class Caller:
    """A caller over HTTP, by its X-Client-Id. texts: how often it was refused, and why."""

    def __init__(self, pool: Pool, http: aiohttp.ClientSession, name: str) -> None:
        self._url = infer_url(pool, "gated")
        self._http = http
        self._name = name
        self.answered = 0
        self.texts: Counter[str] = Counter()

    async def infer(
        self,
        tag: int,
        gate: int = 0,
        seconds: float = 0.0,
        priority: int = 0,
        parameters: dict[str, int] | None = None,
    ) -> bool:
        """True if a row was answered, False if it was refused for now. priority: in the header."""
        inputs = [
            tensor("tag", "INT64", [tag]),
            tensor("seconds", "FP32", [seconds]),
            tensor("gate", "INT64", [gate]),
        ]
        headers = {"X-Client-Id": self._name, "X-Request-Priority": str(priority)}
        form = {"inputs": inputs, "parameters": parameters or {}}
        async with self._http.post(self._url, json=form, headers=headers) as response:
            answer = await response.json()
            if response.status == 200:
                assert outputs(answer)["tag"].tolist() == [tag]
                self.answered += 1
                return True
            assert (response.status, answer["code"]) == (503, "overloaded"), answer
            assert int(response.headers["Retry-After"]) >= 1
            assert 1 <= answer["retry_after_ms"] <= 30_000
            self.texts[answer["error"]] += 1
            return False

    def start(self, tags: range, **more: Any) -> list[asyncio.Task[bool]]:
        return [asyncio.create_task(self.infer(tag, **more)) for tag in tags]


@asynccontextmanager
async def callers(pool: Pool, *names: str) -> AsyncIterator[list[Caller]]:
    async with connections(100) as http:
        yield [Caller(pool, http, name) for name in names]


@asynccontextmanager
async def crowding(caller: Caller) -> AsyncIterator[None]:
    """Forty loops that ask for single rows again and again, whatever the answer."""
    stop = False

    async def run(tag: int) -> None:
        while not stop:
            if not await caller.infer(tag, seconds=0.01):
                await asyncio.sleep(0.01)  # the others' turn; not a wait for anything

    loops = [asyncio.create_task(run(tag)) for tag in range(40)]
    try:
        yield
    finally:
        stop = True
        await asyncio.gather(*loops)


@pytest.mark.long
def test_a_bulk_caller_keeps_its_part_and_an_interactive_one_is_never_refused() -> None:
    """C67: on one front end."""

    async def work(pool: Pool) -> None:
        async with callers(pool, "bulk", "interactive") as (bulk, interactive):
            # Keeps its caller active for the whole time, however late the next call comes.
            held = interactive.start(range(1), gate=1)
            await soon(lambda: claimed(pool) == 1, "the held row")
            async with crowding(bulk):
                seen = []
                while bulk.texts[AT_SHARE] < 100 or bulk.answered < 100:
                    for tag in range(10):
                        assert await interactive.infer(tag)
                    seen.append(await asyncio.to_thread(claimed, pool))
                assert set(bulk.texts) == {AT_SHARE}, "the lane was never full"
                assert max(seen) <= SHARE + 1, "the bulk caller's part and the held row"
                await soon(lambda: claimed(pool) == SHARE + 1, "all of its part in use")
                open_gate(pool, 1)
                assert await held[0]
                # A second after the last call of the other it may have the whole lane.
                await soon(lambda: bulk.texts[FULL], "the bulk caller with the whole lane")
            assert interactive.texts == {}

    with gated(workers=2) as pool:
        asyncio.run(work(pool))


def test_a_newcomer_gets_its_part_of_a_lane_that_another_had_for_itself() -> None:
    async def get_in(newcomer: Caller) -> None:
        while not await newcomer.infer(-1, gate=1):
            await asyncio.sleep(0.01)  # the others' turn

    async def work(pool: Pool) -> None:
        async with callers(pool, "bulk", "newcomer") as (bulk, newcomer), crowding(bulk):
            await soon(lambda: bulk.texts[FULL], "the bulk caller with the whole lane")
            inside = asyncio.create_task(get_in(newcomer))
            await soon(lambda: claimed(pool) == SHARE + 1, "the newcomer beside half of the lane")
            tries = newcomer.texts.total()
            rows: list[asyncio.Task[bool]] = []
            for tag in range(0, 20, 2):
                # One row at most stands behind the held one, until the gate opens.
                pair = newcomer.start(range(tag, tag + 2))
                await asyncio.wait(pair, return_when=asyncio.FIRST_COMPLETED)
                rows += pair
            open_gate(pool, 1)
            assert all(await asyncio.gather(*rows))
            assert newcomer.texts.total() == tries
            await inside

    with gated(workers=2) as pool:
        asyncio.run(work(pool))


def test_over_http_a_raised_priority_goes_in_above_the_watermark() -> None:
    async def work(pool: Pool) -> None:
        async with callers(pool, "bulk", "other") as (bulk, other):
            tasks = bulk.start(range(BOUND), gate=1)
            await soon(lambda: claimed(pool) == BOUND, "a lane full up to its watermark")
            for priority in (0, 128, 255):
                assert not await other.infer(0, priority=priority)
            assert not await other.infer(0, parameters={"priority": 1}), (
                "nobody knows of it at the headers"
            )
            assert other.texts == {FULL: 4}
            for tag, priority in enumerate((1, 127)):
                # Behind a gate too: one that the batcher sees before the others goes first.
                tasks += other.start(range(tag, tag + 1), gate=1, priority=priority)
                now = BOUND + 1 + tag
                await soon(lambda now=now: claimed(pool) == now, f"{now} slots in use")
            assert not await other.infer(0, priority=1)
            assert other.texts[FULL.replace(f" {BOUND} ", f" {SLOTS} ")] == 1
            open_gate(pool, 1)
            assert all(await asyncio.gather(*tasks))

    with gated() as pool:
        asyncio.run(work(pool))


def test_a_local_client_with_a_raised_priority_goes_in_above_the_watermark() -> None:
    def row(tag: int, gate: int = 0) -> dict[str, Any]:
        return {"tag": [tag], "seconds": [0.0], "gate": [gate]}

    with (
        gated() as pool,
        pool.client() as client,
        cf.ThreadPoolExecutor(2) as threads,
        opened_at_last(pool, 1),
    ):
        client.infer("gated", row(0))  # the worker has mapped its lane
        futures = [client.submit("gated", row(tag, 1)) for tag in range(BOUND)]
        for priority in (0, 128, 255):
            with pytest.raises(bp.Overloaded, match=FULL) as caught:
                client.submit("gated", row(0), priority=priority)
            assert 1 <= caught.value.retry_after_ms <= 30_000
        # One call that waits for room, and one that needs not wait.
        waits = threads.submit(client.infer, "gated", row(100))
        # Behind the gate too: a batcher that was late to see the others would run this one first.
        raised = threads.submit(client.infer, "gated", row(101, 1), priority=1)
        until(lambda: claimed(pool) == BOUND + 1, "the raised call")
        futures.append(client.submit("gated", row(BOUND, 1), priority=127))
        assert claimed(pool) == SLOTS
        with pytest.raises(bp.Overloaded, match=f"{SLOTS} of {SLOTS} slots are in use"):
            client.submit("gated", row(0), priority=1)
        open_gate(pool, 1)
        tags = [future.result(PATIENCE_S)["tag"].tolist() for future in futures]
        assert tags == [[tag] for tag in range(BOUND + 1)]
        assert waits.result(PATIENCE_S)["tag"].tolist() == [100]
        assert raised.result(PATIENCE_S)["tag"].tolist() == [101]


def test_an_async_client_with_a_raised_priority_goes_in_above_the_watermark() -> None:
    async def work(pool: Pool) -> None:
        async with pool.async_client() as client:

            async def infer(tag: int, gate: int = 0, **more: Any) -> None:
                inputs = {"tag": [tag], "seconds": [0.0], "gate": [gate]}
                assert (await client.infer("gated", inputs, **more))["tag"].tolist() == [tag]

            await infer(0)  # the worker has mapped its lane
            tasks = [asyncio.create_task(infer(tag, 1)) for tag in range(BOUND)]
            await soon(lambda: claimed(pool) == BOUND, "a lane full up to its watermark")
            with pytest.raises(bp.Overloaded, match=FULL):
                await infer(0, wait_for_room=False)
            tasks.append(asyncio.create_task(infer(100)))
            tasks.append(asyncio.create_task(infer(101, 1, priority=1)))
            await soon(lambda: claimed(pool) == BOUND + 1, "the raised call")
            open_gate(pool, 1)
            await asyncio.gather(*tasks)

    with gated() as pool:
        asyncio.run(work(pool))
