"""Texts of many lengths through a model whose workers run all stages: which of them share a batch,
and in which order batches run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until

MODEL = {
    "import": "tests.process.length_models:Lengths",
    "max_batch": 64,
    "preprocess_max_batch": 64,
    "policy": "fixed",
    "max_wait_ms": 0,
    "request_timeout_s": 300,
    "batch_timeout_s": 300,
    "slots": 512,
}
SHORT, LONG = b"a short text", b"long " * 400
FULL = 8  # long texts, which share a bucket with those of up to 2,048 bytes: 16 KiB


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    budget = {**MODEL, "name": "budget", "max_batch_elements": 1024}
    with serving(MODEL, budget, server={"client_slots": 256}) as pool:
        yield pool


def batches(pool: Pool, stage: str, tags: range) -> list[list[int]]:
    """The tags of each call of a stage, of rows with tags of this range."""
    lines = (pool.notes / f"batches-{stage}").read_text().splitlines()
    found = [[int(tag) for tag in line.split()] for line in lines]
    return [line for line in found if line and line[0] in tags]


@pytest.mark.parametrize("model", ["lengths", "budget"])
def test_a_short_text_waits_for_one_batch_of_long_ones_and_not_for_the_flood(
    pool: Pool, model: str
) -> None:
    first = {"lengths": 1000, "budget": 2000}[model]
    flood, gate = range(first, first + 60), first
    short = first + 500
    tags = range(first, first + 1000)
    full = {"lengths": FULL, "budget": FULL // 2}[model]
    with pool.client() as many, pool.client() as other, opened_at_last(pool, gate):
        held = many.submit(model, text=[b"gate %d" % gate], tag=[first + 999])
        until(lambda: pool.tally(model)["batches"] == 1, "the batch at the gate")
        longs = [many.submit(model, text=[LONG], tag=[tag]) for tag in flood]
        until(lambda: pool.tally(model)["queued"] == len(flood), "the flood")
        lone = other.submit(model, text=[SHORT], tag=[short])
        until(lambda: pool.tally(model)["queued"] == len(flood) + 1, "the short text")
        open_gate(pool, gate)
        assert lone.result(PATIENCE_S)["length"].tolist() == [len(SHORT)]
        for future in (held, *longs):
            future.result(PATIENCE_S)
    ran = batches(pool, "pre", tags)[1:]
    assert [short] in ran[:2]
    ran.remove([short])
    assert [tag for batch in ran for tag in batch] == [*flood]
    assert {len(batch) for batch in ran[:-1]} == {full}
    calls = batches(pool, "run", tags)
    assert [short] in calls
    assert sorted(tag for call in calls for tag in call) == [*flood, short, first + 999]


def test_texts_of_all_lengths_are_answered_rightly_and_share_batches_with_like_ones(
    pool: Pool,
) -> None:
    lengths = [(37 * n) % 4097 for n in range(200)]
    tags = range(5000, 5200)
    with pool.client() as client:
        found = client.infer("lengths", text=[b"x" * n for n in lengths], tag=[*tags])
    assert found["length"].tolist() == lengths
    ran = batches(pool, "pre", tags)
    assert sorted(tag for batch in ran for tag in batch) == [*tags]
    for batch in ran:
        own = [max(16, lengths[tag - tags.start]) for tag in batch]
        assert len({(length - 1).bit_length() for length in own}) == 1
        assert len(batch) * (1 << (max(own) - 1).bit_length()) <= 16384
