"""A caller's mistake is the caller's: rows that a model refuses cost nobody else anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import batchpool as bp
from tests.fault.test_poison import calls, table
from tests.fault.test_worker_deaths import restarts
from tests.process.pool_under_test import PATIENCE_S, Pool, serving
from tests.process.web import ask

NAMED, LISTED, RAISED, FAULT, BREAKS = 1, 2, 3, 4, 5
BAD = set(range(3, 100, 7))  # 14 of 100


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    tables = [
        table("Picky", name="wide", max_batch=100),
        table("Picky", name="single", attempts=1),
        table("Picky", name="eager", max_wait_ms=0),
        table("Picky", name="sized", max_wait_ms=0, batch_sizes=[4]),
        table("Picky", name="breaks", max_wait_ms=0),
    ]
    with serving(*tables) as pool:
        yield pool


@pytest.fixture
def client(pool: Pool) -> Iterator[bp.Client]:
    with pool.client() as client:
        yield client


def outcomes(pool: Pool, model: str) -> dict[str, Any]:
    tally = pool.tally(model)
    return {name: tally[name] for name in ("invalid", "retried", "failed", "lost")}


@pytest.mark.parametrize("how", [NAMED, LISTED])
def test_fourteen_bad_rows_among_a_hundred_run_once_and_alone_are_refused(
    pool: Pool, client: bp.Client, how: int
) -> None:
    before = outcomes(pool, "wide")
    futures = [
        client.submit("wide", tag=[i + 1], how=[how * (i in BAD)], timeout_s=PATIENCE_S)
        for i in range(100)
    ]
    for i, future in enumerate(futures):
        if i not in BAD:
            assert future.result(PATIENCE_S)["text"].tolist() == [str(i + 1).encode()]
            continue
        error = future.exception(PATIENCE_S)
        assert isinstance(error, bp.InvalidInput)
        assert str(error) == f"tag {i + 1} is not wanted"
        assert (error.details, error.row) == ({"tag": i + 1}, None)
    assert outcomes(pool, "wide") == {**before, "invalid": before["invalid"] + 14}
    assert calls(pool, "wide") == pool.tally("wide")["batches"], "no row ran again"
    assert restarts(pool, "wide") == before["failed"] == before["retried"] == 0


def test_rows_that_raise_their_refusal_are_found_alone_and_count_as_no_failure(
    pool: Pool, client: bp.Client
) -> None:
    model = "single"
    futures = [
        client.submit(model, tag=[i + 1], how=[RAISED * (i in (5, 40))], timeout_s=PATIENCE_S)
        for i in range(64)
    ]
    for i, future in enumerate(futures):
        error = future.exception(PATIENCE_S)
        if i in (5, 40):
            assert isinstance(error, bp.InvalidInput)
            assert str(error) == f"tag {i + 1} is not wanted"
        else:
            assert error is None
    found = outcomes(pool, model)
    assert found["invalid"] == 2
    assert found["failed"] == found["lost"] == restarts(pool, model) == 0


def test_a_model_that_refuses_every_row_for_long_is_not_restarted(
    pool: Pool, client: bp.Client
) -> None:
    for i in range(30):
        with pytest.raises(bp.InvalidRequest, match=f"tag {i + 1} is not wanted"):
            client.infer("eager", tag=[i + 1], how=[RAISED])
    assert (outcomes(pool, "eager")["failed"], restarts(pool, "eager")) == (0, 0)


def request(*rows: tuple[int, int]) -> bytes:
    inputs = [
        {"name": name, "shape": [len(rows)], "datatype": "INT64", "data": [row[i] for row in rows]}
        for i, name in enumerate(("tag", "how"))
    ]
    return json.dumps({"inputs": inputs}).encode()


@pytest.mark.parametrize("how", [NAMED, LISTED, RAISED])
def test_over_http_a_refusal_is_400_with_the_models_text(pool: Pool, how: int) -> None:
    url = "/v2/models/sized/infer"
    lone = ask(pool, url, request((9, how)))
    assert lone.status == 400
    assert json.loads(lone.body) == {
        "error": "tag 9 is not wanted",
        "code": "invalid_request",
        "details": {"tag": 9},
    }
    several = ask(pool, url, request((1, 0), (2, 0), (3, how)))
    assert several.status == 400
    assert json.loads(several.body) == {
        "error": "tag 3 is not wanted",
        "code": "invalid_request",
        "row": 2,
        "details": {"tag": 3},
    }
    assert ask(pool, url, request((1, 0), (2, 0))).status == 200
    assert outcomes(pool, "sized")["failed"] == restarts(pool, "sized") == 0


def test_a_model_that_fails_for_its_warm_up_row_too_is_left_and_only_who_broke_it_loses(
    pool: Pool, client: bp.Client
) -> None:
    assert "Traceback" not in pool.log, "a refusal is no fault of the model"
    pool.tracebacks_expected = True
    with pytest.raises(bp.ModelError, match="a fault of the model"):
        client.infer("breaks", tag=[1], how=[BREAKS], timeout_s=60)
    found = client.infer("breaks", tag=[8], how=[0], timeout_s=60)
    assert found["tag"].tolist() == [8], "it met a broken model, and ran again in a new worker"
    assert restarts(pool, "breaks") == 2
    (worker,) = [row for row in pool.status()["processes"] if row["name"] == "worker 0 of breaks"]
    assert worker["last_error"] == (
        "2 batches failed in a row, and the warm-up row too: ValueError: a fault of the model"
    )
