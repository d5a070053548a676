"""A decoder of transformers in a pool: its streams have the tokens of the loop without a pool, also
when its worker dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import batchpool as bp
from tests.process.pool_under_test import Pool, serving
from tests.process.ready_folder import importable
from tests.unit.models.decoder_folders import LENGTH, Loop, llama, loaded, sequence

pytestmark = pytest.mark.slow  # each worker imports a large library
pytest.importorskip("batchpool.client.token_stream")

TOKENS = 30
PROMPTS = [[1 + (7 * row + at) % 90 for at in range(1 + 5 * row)] for row in range(12)]
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not importable("transformers"):
        pytest.skip("transformers is not installed")
    return llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Pool]:
    options = {"path": str(folder), "max_length": LENGTH, "max_tokens": 40, "chunk_tokens": 32}
    model = {"import": "tests.process.decoder_models:MortalLM", "name": "story", "options": options}
    with serving({**model, "max_batch": 8, "slots": 32, "max_wait_ms": 10}) as pool:
        yield pool


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[int, list[int]]:
    """The tokens of the prompts, by the loop without a pool; the last one is sampled."""
    wanted = [sequence(0, prompt, TOKENS) for prompt in PROMPTS[:-1]]
    return Loop(loaded(folder, 4), [*wanted, sequence(0, PROMPTS[-1], TOKENS, **SAMPLED)]).run()


def parameters(row: int) -> dict[str, Any]:
    return {"max_tokens": TOKENS, **(SAMPLED if row == len(PROMPTS) - 1 else {})}


def test_infer_gives_all_tokens_at_once(pool: Pool, expected: dict[int, list[int]]) -> None:
    with pool.client() as client:
        found = client.infer("story", prompt=PROMPTS[:3], parameters={"max_tokens": TOKENS})
    assert [row.tolist() for row in found["token"]] == [expected[row] for row in range(3)]
    assert set(found["finish_reason"]) == {b"length"}


def test_streams_go_on_when_their_worker_dies(pool: Pool, expected: dict[int, list[int]]) -> None:
    async def streamed(client: Any, row: int) -> list[int]:
        async with client.stream(
            "story", prompt=PROMPTS[row], parameters=parameters(row)
        ) as stream:
            found = [token async for token in stream]
        assert stream.finish_reason == "length"
        return found

    async def all_streams() -> list[list[int]]:
        async with pool.async_client() as client:
            return await asyncio.gather(*(streamed(client, row) for row in range(len(PROMPTS))))

    found = asyncio.run(all_streams())
    assert found == [expected[row] for row in range(len(PROMPTS))]
    died = int((pool.notes / "died").read_text())
    assert pool.pids("worker") != [died]


def test_a_request_that_the_model_refuses_is_the_callers_fault(pool: Pool) -> None:
    with pool.client() as client:
        with pytest.raises(bp.InvalidInput, match="ask for at most 16"):
            client.infer("story", prompt=[[1] * 80], parameters={"max_tokens": 17})
        with pytest.raises(bp.InvalidInput, match="the token 97; the model knows 0 to 96"):
            client.infer("story", prompt=[[97]])
