"""HTTP and local clients at once against a real pool: batches, overload, deaths, the end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import aiohttp
import numpy as np
import pytest

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until

ROUNDS = 2
WINDOW = {"policy": "fixed", "max_wait_ms": 20, "max_batch": 64}


def infer_url(pool: Pool, model: str) -> str:
    return f"http://127.0.0.1:{pool.port}/v2/models/{model}/infer"


def tensor(name: str, datatype: str, array: Any) -> dict[str, Any]:
    loose = np.asarray(array)
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(loose.shape),
        "data": loose.ravel().tolist(),
    }


def probe(tags: list[int], seconds: float = 0.0) -> dict[str, Any]:
    return {
        "inputs": [
            tensor("tag", "INT64", tags),
            tensor("seconds", "FP32", np.full(len(tags), seconds)),
        ]
    }


def outputs(answer: Any) -> dict[str, Any]:
    return {o["name"]: np.reshape(o["data"], o["shape"]) for o in answer["outputs"]}


async def ask(http: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    async with http.post(url, json=body) as response:
        return response.status, await response.json(content_type=None)


def connections(count: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=count), timeout=aiohttp.ClientTimeout(PATIENCE_S)
    )


def rows_per_batch(pool: Pool, model: str) -> float:
    return float(pool.tally(model)["mean_batch"])


def test_sixty_four_single_requests_form_large_batches() -> None:
    async def work(pool: Pool) -> None:
        async with connections(64) as http:

            async def caller(first: int) -> None:
                for tag in range(first, 1280, 64):
                    status, answer = await ask(http, infer_url(pool, "probe"), probe([tag]))
                    assert status == 200, answer
                    assert outputs(answer)["tag"].tolist() == [tag]

            await asyncio.gather(*(caller(i) for i in range(64)))

    with serving({"import": "Probe", **WINDOW}, server={"frontends": 2}) as pool:
        asyncio.run(work(pool))
        assert pool.tally("probe")["rows"] == 1280
        assert rows_per_batch(pool, "probe") > 4  # 16 on a machine with 15 programs a core


def test_requests_of_many_shapes_over_both_roads_at_once() -> None:
    """C05, C07, C08: 10, 2, 10, 1 and 64 rows of 0 to 64 numbers each, every row tagged, HTTP and
    local."""

    def rows(seed: int, n: int) -> Any:
        width = seed * 7 % 65
        return np.arange(seed * 10_000, seed * 10_000 + n * width).reshape(n, width)

    async def work(pool: Pool) -> None:
        url = infer_url(pool, "ragged")
        async with connections(32) as http, pool.async_client() as local:

            async def over_http(seed: int, n: int) -> None:
                ids = rows(seed, n)
                status, answer = await ask(http, url, {"inputs": [tensor("ids", "INT64", ids)]})
                assert status == 200, answer
                found = outputs(answer)
                assert np.array_equal(found["next"], ids + 1)
                assert np.array_equal(found["sum"], ids.sum(axis=1))

            async def over_memory(seed: int, n: int) -> None:
                ids = rows(seed, n)
                found = await local.infer("ragged", ids=ids)
                assert np.array_equal(found["next"], ids + 1)
                assert np.array_equal(found["sum"], ids.sum(axis=1))

            sizes = [10, 2, 10, 1, 64] * 16
            roads = (over_http, over_memory)
            calls = [roads[seed % 2](seed, n) for seed, n in enumerate(sizes)]
            await asyncio.gather(*calls)

    with serving({"import": "Ragged", **WINDOW}, server={"frontends": 2}) as pool:
        asyncio.run(work(pool))
        assert rows_per_batch(pool, "ragged") > 16


@pytest.mark.long
def test_a_slow_model_under_five_hundred_requests_answers_200_or_503_only() -> None:
    """C27, C29, C30: 200 or 503 and nothing else, health answers, and capacity is back each
    time."""
    slots = 200
    bound = 180
    seen: list[int] = []

    async def work(pool: Pool) -> Counter[int]:
        url = infer_url(pool, "probe")
        counts: Counter[int] = Counter()
        async with connections(500) as http:

            async def caller(tag: int) -> None:
                status, answer = await ask(http, url, probe([tag], 0.05))
                counts[status] += 1
                if status == 200:
                    assert outputs(answer)["tag"].tolist() == [tag]
                else:
                    assert answer["code"] == "overloaded"
                    assert answer["retry_after_ms"] >= 1

            async def watch() -> None:
                while True:
                    seen.append(sum(lane["claimed"] for lane in pool.status()["lanes"]))
                    live = f"http://127.0.0.1:{pool.port}/v2/health/live"
                    for path in (live, live.replace("live", "ready"), url.removesuffix("/infer")):
                        async with http.get(path) as response:
                            assert response.status == 200
                    await asyncio.sleep(0.02)

            watching = asyncio.create_task(watch())
            await asyncio.gather(*(caller(i) for i in range(1000)))
            watching.cancel()
            # Everything is answered, so the full capacity must be back.
            for again in range(ROUNDS):
                before = counts.copy()
                first = 10_000 * (again + 1)
                await asyncio.gather(*(caller(first + i) for i in range(bound)))
                assert (counts - before)[200] == bound, counts - before
        return counts

    table = {"import": "Probe", "slots": slots, "max_batch": 8, "max_wait_ms": 0}
    with serving(table, server={"frontends": 1}) as pool:
        counts = asyncio.run(work(pool))
        assert set(counts) == {200, 503}
        assert sum(counts.values()) == 1000 + ROUNDS * bound
        assert max(seen) <= bound
        until(lambda: not any(lane["claimed"] for lane in pool.status()["lanes"]), "empty lanes")
        assert pool.tally("probe")["queued"] == 0


@pytest.mark.long
def test_a_front_end_that_is_killed_comes_back_and_its_lanes_are_taken_back() -> None:
    with serving("Probe", server={"frontends": 2}) as pool:
        (first, second) = pool.pids("frontend")
        os.kill(first, signal.SIGKILL)

        def is_back() -> bool:
            pids = pool.pids("frontend")
            return len(pids) == 2 and first not in pids and second in pids

        until(is_back, "the restarted front end")

        async def work() -> None:
            async with connections(16) as http:

                async def caller(tag: int) -> None:
                    status, answer = await ask(http, infer_url(pool, "probe"), probe([tag]))
                    assert status == 200, answer
                    assert outputs(answer)["tag"].tolist() == [tag]

                await asyncio.gather(*(caller(i) for i in range(64)))

        asyncio.run(work())
        until(lambda: len(pool.status()["lanes"]) == 2, "the dead front end's lane to go")
        assert not any(str(first) in lane["owner"] for lane in pool.status()["lanes"])


def test_requests_in_flight_are_answered_when_the_pool_is_told_to_stop() -> None:
    """C41: callers over HTTP get theirs too."""
    with serving({"import": "Probe", "max_batch": 1}, server={"drain_s": 20}) as pool:

        async def work() -> None:
            url = infer_url(pool, "probe")
            async with connections(8) as http:
                asked = [asyncio.create_task(ask(http, url, probe([tag], 0.1))) for tag in range(8)]

                def all_accepted() -> bool:
                    return pool.tally("probe")["admitted"] == 8

                await asyncio.to_thread(until, all_accepted, "8 accepted requests")
                pool.signal_all(signal.SIGINT)
                for tag, (status, answer) in enumerate(await asyncio.gather(*asked)):
                    assert status == 200, answer
                    assert outputs(answer)["tag"].tolist() == [tag]

        asyncio.run(work())
        assert pool.wait_end() == 0


def test_a_dead_worker_costs_http_callers_only_time() -> None:
    table = {"import": "Probe", "workers_per_device": 2, "max_batch": 8}
    with serving(table) as pool:

        def both_serve() -> bool:
            return bool(pool.status()["models"]["probe"]["workers"] == "2/2")

        async def work() -> Counter[int]:
            counts: Counter[int] = Counter()
            url = infer_url(pool, "probe")
            async with connections(32) as http:

                async def caller(first: int) -> None:
                    tag = first
                    while len(killed) < 4:
                        tag += 32
                        status, answer = await ask(http, url, probe([tag], 0.005))
                        await asyncio.sleep(0.01)
                        counts[status] += 1
                        if status == 200:
                            assert outputs(answer)["tag"].tolist() == [tag]

                async def kill() -> None:
                    while len(killed) < 4:
                        done = counts.total()
                        while counts.total() < done + 60:
                            await asyncio.sleep(0.01)
                        await asyncio.to_thread(until, both_serve, "two warm workers")
                        os.kill(worker := pool.pids("worker")[0], signal.SIGKILL)
                        killed.append(worker)

                await asyncio.gather(kill(), *(caller(i) for i in range(32)))
            return counts

        killed: list[int] = []
        assert set(asyncio.run(work())) == {200}


def test_the_msgpack_form_and_a_local_client_give_the_same() -> None:
    import msgpack

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    body = {"id": "m", "inputs": {"x": {"dtype": "FP32", "shape": [2, 4], "data": x.tobytes()}}}

    async def work(pool: Pool) -> Any:
        async with (
            connections(1) as http,
            http.post(
                infer_url(pool, "affine"),
                data=msgpack.packb(body),
                headers={"Content-Type": "application/msgpack"},
            ) as response,
        ):
            assert response.status == 200
            return msgpack.unpackb(await response.read())

    with serving("Affine") as pool:
        answer = asyncio.run(work(pool))
        y = answer["outputs"]["y"]
        assert answer["id"] == "m"
        over_http = np.frombuffer(y["data"], np.float32).reshape(y["shape"])
        with bp.Client(pool.socket) as client:
            assert np.array_equal(over_http, client.infer("affine", x=x)["y"])
        assert np.array_equal(over_http, x * 2 + 1)
