"""Only the guilty row gets the error; broken devices are left, and small memory is learnt."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.fault.test_worker_deaths import restarts, serves_again
from tests.process.pool_under_test import PATIENCE_S, Pool, serving

MODELS = "tests.fault.models"
RAISE, KILL, BREAK = 1, 2, 3
GUILTY = ({37}, {0, 63})  # of 64 rows
# So that 64 rows ride together, however long it takes to send them.
PATIENT = {"policy": "fixed", "max_wait_ms": 60_000, "max_batch": 64}


def table(model: str, **settings: Any) -> dict[str, Any]:
    return {"import": f"{MODELS}:{model}", **PATIENT, **settings}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    tables = [
        *(table("Poison", name=f"poison{attempts}", attempts=attempts) for attempts in (1, 3)),
        table("Poison", name="once", idempotent=False),
        table("Poison", name="eager", max_wait_ms=0),
        table("Broken"),
        table("Greedy", attempts=1, max_wait_ms=0),
    ]
    with serving(*tables) as pool:
        pool.tracebacks_expected = True
        yield pool


@pytest.fixture
def client(pool: Pool) -> Iterator[bp.Client]:
    with pool.client() as client:
        yield client


def calls(pool: Pool, model: str) -> int:
    found = pool.notes / f"calls of {model}"
    return found.stat().st_size if found.exists() else 0


def send(client: bp.Client, model: str, poison: int, guilty: Collection[int]) -> list[Any]:
    """64 single rows at once; what became of each: its tag or its error."""
    futures = [
        client.submit(model, tag=[i + 1], poison=[poison * (i in guilty)], timeout_s=PATIENCE_S)
        for i in range(64)
    ]
    ends = [future.exception(PATIENCE_S) or int(future.result()["tag"][0]) for future in futures]
    return ends


@pytest.mark.parametrize("attempts", [1, 3])
def test_rows_that_raise_among_sixty_four(pool: Pool, client: bp.Client, attempts: int) -> None:
    model = f"poison{attempts}"
    full = pool.tally(model)["reasons"].get("FULL", 0)
    for number, guilty in enumerate(GUILTY):
        before, restarted = calls(pool, model), restarts(pool, model)
        ends = send(client, model, RAISE, guilty)
        for i, end in enumerate(ends):
            if i in guilty:
                assert isinstance(end, bp.ModelError)
                assert "a poisonous row" in str(end)
            else:
                assert end == i + 1
        assert calls(pool, model) - before - 1 <= len(guilty) * (16 + attempts)
        assert restarts(pool, model) == restarted
        assert pool.tally(model)["reasons"]["FULL"] == full + number + 1


@pytest.mark.parametrize("attempts", [1, 3])
def test_rows_that_kill_among_sixty_four(pool: Pool, client: bp.Client, attempts: int) -> None:
    model = f"poison{attempts}"
    for guilty in GUILTY:
        lost = pool.tally(model)["lost"]
        before, restarted = calls(pool, model), restarts(pool, model)
        ends = send(client, model, KILL, guilty)
        for i, end in enumerate(ends):
            if i in guilty:
                assert isinstance(end, bp.WorkerLost)
            else:
                assert end == i + 1
        assert calls(pool, model) - before - 1 <= len(guilty) * (16 + attempts)
        assert restarts(pool, model) - restarted <= len(guilty) * max(3, attempts)
        serves_again(pool, model, 1)
        assert pool.tally(model)["lost"] == lost + len(guilty)


def test_rows_of_a_model_that_may_not_run_twice_share_the_error(
    pool: Pool, client: bp.Client
) -> None:
    assert all(isinstance(end, bp.ModelError) for end in send(client, "once", RAISE, {5}))
    assert calls(pool, "once") == 1


def test_a_broken_device_costs_its_worker_and_only_the_row_that_broke_it(
    pool: Pool, client: bp.Client
) -> None:
    """C36: the next worker serves."""
    ends = send(client, "broken", BREAK, {20})
    assert isinstance(ends[20], bp.WorkerLost)
    assert [end for i, end in enumerate(ends) if i != 20] == [i + 1 for i in range(64) if i != 20]
    assert 1 <= restarts(pool, "broken") <= 3
    rows = pool.status()["processes"]
    (worker,) = [row for row in rows if row["name"] == "worker 0 of broken"]
    assert "device-side assert" in worker["last_error"]
    assert send(client, "broken", 0, set()) == list(range(1, 65))


def test_a_caller_whose_rows_all_raise_takes_the_model_from_nobody(
    pool: Pool, client: bp.Client
) -> None:
    """C36: bad inputs restart nobody."""
    for i in range(50):
        with pytest.raises(bp.ModelError):
            client.infer("eager", tag=[i + 1], poison=[RAISE])
    assert calls(pool, "eager") == 100, "each row once more, for confirmation"
    assert client.infer("eager", tag=[7], poison=[0])["tag"].tolist() == [7]
    assert restarts(pool, "eager") == 0


def test_a_batch_too_large_for_the_memory_runs_in_parts_and_the_cap_is_learnt(
    pool: Pool, client: bp.Client
) -> None:
    # All in one call: they ride together though nothing waits for others.
    found = client.submit("greedy", tag=np.arange(64) + 1, huge=np.zeros(64, np.int64))
    rows = found.result(PATIENCE_S)
    assert rows["tag"].tolist() == list(range(1, 65))
    assert rows["rows"].max() <= 5
    tally = pool.tally("greedy")
    assert tally["max_batch"] == 4
    # 64, 32, 16 and 8 rows; of each but the first a second batch may be under way already.
    assert 4 <= tally["no_memory"] <= 7
    assert tally["failed"] == 0
    assert restarts(pool, "greedy") == 0
    with pytest.raises(bp.ModelError, match=r"MemoryError: no memory for 1 rows"):
        client.infer("greedy", tag=[1], huge=[1])
    assert client.infer("greedy", tag=[2], huge=[0])["tag"].tolist() == [2]
