"""Engines that take certain batch sizes only, behind a real pool: padding reaches no caller."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import numpy as np
import pytest

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, Pool, Settings, serving
from tests.process.test_http import ask, connections, infer_url, outputs, tensor

SIZED = "tests.process.sized_models"
TORCH = "tests.process.torch_models"


def table(model: str, sizes: list[int], **settings: Any) -> Settings:
    """A model under the name `sized`."""
    return {"import": model, "name": "sized", "batch_sizes": sizes, "max_wait_ms": 5, **settings}


def rows_of(seed: int, n: int) -> dict[str, Any]:
    """n rows of 0 to 16 ids, another size for every seed, which tells them from all others."""
    tags = seed * 1000 + np.arange(n) + 1
    ids = tags[:, np.newaxis] * 100 + np.arange(seed % 17)
    texts = np.array([b"%d" % tag for tag in tags], dtype=object)
    return {"tag": tags, "ids": ids, "text": texts}


def check(found: Any, sent: dict[str, Any], scale: int, sizes: list[int]) -> None:
    """Every row has its own answer, from batches of an allowed size."""
    assert found["tag"].tolist() == sent["tag"].tolist()
    assert np.array_equal(found["next"], sent["ids"] + 1)
    texts = [t.encode() if isinstance(t, str) else t for t in found["text"].tolist()]
    assert texts == sent["text"].tolist()
    assert found["scale"].tolist() == [scale] * len(sent["tag"])
    for n, rows in zip(found["n"].tolist(), found["rows"].tolist(), strict=True):
        assert n == min(size for size in sizes if size >= rows)


async def over_http(http: aiohttp.ClientSession, url: str, seed: int, n: int) -> Any:
    sent = rows_of(seed, n)
    body = {
        "parameters": {"scale": seed},
        "inputs": [
            tensor("tag", "INT64", sent["tag"]),
            tensor("ids", "INT64", sent["ids"]),
            tensor("text", "BYTES", [text.decode() for text in sent["text"]]),
        ],
    }
    status, answer = await ask(http, url, body)
    assert status == 200, answer
    return outputs(answer), sent


async def both_roads(pool: Pool, name: str, counts: list[int], sizes: list[int]) -> None:
    """Requests of these row counts all at once, every second one over HTTP."""
    async with connections(32) as http, pool.async_client() as local:

        async def one(seed: int, n: int) -> None:
            if seed % 2:
                check(*await over_http(http, infer_url(pool, name), seed, n), seed, sizes)
            else:
                sent = rows_of(seed, n)
                check(await local.infer(name, **sent), sent, 3, sizes)

        await asyncio.gather(*(one(seed, n) for seed, n in enumerate(counts)))


MODELS = {
    f"{SIZED}:Sized": [1, 8, 32],
    f"{SIZED}:Full": [64],
    f"{SIZED}:Editing": [64],
    f"{TORCH}:SizedTorch": [1, 8, 32],
    f"{TORCH}:FullTorch": [64],
}


@pytest.mark.long
def test_requests_of_any_size() -> None:
    counts = [1, 1, 3, 8, 9, 31, 70, 64, 2, 150, 33, 1] * 3
    tables = [table(model, sizes, name=model.partition(":")[2]) for model, sizes in MODELS.items()]
    with serving(*tables) as pool, pool.client() as client:
        for model, sizes in MODELS.items():
            name = model.partition(":")[2]
            for seed, n in enumerate((1, 2, 7, 130)):
                sent = rows_of(seed, n)
                check(client.infer(name, **sent), sent, 3, sizes)
            asyncio.run(both_roads(pool, name, counts, sizes))
            assert pool.tally(name)["rows"] == sum(counts) + 140, "padding is not counted"


def test_every_size_is_warmed_up_and_told() -> None:
    async def config(pool: Pool) -> Any:
        async with connections(1) as http:
            url = f"http://127.0.0.1:{pool.port}/v2/models/sized/config"
            async with http.get(url) as response:
                return await response.json()

    with serving(table(f"{SIZED}:Sized", [1, 8, 32])) as pool:
        assert (pool.notes / "sizes").read_text().split() == ["1", "1", "8", "8", "32", "32"]
        found = asyncio.run(config(pool))
        assert found["max_batch_size"] == 32
        assert found["dynamic_batching"]["preferred_batch_size"] == [1, 8, 32]


def test_an_element_budget_lets_short_rows_share_larger_batches_than_long_ones() -> None:
    """512 elements are 2 rows of 256 ids, 8 of 33 to 64, and 16 of 16, which is max_batch."""
    settings = {"import": f"{SIZED}:Long", "max_batch": 16, "max_batch_elements": 512}
    with serving(settings) as pool, pool.client() as client:
        warm = (pool.notes / "shapes").read_text().split()
        assert warm == ["1x256"] * 2 + ["2x256"] * 2 + ["16x32"] * 2
        most = {5: 16, 16: 16, 50: 8, 64: 8, 65: 4, 200: 2, 256: 2}
        waiting = {n: client.submit("long", ids=np.full((64, n), n)) for n in most}
        shapes = {}
        for n, future in waiting.items():
            found = future.result(PATIENCE_S)
            assert (found["sum"] == n * n).all()
            shapes[n] = found["shape"].tolist()
        for n, called in shapes.items():
            assert all(length == n or most[length] == most[n] for _, length in called)
            assert max(rows for rows, _ in called) == most[n]


@pytest.mark.parametrize(("poison", "error"), [(1, bp.ModelError), (2, bp.WorkerLost)])
def test_one_poisonous_row_among_sixty_four(poison: int, error: type[bp.PoolError]) -> None:
    settings = table(f"{SIZED}:FullPoison", [64], policy="fixed", max_wait_ms=60_000)
    with serving(settings) as pool, pool.client() as client:
        pool.tracebacks_expected = True
        futures = [
            client.submit("sized", tag=[i + 1], poison=[poison * (i == 37)], timeout_s=PATIENCE_S)
            for i in range(64)
        ]
        ends = [
            future.exception(PATIENCE_S) or future.result()["tag"].tolist() for future in futures
        ]
        assert isinstance(ends.pop(37), error)
        assert ends == [[i + 1] for i in range(64) if i != 37]
        assert pool.tally("sized")["reasons"]["FULL"] == 1
